"""`fuse.make_maps` compiled: a few kernels that read each block once, in place of a few dozen."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gamlens import fuse
from gamlens.compiled import split
from gamlens.fuse import BlockMaps, Fusion, Lattices

Formula = Callable[..., Tensor]
_numbers = count()  # gives every compiled function a name of its own


def make_maps(
    formula: Formula,
    inputs: Sequence[Sequence[Tensor]],
    size: tuple[int, int],
    how: Fusion,
    lattices: Lattices = (),
) -> BlockMaps:
    """Do what `fuse.make_maps` does, by code that is compiled for the shapes of these inputs.

    The number of rows is not part of the shape: when it changes for the first time, torch.compile compiles once more,
    for any number of rows. Fusion by weights is not compiled.
    """
    if not isinstance(how, str) or not fuse.is_named(how):
        return fuse.make_maps(formula, inputs, size, how, lattices)
    shapes = tuple((tuple(t.shape[1:]), t.stride(), t.dtype, t.device) for tensors in inputs for t in tensors)
    return _compiled(formula, shapes, size, how, tuple(lattices))(inputs)


@lru_cache(maxsize=64)
def _compiled(
    formula: Formula, shapes: Any, size: tuple[int, int], how: str, lattices: Lattices
) -> Callable[..., BlockMaps]:
    """Return a compiled function for one formula and one set of shapes.

    torch.compile caches compiled code by the code object of a function, and gives up after a few versions of the same
    code object (`recompile_limit`). Each formula and set of shapes therefore gets a copy of `run` with its own code
    object.
    """

    def run(inputs: Sequence[Sequence[Tensor]]) -> BlockMaps:
        # str(): torch 2.6 cannot guard a look-up in FUSIONS by a name from outside of this function
        made = fuse.make_maps(formula, inputs, size, str(how), lattices)
        return BlockMaps(
            made.blocks.clamp(0, 1), made.fused.clamp(0, 1), made.spans
        )  # inexact fast division may exceed 1

    code = run.__code__.replace(co_name=f"maps_{next(_numbers)}")
    own = FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    made: Callable[..., BlockMaps] = torch.compile(own, backend=split.BACKEND)
    return made
