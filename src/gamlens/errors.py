"""The one exception family, the one warning, and registries that know near matches of a mistyped name."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
OURS = ("gamlens", "contextlib", "functools", "torch")


class GamlensError(Exception):
    """What was wrong, what was found, and what to do."""


class GamlensWarning(UserWarning):
    """The result stands, but look at it before you trust it."""


def warn(message: str) -> None:
    """Give a GamlensWarning that names the line of the user's own code that led here, however deep the call is."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, GamlensWarning, stacklevel=level)


class Registry(dict[str, T]):
    """Named entries of one kind. Asking for a name that is not there is a GamlensError with the nearest names.

    Args:
        kind: What an entry is, for the error message: "method".
        entries: The entries by name.
        hint: What else the user may do, added to the error message.
    """

    def __init__(self, kind: str, entries: Mapping[str, T], *, hint: str = "") -> None:
        super().__init__(entries)
        self.kind, self.hint = kind, hint

    def __missing__(self, name: object) -> T:
        raise GamlensError(f"There is no {self.kind} {name!r}: {near(str(name), self)}{self.hint}")


def near(name: str, options: Iterable[str], *, most: int = 5) -> str:
    """The end of an error message: the options closest to `name`, or the first few of them.

    >>> near("layer9", ["layer1", "layer4", "fc"])
    "did you mean 'layer4', 'layer1'?"
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


@contextmanager
def reworded(what: str, *errors: type[Exception], todo: str = "") -> Iterator[None]:
    """Turns errors of these kinds, or any where none is named, into a GamlensError: `what`, the error, `todo`."""
    kinds = errors or (Exception,)
    try:
        yield
    except GamlensError:
        raise
    except kinds as error:
        raise GamlensError(f"{what}: {type(error).__name__}: {error}{todo}") from error


def attempt(call: Callable[..., T], *args: Any) -> T | GamlensError:
    """What call(*args) returns, or the GamlensError it raises: for work on many items where one may fail alone."""
    try:
        return call(*args)
    except GamlensError as error:
        return error
