"""Which parameters a class of another package has, to know what it must be given and which options it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

SIMPLE = (bool, int, float, str, tuple, list, type(None))  # values that an option may have


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The named parameters of a function or method, without `self`."""
    found = inspect.signature(function).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: item for name, item in found.items() if item.kind in kinds and name != "self"}


def needed_by(function: Callable[..., Any]) -> set[str]:
    """The names of the parameters that have no default."""
    return {name for name, item in parameters_of(function).items() if item.default is item.empty}


def options_of(function: Callable[..., Any], hidden: Collection[str]) -> dict[str, Any]:
    """The parameters with a plain default, which a user may set: {name: default}, without those in `hidden`."""
    found = parameters_of(function).items()
    return {
        name: item.default
        for name, item in found
        if item.default is not item.empty and isinstance(item.default, SIMPLE) and name not in hidden
    }


def classes_of(module: Any, usable: Callable[[type], bool]) -> dict[str, type]:
    """The public classes of a module that can be used, by name."""
    found = {name: value for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_")}
    return {name: found[name] for name in sorted(found) if usable(found[name])}
