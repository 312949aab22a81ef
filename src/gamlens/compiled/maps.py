"""Map arithmetic compiled: a few kernels that read each block once, in place of a few dozen."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gamlens import fuse
from gamlens.compiled import split
from gamlens.fuse import BlockMaps, Fusion

Formula = Callable[..., Tensor]
_numbers = count()


def make_maps(formula: Formula, inputs: Sequence[Sequence[Tensor]], size: tuple[int, int], how: Fusion) -> BlockMaps:
    """What `fuse.make_maps` gives, compiled for these shapes; for any number of rows from the second number on."""
    if not isinstance(how, str) or not fuse.is_named(how):
        return fuse.make_maps(formula, inputs, size, how)
    shapes = tuple((tuple(t.shape[1:]), t.stride(), t.dtype, t.device) for tensors in inputs for t in tensors)
    return _compiled(formula, shapes, size, how)(inputs)


@lru_cache(maxsize=64)
def _compiled(formula: Formula, shapes: Any, size: tuple[int, int], how: str) -> Callable[..., BlockMaps]:
    """One compiled function per formula and shape.

    torch.compile keeps what it compiled by the code object of a function, and only a few versions of it. Each formula
    and shape therefore gets a code object of its own.
    """

    def run(inputs: Sequence[Sequence[Tensor]]) -> BlockMaps:
        made = fuse.make_maps(formula, inputs, size, how)
        return BlockMaps(made.blocks.clamp(0, 1), made.fused.clamp(0, 1), made.spans)  # a fast division may pass 1

    code = run.__code__.replace(co_name=f"maps_{next(_numbers)}")
    own = FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    made: Callable[..., BlockMaps] = torch.compile(own, backend=split.BACKEND)
    return made
