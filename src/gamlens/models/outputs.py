"""The class scores in whatever a model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gamlens.errors import GamlensError

Output = str | int | Callable[[Any], Tensor] | None


def pick(output: Any, how: Output) -> Tensor:
    """The tensor in a model's output: by key or attribute, by position, by a callable, or the output itself."""
    found = how(output) if callable(how) else output if how is None else _part(output, how)
    if isinstance(found, Tensor):
        return found
    raise GamlensError(
        f"The model returns {_kind(found)}, not a tensor: say which part holds the class scores, "
        "output='logits' or output=0."
    )


def _part(output: Any, how: str | int) -> Any:
    if isinstance(how, str) and not isinstance(output, Mapping) and hasattr(output, how):
        return getattr(output, how)
    try:
        return output[how]
    except (KeyError, IndexError, TypeError) as error:
        raise GamlensError(f"The model's output has no {how!r}: it is {_kind(output)}.") from error


def _kind(output: Any) -> str:
    if isinstance(output, dict):
        return f"a dict with {', '.join(map(repr, output))}"
    if isinstance(output, list | tuple):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
