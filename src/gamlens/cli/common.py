"""What the commands share: how they are added, what they print, how far they are, errors for people, a Lens."""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.models import from_file

out_console = Console()
err_console = Console(stderr=True)
SECONDS_BETWEEN_LINES = 60.0
app = typer.Typer(
    name="gamlens",
    help="Why does a vision model think so? Saliency for classes and for pairs of images.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def command(example: str, *, of: typer.Typer = app, resumes: bool = False) -> Callable[..., Callable[..., None]]:
    """Add a function to the commands of `of`: errors are shown as lines, and its help ends with the example."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        epilog = f"Example:  gamlens {example}"
        return of.command(function.__name__, epilog=epilog)(errors_as_lines(resumes=resumes)(function))

    return add


def say(text: str | Text) -> None:
    """Print one line on standard output as it is: no markup, no wrapping."""
    out_console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)


def say_json(record: Any) -> None:
    typer.echo(json.dumps(record, indent=2))


def say_table(header: Sequence[str | Column], lines: Iterable[Sequence[str]], **style: Any) -> None:
    """Print a table on standard output; `style` is passed on to rich's Table."""
    table = Table(*header, **style)
    for line in lines:
        table.add_row(*map(Text, line))
    out_console.print(table)


def tell(kind: str, message: str, style: str) -> None:
    """Print one line for people on standard error, the message as it is."""
    err_console.print(Text.assemble((kind, style), "  ", message), highlight=False, soft_wrap=True)


def note(message: str) -> None:
    tell("note", message, "yellow")


def exit_with_failures(message: str) -> NoReturn:
    """End a command that did its work but could not do all of it."""
    err_console.print(Text(message), soft_wrap=True)
    raise typer.Exit(1)


@contextmanager
def errors_as_lines(*, resumes: bool = False) -> Iterator[None]:
    """Show errors and warnings of gamlens as one line each; any other exception is a defect and shows its traceback.

    `resumes` says that the command, stopped by Ctrl-C and started again, goes on where it was.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", GamlensWarning)
        said: set[str] = set()

        def say_once(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in said:
                said.add(str(message))
                note(str(message))

        warnings.showwarning = say_once
        try:
            yield
        except GamlensError as error:
            tell("error", str(error), "bold red")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            kept = "what is finished is kept; the same command goes on from there."
            tell("stopped", kept if resumes else "nothing of this is kept; the same command starts over.", "yellow")
            raise typer.Exit(130) from error


class TerminalProgress(Progress):
    """A bar on standard error; nothing is shown where that is no terminal, or with `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        hidden = quiet or not err_console.is_terminal
        super().__init__(*columns, console=err_console, transient=True, disable=hidden)


@contextmanager
def steps(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A bar for a known number of steps: call it with the name of each step as the step begins."""
    with TerminalProgress(quiet=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, description=name, advance=1)


class ItemProgress(TerminalProgress):
    """A bar for many items: call it with the number of items and of errors so far.

    It shows the rate, the time left and the errors. Where standard error is no terminal, it prints them as a line
    every minute.
    """

    def __init__(self, what: str, total: int) -> None:
        super().__init__()
        self.what, self.total = what, total
        self.task = self.add_task(what, total=total)
        self.began = self.said = time.monotonic()
        self.first: int | None = None

    def __call__(self, items: int, errors: int) -> None:
        if self.first is None:
            self.first, self.began = items, time.monotonic()
            if 1 < items < self.total:
                note(f"going on after {items} of {self.total} items")
        line = self.line(items, errors)
        self.update(self.task, completed=items, description=line)
        if not err_console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            err_console.print(f"{items} of {self.total} items, {line}", highlight=False, soft_wrap=True)

    def line(self, items: int, errors: int) -> str:
        """`localization: 12.3 items a second, 1:05:00 left, 2 errors`."""
        seconds = time.monotonic() - self.began
        done = items - (self.first or 0)
        parts = []
        if done and seconds > 0:
            left = round((self.total - items) * seconds / done)
            clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            parts = [f"{done / seconds:.1f} items a second", f"{clock} left"]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self.what}: {', '.join(parts)}" if parts else self.what


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


def lens_maker(
    model: str, weights: str | None, blocks: str | None, device: str | None, *, embedding: str | None = None
) -> Callable[[], Lens]:
    """`make_lens` to be called later, in any process: the files of the model and of its weights have absolute paths."""
    file, colon, name = model.rpartition(":")
    model = f"{Path(file).absolute()}{colon}{name}" if file.endswith(".py") else model
    weights = str(Path(weights).absolute()) if weights and Path(weights).is_file() else weights
    return partial(make_lens, model, weights, blocks, device, embedding=embedding)
