"""The command line: parse, one call, show."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gamlens import METHODS, MODELS, GamlensError, GamlensWarning, Lens, __version__, render
from gamlens.experiments import files as work
from gamlens.explanation import file_stem
from gamlens.fuse import FUSIONS
from gamlens.models import from_file
from gamlens.scores import CLASS_SCORES, PAIR_SCORES

app = typer.Typer(
    name="gamlens",
    help="Why does a vision model think so? Saliency for classes and for pairs of images.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
out_console = Console()
err_console = Console(stderr=True)

BLOCK_METHODS = [name for name, method in METHODS.items() if method.kind == "block"]

MODEL_HELP = f"{', '.join(MODELS)}; any classifier of torchvision; timm/NAME; or your own: file.py:build."
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
Weights = Annotated[str | None, typer.Option(help="A .safetensors or .pth file of weights, or 'random'.")]
Blocks = Annotated[str | None, typer.Option(help="Blocks by name, comma separated, in place of the found ones.")]
Method = Annotated[str, typer.Option(help="Method: " + ", ".join(METHODS) + ".")]
Number = Annotated[int, typer.Option("--n", "-n", help="How many of the last blocks to use.")]
Fuse = Annotated[str, typer.Option(help="How blocks are joined: " + ", ".join(FUSIONS) + ".")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for overlays, maps and JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps ...")]


@contextmanager
def speaking() -> Iterator[None]:
    """Errors and warnings as one line for people; anything else is a defect and shows its trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", GamlensWarning)
        said: set[str] = set()

        def say(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in said:
                said.add(str(message))
                err_console.print(f"[yellow]note[/]  {message}", highlight=False, soft_wrap=True)

        warnings.showwarning = say
        try:
            yield
        except GamlensError as error:
            err_console.print(f"[bold red]error[/]  {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out_console.print(f"gamlens {__version__}", highlight=False)
        raise typer.Exit


@app.command(epilog="Example:  gamlens classify photos/ 'more/*.jpg' --target 'tabby' --target lynx --out why")
def classify(
    paths: Annotated[list[str], typer.Argument(help="Image files, folders or globs.", show_default=False)],
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    blocks: Blocks = None,
    target: Annotated[list[str] | None, typer.Option("--target", "-t", help="Class name or number; repeat it.")] = None,
    method: Annotated[str, typer.Option(help="Method: " + ", ".join(BLOCK_METHODS) + ".")] = "gam",
    n: Number = 2,
    fuse: Fuse = "mean",
    score: Annotated[str, typer.Option(help="What is explained: " + ", ".join(CLASS_SCORES) + ".")] = "logit",
    out: Out = Path("gamlens-out"),
    json_: Json = False,
    device: Device = None,
) -> None:
    """Why this class? Explain images, one class or several each, the top class by default."""
    with speaking():
        found = work.find_images(paths)
        lens = make_lens(model, weights, blocks, device)
        wanted: list[str | int] | None = list(target) if target else None
        results: list[work.FileResult] = []
        recipe = work.Recipe(wanted, method, n, fuse, score)
        steps = work.classify_files(lens, found, recipe, out=out)
        with _progress(json_) as progress:
            task = progress.add_task("explaining", total=len(found))
            for result in steps:
                results.append(result)
                progress.advance(task)
                if result.error:
                    progress.console.print(f"[bold red]error[/]  {result.error}", highlight=False, soft_wrap=True)
        index = out / "index.html"
        if any(result.explanation for result in results):
            lead = f"{METHODS[method].title}, the last {n} blocks of `{lens.name}`, {score}."
            render.write(work.page(results, title="Why this class?", lead=lead), index)
        failed = sum(bool(result.error) for result in results)
        if json_:
            typer.echo(json.dumps([result.record() for result in results], indent=2))
        else:
            _show_classes(results)
            if failed < len(results):
                out_console.print(f"Pictures, maps and JSON are in {out}; look at {index}", highlight=False)
        if failed:
            err_console.print(f"{failed} of {len(results)} files could not be explained.", highlight=False)
            raise typer.Exit(1)


@app.command(epilog="Example:  gamlens compare cheetah.jpg lion.jpg --score dot --method gam -n 2")
def compare(
    a: Annotated[str, typer.Argument(help="An image.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Another image.", show_default=False)],
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
    """Why similar? Explain the similarity of two images on both of them."""
    with speaking():
        lens = make_lens(model, weights, blocks, device, embedding=embedding)
        result = lens.compare(a, b, score=score, method=method, n=n, fuse=fuse)
        place = out / f"{file_stem(Path(a).stem)}-{file_stem(Path(b).stem)}"
        written = result.save(str(place))
        value = float(result.scores[0])
        if json_:
            boxes = {side: getattr(result, side).boxes().tolist()[0] for side in "xy"}
            record = {"x": a, "y": b, "score": value, "boxes": boxes, "folder": str(place), "about": dict(result.about)}
            typer.echo(json.dumps(record, indent=2))
        else:
            out_console.print(f"[bold]{score} {value:.4f}[/]  {Path(a).name}  ~  {Path(b).name}", highlight=False)
            out_console.print(f"Both maps: {written[-1]}", highlight=False, soft_wrap=True)


@app.command(epilog="Example:  gamlens blocks resnet50 --weights random")
def blocks(model: Annotated[str, typer.Argument(help=MODEL_HELP)], weights: Weights = None) -> None:
    """Which blocks and which embedding of a model are read."""
    with speaking():
        lens = make_lens(model, weights, None, None)
        table = Table("block", "stride", "channels", "size", "read")
        for stage in lens.layout.stages:
            channels, height, width = stage.shape
            table.add_row(
                stage.name, str(stage.stride), str(channels), f"{height} x {width}", "yes" if stage.chosen else ""
            )
        out_console.print(table)
        out_console.print(f"embedding  {lens.embedding}  ({lens.layout.width} numbers)", highlight=False)


@app.command(epilog="Example:  gamlens demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page and pictures.")] = Path("demo"),
) -> None:
    """Explain bundled photos with the embedded model: a page to look at, no download."""
    from gamlens.experiments import demo as show

    with speaking(), _progress(False) as progress:
        task = progress.add_task("looking", total=show.STEPS)
        page = show.run(out, step=lambda text: progress.update(task, advance=1, description=text))
        progress.stop()
        out_console.print(f"Open {page}", highlight=False, soft_wrap=True)


def make_lens(
    model: str, weights: str | None, blocks: str | None, device: str | None, *, embedding: str | None = None
) -> Lens:
    """A Lens from command line options; `file.py:build` gives a model of the user's, or a whole Lens."""
    names = [name.strip() for name in blocks.split(",")] if blocks else None
    built = from_file(model) if ".py:" in model else model
    if isinstance(built, Lens):
        if weights or names or embedding or device:
            raise GamlensError(f"{model!r} gives a Lens, which has its own weights, blocks, embedding and device.")
        return built
    return Lens(built, weights=weights, blocks=names, embedding=embedding, device=device)


def _progress(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err_console, transient=True, disable=quiet or not err_console.is_terminal)


def _show_classes(results: list[work.FileResult]) -> None:
    table = Table("file", "explained", "score", "the model's best guesses", box=None, pad_edge=False)
    for result in results:
        if result.explanation is None:
            continue
        guesses: Any = ", ".join(f"{guess.name} {100 * guess.probability:.0f} %" for guess in result.top[:3])
        rows = list(zip(result.explanation.names, result.explanation.scores.tolist(), strict=True))
        for number, (name, value) in enumerate(rows):
            first = number == 0
            table.add_row(Path(result.file).name if first else "", name, f"{value:.2f}", guesses if first else "")
    if table.row_count:
        out_console.print(table)
