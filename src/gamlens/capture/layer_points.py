"""Name a tensor inside a network: which module, its input or its output, and the order of the tensor's dimensions."""

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
    """Which token of a transformer belongs to which cell of the image.

    Attributes:
        height, width: The size of the grid of cells.
        order: The index of the token of each cell, row by row, height * width numbers. Class and register tokens
            belong to no cell and do not occur.
        count: The number of all tokens, with class and register tokens.
    """

    height: int
    width: int
    order: tuple[int, ...]
    count: int

    @property
    def aside(self) -> int:
        """The number of tokens that belong to no cell: class and register tokens."""
        return self.count - len(self.order)

    def image_tokens(self, device: torch.device) -> Tensor:
        """Whether each token belongs to a cell of the image: (N,) of bool."""
        belongs = [False] * self.count
        for token in self.order:
            belongs[token] = True
        return torch.tensor(belongs).to(device, non_blocking=True)

    def image(self, tokens: Tensor) -> Tensor:
        """Arrange tokens as a map: (B,N,C), or (B,...,C) if they come in groups such as windows, -> (B,C,h,w).

        Consecutive tokens are sliced, which copies nothing; any other order is gathered by index.
        """
        flat = tokens.flatten(1, -2)
        first = self.order[0]
        if self.order == tuple(range(first, first + len(self.order))):
            flat = flat[:, first : first + len(self.order)]
        else:
            flat = flat[:, indices_on(self.order, flat.device)]
        return flat.transpose(1, 2).reshape(len(flat), -1, self.height, self.width)


@dataclass(frozen=True)
class LayerPoint:
    """The name of a tensor that one forward pass computes.

    As text, the forms are:

        layer4              the output of the module `layer4`
        fc:input            the first argument of the module `fc`
        features:relu       the result of the function `relu` on the output of `features`, where no module computes it
        output              what the whole model returns
        stages.3:nhwc       the output of `stages.3`, whose channels come last: (B,h,w,C)
        blocks.11:tokens    the output of `blocks.11`, which consists of tokens: (B,N,C)

    Attributes:
        module: The module's path, as in `model.get_submodule`.
        reads_input: Whether the tensor is the module's input rather than its output.
        chain: The functions applied to the module's output, one after another.
        channels_last: Whether the tensor is (B,h,w,C).
        tokens: Whether the tensor is (B,N,C).

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
        """Read a name in one of the forms that the class lists."""
        if not isinstance(text, str) or not text:
            raise GamlensError(f"A block is named by a string such as 'layer4' or 'features:relu'; found {text!r}.")
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


PIXELS = LayerPoint("", reads_input=True)  # the input of the whole model: the image


def function_name(func: Any) -> str:
    """Return the plain name of a torch function: `relu` for F.relu, torch.relu_ and Tensor.relu; `add` for +.

    Reading an attribute, such as x.mT, is called `getitem`, because it selects or moves elements like indexing.
    """
    name = str(getattr(func, "__name__", func))
    if name == "boolean_dispatch" or name == "fn":
        name = str(getattr(func, "__qualname__", name))
    bare = name.strip("_")
    return {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "get": "getitem"}.get(bare, bare)


def only_tensor(output: Any) -> Tensor | None:
    """Return the one tensor in what a module returned, or None if there is none or more than one.

    Transformer layers may return a tuple (tokens, (height, width), None, ...): its first item is the tensor if every
    other item is None or a sequence of whole numbers.
    """
    if type(output) is tuple and output and all(item is None or _sizes(item) for item in output[1:]):
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _sizes(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(isinstance(number, int) for number in item)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
