"""The one exception family, the one warning, and near matches for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GamlensError(Exception):
    """What was wrong, what was found, and what to do."""


class GamlensWarning(UserWarning):
    """The result stands, but look at it before you trust it."""


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
