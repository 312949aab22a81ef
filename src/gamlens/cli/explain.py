"""The commands that explain: classify, compare, blocks, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gamlens import METHODS, Explanation, GamlensError, render
from gamlens.cli.common import (
    CLASS_METHODS,
    MODEL_HELP,
    Blocks,
    Device,
    Fuse,
    Json,
    Method,
    Model,
    Number,
    Out,
    Weights,
    err_console,
    make_lens,
    out_console,
    progress,
    speaking,
    tell,
)
from gamlens.cli.status import Status
from gamlens.explanation import file_stem
from gamlens.report import classified_files as work
from gamlens.report.image_files import find_images
from gamlens.scores import CLASS_SCORES, PAIR_SCORES

app = typer.Typer()


@app.command(epilog="Example:  gamlens classify photos/ 'more/*.jpg' --target 'tabby' --target lynx --out why")
def classify(
    paths: Annotated[list[str], typer.Argument(help="Image files, folders or globs.", show_default=False)],
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    blocks: Blocks = None,
    target: Annotated[list[str] | None, typer.Option("--target", "-t", help="Class name or number; repeat it.")] = None,
    method: Annotated[str, typer.Option(help="Method: " + ", ".join(CLASS_METHODS) + ".")] = "gam",
    n: Number = 2,
    fuse: Fuse = "mean",
    score: Annotated[str, typer.Option(help="What is explained: " + ", ".join(CLASS_SCORES) + ".")] = "logit",
    out: Out = Path("gamlens-out"),
    json_: Json = False,
    device: Device = None,
) -> None:
    """Why this class? Explain images, one class or several each, the top class by default."""
    with speaking(resumes=True):
        found = find_images(paths, skip=out)
        lens = make_lens(model, weights, blocks, device)
        wanted: list[str | int] | None = list(target) if target else None
        results: list[work.FileResult] = []
        options = work.ClassifyOptions(wanted, method, n, fuse, score)
        steps = work.classify_files(lens, found, options, out=out)
        failed = 0
        with Status("explaining", len(found)) as status:
            for result in steps:
                results.append(result)
                failed += bool(result.error)
                status(len(results), failed)
                if result.error:
                    tell("error", result.error, "bold red")
        index = out / "index.html"
        if any(not result.error for result in results):
            read = "the pixels" if METHODS[method].kind == "input" else f"the last {n} blocks"
            lead = f"{METHODS[method].title}, {read} of `{lens.name}`, {score}."
            render.write(work.classified_page(results, title="Why this class?", lead=lead), index)
        if json_:
            typer.echo(json.dumps([result.record for result in results], indent=2))
        else:
            _show_classes(results)
            if failed < len(results):
                out_console.print(Text(f"Pictures, maps and JSON are in {out}; look at {index}"), soft_wrap=True)
        if failed:
            err_console.print(f"{failed} of {len(results)} files could not be explained.", highlight=False)
            raise typer.Exit(1)


@app.command(epilog="Example:  gamlens compare cheetah.jpg lion.jpg --score dot --method gam -n 2")
def compare(
    a: Annotated[str, typer.Argument(help="An image.", show_default=False)],
    b: Annotated[str | None, typer.Argument(help="Another image; none with --text.", show_default=False)] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A caption to compare the image with, for CLIP and its like; repeat it.")
    ] = None,
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    blocks: Blocks = None,
    embedding: Annotated[str | None, typer.Option(help="The layer whose output is compared, such as fc1.")] = None,
    method: Method = "gam",
    n: Number = 2,
    score: Annotated[str, typer.Option(help="Similarity: " + ", ".join(PAIR_SCORES) + ".")] = "cosine",
    fuse: Fuse = "mean",
    out: Out = Path("gamlens-out"),
    json_: Json = False,
    device: Device = None,
) -> None:
    """Why similar? Explain the similarity of two images on both of them, or of an image and captions (--text)."""
    with speaking():
        if (b is None) == (not text):
            raise GamlensError("Give two images, or one image and --text 'a caption': gamlens compare A B, A --text T.")
        lens = make_lens(model, weights, blocks, device, embedding=embedding)
        if b is None:
            place = out / file_stem(Path(a).stem)
            _show_captions(lens.compare_text(a, text or [], method=method, n=n, fuse=fuse), a, place, json_)
            return
        result = lens.compare(a, b, score=score, method=method, n=n, fuse=fuse)
        place = out / f"{file_stem(Path(a).stem)}-{file_stem(Path(b).stem)}"
        written = result.save(str(place))
        value = float(result.scores[0])
        if json_:
            boxes = {side: getattr(result, side).boxes().tolist()[0] for side in "xy"}
            record = {"x": a, "y": b, "score": value, "boxes": boxes, "folder": str(place), "about": dict(result.about)}
            typer.echo(json.dumps(record, indent=2))
        else:
            names = f"  {Path(a).name}  ~  {Path(b).name}"
            out_console.print(Text.assemble((f"{score} {value:.4f}", "bold"), names), soft_wrap=True)
            out_console.print(Text(f"Both maps: {written[-1]}"), soft_wrap=True)


def _show_captions(result: Explanation, image: str, place: Path, as_json: bool) -> None:
    """Save an image's maps for captions, and say the cosines."""
    result.save(str(place))
    rows = list(zip(result.names, result.scores.tolist(), result.boxes().tolist(), strict=True))
    if as_json:
        captions = [{"text": name, "score": value, "box": box} for name, value, box in rows]
        record = {"x": image, "captions": captions, "folder": str(place), "about": dict(result.about)}
        typer.echo(json.dumps(record, indent=2))
        return
    for name, value, _ in rows:
        out_console.print(Text.assemble((f"cosine {value:.4f}", "bold"), f"  {Path(image).name}  ~  {name}"))
    out_console.print(Text(f"One map a caption: {place}"), soft_wrap=True)


