"""The command `search`: find similar images and explain each match."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column
from typer import Option

from gamlens import METHODS, GamlensError, Lens, Refinement, render
from gamlens.cli import options
from gamlens.cli.common import ItemProgress, command, make_lens, note, say, say_json, say_table, tell
from gamlens.files import claimed
from gamlens.models.devices import AUTO
from gamlens.report import search as work
from gamlens.report.image_files import PAGE_FILE, about_sharpness, find_images

NAMED = 3


@command("search cheetah.jpg --in photos/ --top 5 --save-gallery photos.npz --out alike")
def search(
    queries: options.ImagePaths,
    places: Annotated[
        list[str],
        Option(
            "--in",
            help="Where to search: a folder, a file or a glob (repeat the option for several), or one .npz file that "
            "--save-gallery wrote.",
        ),
    ],
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    top: Annotated[int, Option(help="How many matches to show per query.", min=1)] = 5,
    score: options.PairScoreName = "cosine",
    method: options.SearchMethodName = "gam",
    n: Annotated[
        int,
        Option(
            "--n",
            "-n",
            help="How many of the last blocks to use. More than 1 is slower: every match needs a forward pass again.",
        ),
    ] = 1,
    fuse: options.FusionName = "mean",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    save_gallery: Annotated[
        Path | None,
        Option(
            help="Save what was computed from the searched images to this .npz file, for --in of later searches. With "
            "--refine or --sharp it also holds the earlier blocks, which makes it several times as large; a later "
            "search that refines maps then runs no searched image again."
        ),
    ] = None,
    with_self: Annotated[
        bool, Option("--with-self", help="Allow the query's own file as a match. By default it is left out.")
    ] = False,
    maps: Annotated[bool, Option("--maps", help="Also save the maps and full-size overlays of every match.")] = False,
    out: options.PageFolder = Path("gamlens-out"),
    json_: options.JsonOutput = False,
    device: options.DeviceName = AUTO,
) -> None:
    """Find the images that a model finds most similar to a query, and show why: both saliency maps of each match."""
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    how = work.SearchOptions(score, method, n, fuse, top, with_self, lattice, refined)
    if save_gallery is not None and (save_gallery.suffix != ".npz" or _saved(places)):
        raise GamlensError(
            f"--save-gallery {save_gallery}: name a .npz file, and images or a folder to search with --in (a saved "
            "gallery is not saved again)."
        )
    if out.exists() and not out.is_dir():
        raise GamlensError(f"--out {out} is a file: name a folder.")
    asked = find_images(queries, skip=out)
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    answers: list[work.QueryMatches] = []
    # A gallery that is saved, or was, holds earlier blocks. Of images that are searched only once, which may be very
    # many, they are not kept: only the matches are run again.
    kept = refined if save_gallery is not None or _saved(places) else None
    with claimed(out):
        seen = work.remember(lens, asked, refine=kept)
        how.check(lens, seen.images.pictures[0])
        for _, error in seen.bad:
            tell("error", error, "bold red")
        searched = _searched(lens, places, out, save_gallery, kept)
        with ItemProgress("explaining", len(seen.images)) as progress:
            progress(0, 0)
            for answer in work.search(lens, seen.images, searched.images, how, out=out, maps=maps):
                answers.append(answer)
                progress(len(answers), 0)
        lead = f"{_reads(how)} of `{lens.name}`, {score}: best of {len(searched.images)} images."
        lead += about_sharpness(refined)
        index = render.write(work.search_page(answers, title="Why alike?", lead=lead), out / PAGE_FILE)
    if json_:
        say_json([answer.record for answer in answers])
    else:
        _show(answers, score)
        say(f"Pictures are in {out}; open {index}")
    if seen.bad:
        note(f"{len(seen.bad)} of {len(asked)} queries could not be read.")
        raise typer.Exit(1)


def _reads(how: work.SearchOptions) -> str:
    method = METHODS[how.method]
    blocks = f"the last {how.n} blocks" if how.n > 1 and method.kind == "block" else "the last block"
    return f"{method.title}, {'the pixels' if method.kind == 'input' else blocks}"


def _saved(places: list[str]) -> bool:
    return len(places) == 1 and Path(places[0]).suffix.lower() == ".npz"


def _searched(
    lens: Lens, places: list[str], out: Path, save_to: Path | None, refine: Refinement | None
) -> work.SearchedImages:
    """Load the saved gallery that `places` names, or make a gallery of the images there and save it to `save_to`.

    A new gallery holds the earlier blocks that `refine` needs. A note names the images that cannot be used.
    """
    if _saved(places):
        searched = work.recall(lens, places[0])
    else:
        files = find_images(places, skip=out)
        with ItemProgress("embedding", len(files)) as progress:
            searched = work.remember(lens, files, progress, refine=refine)
        if save_to is not None:
            searched.images.save(str(save_to))
    if searched.bad:
        names = ", ".join(Path(name).name for name, _ in searched.bad[:NAMED])
        more = f" and {len(searched.bad) - NAMED} more" if len(searched.bad) > NAMED else ""
        count = f"{len(searched.bad)} of {len(searched.bad) + len(searched.images)} images"
        note(f"{count} are left out: {names}{more}. {searched.bad[0][1]}")
    return searched


def _show(answers: list[work.QueryMatches], score: str) -> None:
    files = [match["file"] for answer in answers for match in answer.matches]
    base = os.path.commonpath([str(Path(file).parent) for file in files])
    lines = []
    for answer in answers:
        for number, match in enumerate(answer.matches):
            cells = (Path(answer.query).name if number == 0 else "", str(number + 1), f"{match['score']:.4f}")
            lines.append((*cells, os.path.relpath(match["file"], base or ".")))
    place = Column(f"in {base}" if base else "file", overflow="fold")
    say_table(("query", "match", score, place), lines, box=None, pad_edge=False)
    if own := [answer.query for answer in answers if answer.left_out]:
        which = Path(own[0]).name if len(own) == 1 else f"{len(own)} queries"
        note(f"{which}: the same file is there too and is left out; --with-self keeps it.")
