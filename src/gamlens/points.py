"""Where in a network a tensor is read, and how such a place is written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError

INPUT = "input"
OUTPUT = "output"
NHWC = "nhwc"


@dataclass(frozen=True)
class Point:
    """A tensor inside one forward pass.

    `layer4` is what module layer4 returns; `fc:input` what module fc reads; `features:relu` what the function
    relu makes of features' output, though no module holds it; `output` is what the whole model returns. A tensor whose
    channels come last, (B,h,w,C), ends in `:nhwc`: `stages.3:nhwc`.

    >>> Point.parse("features:relu")
    Point(module='features', reads_input=False, chain=('relu',), channels_last=False)
    >>> str(Point.parse("fc:input"))
    'fc:input'
    """

    module: str
    reads_input: bool = False
    chain: tuple[str, ...] = ()
    channels_last: bool = False

    @classmethod
    def parse(cls, text: str) -> Point:
        if not isinstance(text, str) or not text:
            raise GamlensError(f"A block is named by text such as 'layer4' or 'features:relu', not {text!r}.")
        module, *rest = text.split(":")
        last = rest[-1:] == [NHWC]
        rest = rest[:-1] if last else rest
        if rest == [INPUT]:
            return cls(module, reads_input=True, channels_last=last)
        if INPUT in rest or "" in rest:
            raise GamlensError(
                f"Cannot read the block name {text!r}: write 'module', 'module:input' or 'module:function'."
            )
        return cls(module, chain=tuple(rest), channels_last=last)

    def __str__(self) -> str:
        steps = (INPUT,) if self.reads_input else self.chain
        return ":".join((self.module, *steps, *((NHWC,) if self.channels_last else ())))


PIXELS = Point("", reads_input=True)
"""What the whole model reads: the image."""


def function_name(func: Any) -> str:
    """The plain name of a torch function: `relu` for F.relu, torch.relu_ and Tensor.relu; `add` for +."""
    name = str(getattr(func, "__name__", func))
    if name == "boolean_dispatch" or name == "fn":
        name = str(getattr(func, "__qualname__", name))
    bare = name.strip("_")
    return {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "get": "getitem"}.get(bare, bare)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
