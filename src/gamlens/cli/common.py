"""What the commands share: the console, errors for people, options, and a Lens from them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from gamlens import METHODS, MODELS, GamlensError, GamlensWarning, Lens
from gamlens.fuse import FUSIONS
from gamlens.models import from_file

out_console = Console()
err_console = Console(stderr=True)

CLASS_METHODS = [name for name, method in METHODS.items() if method.kind != "pair"]

MODEL_HELP = (
    f"{', '.join(MODELS)}; any classifier of torchvision; timm/NAME; hf/ID or hf/FOLDER; or your own: file.py:build."
)
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
Weights = Annotated[str | None, typer.Option(help="A .safetensors or .pth file of weights, or 'random'.")]
Blocks = Annotated[str | None, typer.Option(help="Blocks by name, comma separated, in place of the found ones.")]
Method = Annotated[str, typer.Option(help="Method: " + ", ".join(METHODS) + ".")]
Number = Annotated[int, typer.Option("--n", "-n", help="How many of the last blocks to use.")]
Fuse = Annotated[str, typer.Option(help="How blocks are joined: " + ", ".join(FUSIONS) + ".")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for overlays, maps and JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps ...")]


def tell(kind: str, message: str, style: str) -> None:
    """One line for people on standard error, the message as it is."""
    err_console.print(Text.assemble((kind, style), "  ", message), highlight=False, soft_wrap=True)


@contextmanager
def speaking(*, resumes: bool = False) -> Iterator[None]:
    """Errors and warnings as one line for people; anything else is a defect and shows its trace.

    `resumes`: a command that was stopped goes on where it was.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", GamlensWarning)
        said: set[str] = set()

        def say(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in said:
                said.add(str(message))
                tell("note", str(message), "yellow")

        warnings.showwarning = say
        try:
            yield
        except GamlensError as error:
            tell("error", str(error), "bold red")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            kept = "what is finished is kept; the same command goes on from there."
            tell("stopped", kept if resumes else "nothing of this is kept; the same command starts over.", "yellow")
            raise typer.Exit(130) from error


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


def absolute(model: str) -> str:
    """`file.py:build` as any process finds it."""
    file, colon, name = model.rpartition(":")
    return f"{Path(file).absolute()}{colon}{name}" if file.endswith(".py") else model


def absolute_weights(weights: str) -> str:
    """A file of weights as any process finds it; another name as it is."""
    return str(Path(weights).absolute()) if Path(weights).is_file() else weights


def progress(quiet: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=err_console, transient=True, disable=quiet or not err_console.is_terminal)
