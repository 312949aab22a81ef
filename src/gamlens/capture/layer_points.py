"""Names of tensors inside a network: which layer, its input or its output, and how its values are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gamlens.capture.nonblocking import indices_on
from gamlens.errors import GamlensError

INPUT = "input"
OUTPUT = "output"
NHWC = "nhwc"
TOKENS = "tokens"


@dataclass(frozen=True)
class TokenGrid:
    """Where the tokens of a transformer lie in the image.

    `order` holds the number of the token of each cell, row by row. Tokens without a place (class and register tokens)
    are left out. `count` is the number of all tokens.
    """

    height: int
    width: int
    order: tuple[int, ...]
    count: int

    @property
    def aside(self) -> int:
        """How many tokens have no place in the image: class and register tokens."""
        return self.count - len(self.order)

    def image(self, tokens: Tensor) -> Tensor:
        """Tokens (B,N,C), or (B,...,C) in groups, as a map (B,C,h,w)."""
        flat = tokens.flatten(1, -2)
        first = self.order[0]
        if self.order == tuple(range(first, first + len(self.order))):
            flat = flat[:, first : first + len(self.order)]
        else:
            flat = flat[:, indices_on(self.order, flat.device)]
        return flat.transpose(1, 2).reshape(len(flat), -1, self.height, self.width)


@dataclass(frozen=True)
class LayerPoint:
    """The name of a tensor inside one forward pass.

    `layer4` is what module layer4 returns; `fc:input` what module fc reads; `features:relu` what the function
    relu makes of features' output, though no module holds it; `output` is what the whole model returns. A tensor whose
    channels come last, (B,h,w,C), ends in `:nhwc`: `stages.3:nhwc`; tokens, (B,N,C), in `:tokens`: `blocks.11:tokens`.

    >>> LayerPoint.parse("features:relu")
    LayerPoint(module='features', reads_input=False, chain=('relu',), channels_last=False, tokens=False)
    >>> str(LayerPoint.parse("fc:input"))
    'fc:input'
    """

    module: str
    reads_input: bool = False
    chain: tuple[str, ...] = ()
    channels_last: bool = False
    tokens: bool = False

    @classmethod
    def parse(cls, text: str) -> LayerPoint:
        if not isinstance(text, str) or not text:
            raise GamlensError(f"A block is named by text such as 'layer4' or 'features:relu', not {text!r}.")
        module, *rest = text.split(":")
        last, tokens = rest[-1:] == [NHWC], rest[-1:] == [TOKENS]
        rest = rest[:-1] if last or tokens else rest
        if rest == [INPUT]:
            return cls(module, reads_input=True, channels_last=last, tokens=tokens)
        if INPUT in rest or "" in rest:
            raise GamlensError(
                f"Cannot read the block name {text!r}: write 'module', 'module:input' or 'module:function'."
            )
        return cls(module, chain=tuple(rest), channels_last=last, tokens=tokens)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def name(self) -> str:
        """The text that `parse` reads."""
        steps = (INPUT,) if self.reads_input else self.chain
        layout = (NHWC,) if self.channels_last else (TOKENS,) if self.tokens else ()
        return ":".join((self.module, *steps, *layout))


PIXELS = LayerPoint("", reads_input=True)  # what the whole model reads: the image


def function_name(func: Any) -> str:
    """The plain name of a torch function: `relu` for F.relu, torch.relu_ and Tensor.relu; `add` for +."""
    name = str(getattr(func, "__name__", func))
    if name == "boolean_dispatch" or name == "fn":
        name = str(getattr(func, "__qualname__", name))
    bare = name.strip("_")
    return {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "get": "getitem"}.get(bare, bare)


def only_tensor(output: Any) -> Tensor | None:
    """What a module returns: a tensor, or the first of a tuple with sizes at most, as transformer layers do."""
    if type(output) is tuple and output and all(item is None or _sizes(item) for item in output[1:]):
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _sizes(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(isinstance(number, int) for number in item)


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