@app.command(epilog="Example:  gamlens blocks resnet50")
def blocks(model: Annotated[str, typer.Argument(help=MODEL_HELP)], weights: Weights = None) -> None:
    """Which blocks and which embedding of a model are read. Names do not depend on weights, so none are downloaded."""
    with speaking():
        lens = make_lens(model, weights or (None if ".py:" in model else "random"), None, None)
        table = Table("block", "stride", "channels", "size", "read")
        for stage in lens.layout.stages:
            channels, height, width = stage.shape
            table.add_row(
                stage.name, str(stage.stride), str(channels), f"{height} x {width}", "yes" if stage.chosen else ""
            )
        out_console.print(table)
        out_console.print(f"embedding  {lens.embedding}  ({lens.layout.width} numbers)", highlight=False)
        out_console.print(f"pooling    {lens.layout.pooling}", highlight=False)
        aside = {stage.grid.aside for stage in lens.layout.stages if stage.grid is not None}
        if aside:
            out_console.print(f"tokens     {max(aside)} class and register tokens set aside", highlight=False)


@app.command(epilog="Example:  gamlens demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page and pictures.")] = Path("demo"),
) -> None:
    """Explain bundled photos with the embedded model: a page to look at, no download."""
    from gamlens.report import demo as show

    with speaking(), progress(False) as bar:
        task = bar.add_task("looking", total=show.STEPS)
        page = show.run(out, step=lambda text: bar.update(task, advance=1, description=text))
        bar.stop()
        out_console.print(f"Open {page}", highlight=False, soft_wrap=True)


def _show_classes(results: list[work.FileResult]) -> None:
    table = Table("file", "explained", "score", "the model's best guesses", box=None, pad_edge=False)
    for result in results:
        if result.error:
            continue
        guesses = ", ".join(f"{guess.name} {100 * guess.probability:.0f} %" for guess in result.top[:3])
        for number, (name, value) in enumerate(zip(result.names, result.scores, strict=True)):
            first = number == 0
            cells = (Path(result.file).name if first else "", name, f"{value:.2f}", guesses if first else "")
            table.add_row(*map(Text, cells))
    if table.row_count:
        out_console.print(table)
