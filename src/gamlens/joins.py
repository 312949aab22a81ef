"""Dense blocks, whose layers read all earlier ones joined: each join starts from the one before.

cat(a, b, c) after cat(a, b) is cat(cat(a, b), c): the same values, and a backward that adds up one or two gradients a
layer instead of one for every earlier layer. In a block of 32 layers that is 63 additions in place of 528.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Join(NamedTuple):
    parts: tuple[Tensor, ...]
    result: Tensor
    versions: tuple[int, ...]

    def begins(self, parts: Sequence[Tensor]) -> bool:
        """Whether `parts` go on from these, and nothing was written to since."""
        return (
            len(parts) > len(self.parts)
            and all(mine is theirs for mine, theirs in zip(self.parts, parts, strict=False))
            and tuple(tensor._version for tensor in (*self.parts, self.result)) == self.versions
        )


@contextmanager
def joined(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Hand `layers`, which join the list of maps they are given, one map in place of the list: in this thread, where a
    graph is recorded.
    """
    thread, last = threading.get_ident(), list[_Join]()

    def hand(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        parts = args[0] if args else None
        if threading.get_ident() != thread or not torch.is_grad_enabled():
            return None
        if not isinstance(parts, list) or len(parts) < 2 or not all(isinstance(part, Tensor) for part in parts):
            return None
        known = last.pop() if last and last[-1].begins(parts) else None
        shorter = [known.result, *parts[len(known.parts) :]] if known is not None else parts
        result = torch.cat(shorter, dim=1)
        versions = tuple(tensor._version for tensor in (*parts, result))
        last[:] = [_Join(tuple(parts), result, versions)]
        return (result, *args[1:])

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(hand).remove)
        yield
