"""From activations and gradients to maps, in one go: method, resize, normalise, fuse; compiled where that is asked for.

Compiled it is a few kernels that read each block once, in place of a few dozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gamlens import fuse

BACKEND = "inductor"
Formula = Callable[..., Tensor]
_numbers = count()


class Made(NamedTuple):
    """Maps of every block and which of them are flat, (R,H,W) and (R,) each, and the fused one (R,H,W)."""

    blocks: list[Tensor]
    flat: list[Tensor]
    fused: Tensor


def make(formula: Formula, inputs: Sequence[Sequence[Tensor]], size: tuple[int, int], how: str) -> Made:
    """`inputs`: what the formula takes, for each block; they are brought to float32 or wider first."""
    found = [fuse.min_max(fuse.resize(formula(*map(at_least_float32, tensors)), size)) for tensors in inputs]
    blocks = [block for block, _ in found]
    return Made(blocks, [flat for _, flat in found], fuse.fuse(blocks, how))


def make_compiled(formula: Formula, inputs: Sequence[Sequence[Tensor]], size: tuple[int, int], how: str) -> Made:
    """The same, compiled for these shapes; for any number of rows from the second number on."""
    shapes = tuple((tuple(t.shape[1:]), t.stride(), t.dtype, t.device) for tensors in inputs for t in tensors)
    return _compiled(formula, shapes, size, how)(inputs)


@lru_cache(maxsize=64)
def _compiled(formula: Formula, shapes: Any, size: tuple[int, int], how: str) -> Callable[..., Made]:
    """Compiled code is kept by the function's code, a few a function: every formula and shape gets one of its own."""

    def run(inputs: Sequence[Sequence[Tensor]]) -> Made:
        return make(formula, inputs, size, how)

    code = run.__code__.replace(co_name=f"maps_{next(_numbers)}")
    own = FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    made: Callable[..., Made] = torch.compile(own, backend=BACKEND)
    return made


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
