"""The command that finds similar images and says why."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column
from typer import Option

from gamlens import METHODS, GamlensError, Lens, render
from gamlens.cli import options
from gamlens.cli.common import ItemProgress, command, make_lens, note, say, say_json, say_table, tell
from gamlens.report import search as work
from gamlens.report.image_files import find_images

NAMED = 3


@command("search cheetah.jpg --in photos/ --top 5 --save-gallery photos.npz --out alike")
def search(
    queries: options.ImagePaths,
    places: Annotated[
        list[str],
        Option("--in", help="Where to search: a folder, files or a glob (repeat it), or a saved gallery, .npz."),
    ],
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    top: Annotated[int, Option(help="How many matches per query.", min=1)] = 5,
    score: options.PairScoreName = "cosine",
    method: options.MethodName = "gam",
    n: Annotated[
        int, Option("--n", "-n", help="How many of the last blocks. More than 1 runs every match again: slower.")
    ] = 1,
    fuse: options.FusionName = "mean",
    save_gallery: Annotated[
        Path | None, Option(help="Keep what was seen of the images (.npz): the next search takes it as --in.")
    ] = None,
    with_self: Annotated[bool, Option("--with-self", help="Let the query's own file be a match.")] = False,
    maps: Annotated[bool, Option("--maps", help="Save every pair's maps and full-size overlays too.")] = False,
    out: options.PageFolder = Path("gamlens-out"),
    json_: options.JsonOutput = False,
    device: options.DeviceName = None,
) -> None:
    """Which images are most like this one, and why? Both maps of each match. Every image is looked at once."""
    how = work.SearchOptions(score, method, n, fuse, top, with_self)
    if save_gallery is not None and (save_gallery.suffix != ".npz" or _saved(places)):
        raise GamlensError(f"--save-gallery {save_gallery}: name a .npz file, and a folder to search with --in.")
    if out.exists() and not out.is_dir():
        raise GamlensError(f"--out {out} is a file: name a folder.")
    asked = find_images(queries, skip=out)
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    seen = work.remember(lens, asked)
    how.check(lens, seen.images.pictures[0])
    for _, error in seen.bad:
        tell("error", error, "bold red")
    searched = _searched(lens, places, out, save_gallery)
    answers: list[work.QueryMatches] = []
    with ItemProgress("explaining", len(seen.images)) as progress:
        progress(0, 0)
        for answer in work.search(lens, seen.images, searched.images, how, out=out, maps=maps):
            answers.append(answer)
            progress(len(answers), 0)
    lead = f"{_reads(how)} of `{lens.name}`, {score}: best of {len(searched.images)} images."
    index = render.write(work.search_page(answers, title="Why alike?", lead=lead), out / "index.html")
    if json_:
        say_json([answer.record for answer in answers])
    else:
        _show(answers, score)
        say(f"Pictures are in {out}; look at {index}")
    if seen.bad:
        note(f"{len(seen.bad)} of {len(asked)} queries could not be read.")
        raise typer.Exit(1)


def _reads(how: work.SearchOptions) -> str:
    method = METHODS[how.method]
    blocks = f"the last {how.n} blocks" if how.n > 1 and method.kind == "block" else "the last block"
    return f"{method.title}, {'the pixels' if method.kind == 'input' else blocks}"


def _saved(places: list[str]) -> bool:
    return len(places) == 1 and Path(places[0]).suffix.lower() == ".npz"


def _searched(lens: Lens, places: list[str], out: Path, keep: Path | None) -> work.SearchedImages:
    """A saved gallery, or one made of the images found; what is left out of it is told in one line."""
    if _saved(places):
        searched = work.recall(lens, places[0])
    else:
        files = find_images(places, skip=out)
        with ItemProgress("looking", len(files)) as progress:
            searched = work.remember(lens, files, progress)
        if keep is not None:
            searched.images.save(str(keep))
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
