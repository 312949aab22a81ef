"""The command that finds similar images and says why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gamlens import METHODS, GamlensError, Lens, render
from gamlens.cli.common import (
    Blocks,
    Device,
    Fuse,
    Json,
    Method,
    Model,
    Weights,
    make_lens,
    out_console,
    speaking,
    tell,
)
from gamlens.cli.status import Status
from gamlens.report import search as work
from gamlens.report.image_files import find_images
from gamlens.scores import PAIR_SCORES

app = typer.Typer()

EXAMPLE = "Example:  gamlens search cheetah.jpg --in photos/ --top 5 --save-gallery photos.npz --out alike"
NAMED = 3


@app.command(epilog=EXAMPLE)
def search(
    queries: Annotated[list[str], typer.Argument(help="Image files, folders or globs.", show_default=False)],
    places: Annotated[
        list[str],
        typer.Option("--in", help="Where to search: a folder, files or a glob (repeat it), or a saved gallery, .npz."),
    ],
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    blocks: Blocks = None,
    embedding: Annotated[str | None, typer.Option(help="The layer whose output is compared, such as fc1.")] = None,
    top: Annotated[int, typer.Option(help="How many matches a query.", min=1)] = 5,
    score: Annotated[str, typer.Option(help="Similarity: " + ", ".join(PAIR_SCORES) + ".")] = "cosine",
    method: Method = "gam",
    n: Annotated[
        int, typer.Option("--n", "-n", help="How many of the last blocks. More than 1 runs every match again: slower.")
    ] = 1,
    fuse: Fuse = "mean",
    save_gallery: Annotated[
        Path | None, typer.Option(help="Keep what was seen of the images (.npz): the next search takes it as --in.")
    ] = None,
    with_self: Annotated[bool, typer.Option("--with-self", help="Let the query's own file be a match.")] = False,
    maps: Annotated[bool, typer.Option("--maps", help="Save every pair's maps and full-size overlays too.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page and pictures.")] = Path("gamlens-out"),
    json_: Json = False,
    device: Device = None,
) -> None:
    """Which images are most like this one, and why? Both maps of each match. Every image is looked at once."""
    with speaking():
        options = work.SearchOptions(score, method, n, fuse, top, with_self)
        if save_gallery is not None and (save_gallery.suffix != ".npz" or _saved(places)):
            raise GamlensError(f"--save-gallery {save_gallery}: name a .npz file, and a folder to search with --in.")
        if out.exists() and not out.is_dir():
            raise GamlensError(f"--out {out} is a file: name a folder.")
        asked = find_images(queries, skip=out)
        lens = make_lens(model, weights, blocks, device, embedding=embedding)
        seen = work.remember(lens, asked)
        options.check(lens, seen.images.pictures[0])
        for _, error in seen.bad:
            tell("error", error, "bold red")
        searched = _searched(lens, places, out, save_gallery)
        answers: list[work.QueryMatches] = []
        with Status("explaining", len(seen.images)) as status:
            status(0, 0)
            for answer in work.search(lens, seen.images, searched.images, options, out=out, maps=maps):
                answers.append(answer)
                status(len(answers), 0)
        lead = f"{_reads(options)} of `{lens.name}`, {score}: best of {len(searched.images)} images."
        index = render.write(work.search_page(answers, title="Why alike?", lead=lead), out / "index.html")
        if json_:
            typer.echo(json.dumps([answer.record for answer in answers], indent=2))
        else:
            _show(answers, score)
            out_console.print(Text(f"Pictures are in {out}; look at {index}"), soft_wrap=True)
        if seen.bad:
            tell("note", f"{len(seen.bad)} of {len(asked)} queries could not be read.", "yellow")
            raise typer.Exit(1)


def _reads(options: work.SearchOptions) -> str:
    method = METHODS[options.method]
    blocks = f"the last {options.n} blocks" if options.n > 1 and method.kind == "block" else "the last block"
    return f"{method.title}, {'the pixels' if method.kind == 'input' else blocks}"


def _saved(places: list[str]) -> bool:
    return len(places) == 1 and Path(places[0]).suffix.lower() == ".npz"


def _searched(lens: Lens, places: list[str], out: Path, keep: Path | None) -> work.SearchedImages:
    """A saved gallery, or one made of the images found; what is left out of it is told in one line."""
    if _saved(places):
        searched = work.recall(lens, places[0])
    else:
        files = find_images(places, skip=out)
        with Status("looking", len(files)) as status:
            searched = work.remember(lens, files, status)
        if keep is not None:
            searched.images.save(str(keep))
    if searched.bad:
        names = ", ".join(Path(name).name for name, _ in searched.bad[:NAMED])
        more = f" and {len(searched.bad) - NAMED} more" if len(searched.bad) > NAMED else ""
        count = f"{len(searched.bad)} of {len(searched.bad) + len(searched.images)} images"
        tell("note", f"{count} are left out: {names}{more}. {searched.bad[0][1]}", "yellow")
    return searched


def _show(answers: list[work.QueryMatches], score: str) -> None:
    files = [match["file"] for answer in answers for match in answer.matches]
    base = os.path.commonpath([str(Path(file).parent) for file in files])
    table = Table("query", "match", score, box=None, pad_edge=False)
    table.add_column(f"in {base}" if base else "file", overflow="fold")
    for answer in answers:
        for number, match in enumerate(answer.matches):
            cells = (Path(answer.query).name if number == 0 else "", str(number + 1), f"{match['score']:.4f}")
            table.add_row(*map(Text, (*cells, os.path.relpath(match["file"], base or "."))))
    out_console.print(table)
    own = [answer.query for answer in answers if answer.left_out]
    if own:
        which = Path(own[0]).name if len(own) == 1 else f"{len(own)} queries"
        tell("note", f"{which}: the same file is there too and is left out; --with-self keeps it.", "yellow")
