"""GamlensError, GamlensWarning, what is said of old names and missing packages, and registries with near matches."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
OURS = ("gamlens", "contextlib", "functools", "torch")  # packages whose frames `warn` skips to find the user's line


class GamlensError(Exception):
    """The one exception that gamlens raises for a wrong argument, file, model or image.

    The message says what was wrong, what was found, and what to do.

    >>> import gamlens
    >>> try:
    ...     gamlens.fuse.FUSIONS["meen"]
    ... except gamlens.GamlensError as error:
    ...     print(error)
    There is no fusion 'meen': did you mean 'mean'? In Python a list with one weight per block may be given, too.
    """


class GamlensWarning(UserWarning):
    """The one warning that gamlens gives: the result can be used, but may not mean what you expect (a flat map)."""


class GamlensDeprecationWarning(GamlensWarning):
    """The warning about a name or an option that still works and will be removed in a later version.

    Tests of your own code find such names with `warnings.simplefilter("error", GamlensDeprecationWarning)`.
    """


def warn(message: str, category: type[GamlensWarning] = GamlensWarning) -> None:
    """Give a GamlensWarning that names the line of the user's code from which gamlens was called.

    The number of our own frames between that line and this one differs from call to call, so frames are skipped
    until one lies outside the packages of `OURS`.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def deprecated(old: str, *, instead: str, since: str, removed_in: str) -> None:
    """Warn, at the user's line, that something still works and will be removed.

    Args:
        old: What the user wrote, such as "Explanation.leave".
        instead: What to write in its place.
        since: The version that gives this warning first.
        removed_in: The version that will not have `old` any more.
    """
    warn(
        f"{old} is deprecated since gamlens {since} and will be removed in {removed_in}: use {instead}.",
        GamlensDeprecationWarning,
    )


def needs_package(what: str, package: str, *, extra: str, found: str = "") -> str:
    """The message about a package that is missing, in the one form that all such messages have.

    Args:
        what: What needs the package; the message begins with it.
        package: The package, by the name under which it is imported.
        extra: The extra of gamlens that installs it.
        found: What the attempt to import it said, if there was one.

    >>> needs_package("Reading Parquet", "pyarrow", extra="eval")
    "Reading Parquet needs the package 'pyarrow': pip install 'gamlens[eval]'."
    """
    return f"{what} needs the package {package!r}{found and f' ({found})'}: pip install 'gamlens[{extra}]'."


class Registry(dict[str, T]):
    """A dict of named entries. Looking up an unknown name raises a GamlensError that suggests the nearest names.

    Args:
        kind: What one entry is called in the error message, such as "method".
        entries: The entries by name.
        hint: A sentence about what else the user may do, added to the end of the error message.
    """

    def __init__(self, kind: str, entries: Mapping[str, T], *, hint: str = "") -> None:
        super().__init__(entries)
        self.kind, self.hint = kind, hint

    def __missing__(self, name: object) -> T:
        raise GamlensError(f"There is no {self.kind} {name!r}: {near(str(name), self)}{self.hint}")


def near(name: str, options: Iterable[str], *, most: int = 5) -> str:
    """Write the end of an error message about an unknown `name`: the options closest to it, or the first few options.

    Args:
        name: What the user wrote.
        options: The names that exist.
        most: How many of them are listed at most.

    >>> near("layer9", ["layer1", "layer4", "fc"])
    "did you mean 'layer4', 'layer1'?"
    >>> near("conv", ["layer1", "layer4", "fc"])
    "there are 'layer1', 'layer4', 'fc'."
    """
    known = list(dict.fromkeys(options))
    lower = {option.lower(): option for option in reversed(known)}
    close = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=most, cutoff=0.55)]
    close += [option for option in known if name and name.lower() in option.lower() and option not in close]
    if close:
        return "did you mean " + ", ".join(repr(match) for match in close[:most]) + "?"
    if not known:
        return "there are none to choose from."
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return "there are " + ", ".join(repr(option) for option in known[:most]) + more + "."


def readable(name: str) -> str:
    """A file name as text that can be written in UTF-8: bytes of the name that are not UTF-8 become escapes.

    Python holds such bytes as lone surrogates, which no file, page or terminal can encode.

    >>> readable("caf\\udce9.jpg")
    'caf\\\\xe9.jpg'
    """
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return name.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """A text for the terminal: `readable`, with control characters other than line breaks as escapes.

    A name of a file may hold them, and the terminal would obey them.

    >>> printable("red\\x1b[31m.jpg")
    'red\\\\x1b[31m.jpg'
    """
    safe = (char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in readable(text))
    return "".join(safe)


@contextmanager
def reworded(what: str, *errors: type[Exception], todo: str = "") -> Iterator[None]:
    """Turn exceptions raised inside this context into a GamlensError that reads "{what}: {exception}{todo}".

    Args:
        what: What could not be done, such as "Cannot read 'a.json'".
        errors: The exception types to turn; all of them if none is given. A GamlensError always passes unchanged.
        todo: What the user can do about it.
    """
    kinds = errors or (Exception,)
    try:
        yield
    except GamlensError:
        raise
    except kinds as error:
        raise GamlensError(f"{what}: {type(error).__name__}: {error}{todo}") from error


def attempt(call: Callable[..., T], *args: Any) -> T | GamlensError:
    """Return what call(*args) returns, or the GamlensError that it raises.

    Work on many items uses this so that one bad item does not end the work on the others.
    """
    try:
        return call(*args)
    except GamlensError as error:
        return error
