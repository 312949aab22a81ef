"""The command `search`: find similar images and explain each match."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gamlens import GamlensError, Lens, Refinement, render
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, make_lens
from gamlens.cli.index_command import IndexModel, opened
from gamlens.cli.index_search import IndexQueries, is_index, numbers_of, reads, search_in_index, show_matches
from gamlens.cli.terminal import note, say, tell
from gamlens.cli.waiting import ItemProgress
from gamlens.files import claimed
from gamlens.index.index import INDEX_SUFFIX
from gamlens.methods import BLOCK_DEFAULT
from gamlens.models.devices import AUTO
from gamlens.report import search as work
from gamlens.report.image_files import PAGE_FILE, about_sharpness, about_sign, find_images
from gamlens.scores import PAIR_SCORES

NAMED = 3
# Options that make sense for an index alone, by their parameters.
ONLY_OF_INDEX = {
    "where": "--where", "box": "--box", "point": "--point", "plus": "--plus", "minus": "--minus", "text": "--text",
    "explain": "--explain",
}  # fmt: skip


@command("search cheetah.jpg --in photos/ --top 5 --out alike")
def search(
    queries: Annotated[
        list[str] | None,
        Argument(help="Image files, folders of images, or globs in quotes.", show_default=False),
    ] = None,
    places: Annotated[
        list[str] | None,
        Option(
            "--in",
            help="Where to search: an index that `gamlens index add` made; or a folder, a file or a glob (repeat the "
            "option for several); or one .npz file that --save-gallery wrote.",
            show_default=False,
        ),
    ] = None,
    model: IndexModel = None,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    top: Annotated[int, Option(help="How many matches to show per query.", min=1)] = 5,
    score: Annotated[
        str | None,
        Option(
            help=f"How the similarity of two images is computed: {', '.join(PAIR_SCORES)}. By default cosine; an index "
            "has its own.",
            show_default=False,
        ),
    ] = None,
    where: options.WhereFilter = None,
    box: Annotated[
        str | None,
        Option(help="In an index: search for this region of the query, x0,y0,x1,y1 in its pixels.", show_default=False),
    ] = None,
    point: Annotated[
        str | None,
        Option(
            help="In an index: search for the place of the query that lies at x,y in its pixels.", show_default=False
        ),
    ] = None,
    plus: Annotated[
        list[str] | None,
        Option(
            help="In an index: a further image that matches shall be like (repeat for several).", show_default=False
        ),
    ] = None,
    minus: Annotated[
        list[str] | None,
        Option(help="In an index: an image that matches shall be unlike (repeat for several).", show_default=False),
    ] = None,
    text: Annotated[
        str | None,
        Option(help="In an index of a model that reads text: a caption that matches shall fit.", show_default=False),
    ] = None,
    explain: Annotated[
        bool,
        Option("--explain", help="In an index: also show why, with both maps of every match, on a page in --out."),
    ] = False,
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
    sign: options.MapSign = None,
    save_gallery: Annotated[
        Path | None,
        Option(
            help="Save what was computed from the searched images to this .npz file, for --in of later searches. With "
            "--refine or --sharp it also holds the earlier blocks, which makes it several times as large; a later "
            "search that refines maps then runs no searched image again. An index (`gamlens index add`) can grow and "
            "has filters."
        ),
    ] = None,
    with_self: Annotated[
        bool, Option("--with-self", help="Allow the query's own file as a match. By default it is left out.")
    ] = False,
    maps: Annotated[bool, Option("--maps", help="Also save the maps and full-size overlays of every match.")] = False,
    out: options.PageFolder = Path("gamlens-out"),
    device: options.DeviceName = AUTO,
) -> list[dict[str, Any]]:
    """Find the images that a model finds most similar to a query, and show why: both saliency maps of each match.

    In an index, matches come at once, and --explain shows why.
    """
    if not places:
        raise GamlensError("Say where to search: --in shop.gamlens, or --in FOLDER.")
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    sign = options.chosen_sign(sign, methods=[method])
    if out.exists() and not out.is_dir():
        raise GamlensError(f"--out {out} is a file: name a folder.")
    if places[0].rstrip("/").endswith(INDEX_SUFFIX) and not Path(places[0]).exists():
        raise GamlensError(f"There is no index {places[0]!r}: `gamlens index add FOLDER --to {places[0]}` makes it.")
    if is_index(places):
        how = work.SearchOptions(score or "cosine", method, n, fuse, top, with_self, lattice, refined, sign)
        asked = IndexQueries(
            files=find_images(queries, skip=out) if queries else [], plus=plus or [], minus=minus or [], text=text,
            box=numbers_of("--box", box, 4), point=numbers_of("--point", point, 2),
        )  # fmt: skip
        if save_gallery is not None:
            raise GamlensError("--save-gallery belongs to a search in files: an index is saved already.")
        quiet = {
            "--sharp or --refine": refined is not None, "--sign": sign is not None, "--n": n != 1,
            "--method": method != BLOCK_DEFAULT,
        }  # fmt: skip
        if not (explain or maps) and (unused := [option for option, given in quiet.items() if given]):
            note(f"{unused[0]} has no effect without --explain.")
        with opened(Path(places[0]), model, weights, blocks, embedding, device) as index:
            if score not in (None, index.score):
                raise GamlensError(f"This index ranks images by {index.score}: leave out --score {score}.")
            return search_in_index(
                index, asked, replace(how, score=index.score), where=where, explain=explain or maps, maps=maps, out=out
            )
    given = {"where": where, "box": box, "point": point, "plus": plus, "minus": minus, "text": text, "explain": explain}
    if unused := [option for name, option in ONLY_OF_INDEX.items() if given[name]]:
        raise GamlensError(
            f"{unused[0]} belongs to a search in an index: make one with `gamlens index add {places[0]} --to "
            "photos.gamlens`, and give --in photos.gamlens."
        )
    if not queries:
        raise GamlensError("Name an image to search for, such as photo.jpg.")
    score = score or "cosine"
    how = work.SearchOptions(score, method, n, fuse, top, with_self, lattice, refined, sign)
    if save_gallery is not None and (save_gallery.suffix != ".npz" or _saved(places)):
        raise GamlensError(
            f"--save-gallery {save_gallery}: name a .npz file, and images or a folder to search with --in (a saved "
            "gallery is not saved again)."
        )
    asked_files = find_images(queries, skip=out)
    lens = make_lens(model or options.DEFAULT_MODEL, weights, blocks, device, embedding=embedding)
    answers: list[work.QueryMatches] = []
    # A gallery that is saved, or was, holds earlier blocks. Of images that are searched only once, which may be very
    # many, they are not kept: only the matches are run again.
    kept = refined if save_gallery is not None or _saved(places) else None
    with claimed(out):
        with ItemProgress("reading queries", len(asked_files)) as progress:
            seen = work.remember(lens, asked_files, progress, refine=kept)
        how.check(lens, seen.images.pictures[0])
        for _, error in seen.bad[:NAMED]:
            tell("error", error, "bold red")
        searched = _searched(lens, places, out, save_gallery, kept)
        with ItemProgress("explaining", len(seen.images)) as progress:
            progress(0, 0)
            for answer in work.search(lens, seen.images, searched.images, how, out=out, maps=maps):
                answers.append(answer)
                progress(len(answers), 0)
        lead = f"{reads(how)} of `{lens.name}`, {score}: best of {len(searched.images)} images."
        lead += about_sharpness(refined) + about_sign(sign)
        index_page = render.write(work.search_page(answers, title="Why alike?", lead=lead), out / PAGE_FILE)
    show_matches(answers, score)
    say(f"Pictures are in {out}; open {index_page}")
    records = [answer.record for answer in answers]
    if seen.bad:
        exit_with_failures(f"{len(seen.bad)} of {len(asked_files)} queries could not be read.", records)
    return records


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
