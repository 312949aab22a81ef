"""Blocks of which a network reads only every second (or s-th) row and column, and maps made of the positions it reads.

A convolution of one pixel with stride 2, as the original ResNet has at the start of a stage, reads the positions 0, 2,
4, ... of the block before it and skips the others. The gradient of the skipped positions is exactly zero, whatever the
image shows, so a map of the whole block is a lattice of dots. `Lattice` says which positions are read; `Lattice.select`
takes them out of a block, and `Lattice.resize` puts a map of them where they lie in the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError, near

READINGS = ("read", "keep")  # use the positions that the network reads, or keep all positions of a block
LEAST_LIT = 0.5  # the share of a lattice's positions that must have been seen to be read


@dataclass(frozen=True)
class Lattice:
    """The positions (offset + step * i, offset + step * j) of a block, which are all that the network reads of it.

    Attributes:
        offset: The first row and the first column that are read.
        step: How many rows and how many columns lie between one that is read and the next; 1 if none is skipped.
    """

    offset: tuple[int, int]
    step: tuple[int, int]

    def select(self, block: Tensor) -> Tensor:
        """The positions that are read: (...,h,w) -> (...,h',w'), a view of the same values."""
        return block[..., self.offset[0] :: self.step[0], self.offset[1] :: self.step[1]]

    def resize(self, maps: Tensor, cells: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Resize maps of the positions that are read, so that every value lies where its position lies in the image.

        The centre of position p of a block with h rows lies at (p + 1/2) H / h of an image with H rows. Between the
        positions that are read, values are interpolated bicubically, as `fuse.resize` does for a whole block.

        Args:
            maps: (B,h',w'), at the positions that are read.
            cells: The height and width (h,w) of the whole block.
            size: The new height and width (H,W).

        Returns:
            (B,H,W).
        """
        for axis in (0, 1):
            pixels = torch.arange(size[axis], device=maps.device, dtype=maps.dtype)
            inside = (pixels + 0.5) * (cells[axis] / size[axis]) - 0.5  # in positions of the block, 0 to h - 1
            maps = _interpolate(maps, axis + 1, (inside - self.offset[axis]) / self.step[axis])
        return maps

    def record(self) -> dict[str, Any]:
        """What files say about it."""
        return {"offset": list(self.offset), "step": list(self.step)}

    def __str__(self) -> str:
        rows, columns = (f"every {_ordinal(step)}" if step > 1 else "every" for step in self.step)
        read = f"{rows} row and column" if rows == columns else f"{rows} row and {columns} column"
        return f"only {read} is read"


def _interpolate(maps: Tensor, dim: int, places: Tensor) -> Tensor:
    """Cubic interpolation along one dimension, at `places` (H,) counted in values of that dimension: n values -> H.

    The weights are those of torch's bicubic mode (a = -0.75); beyond the borders, the last value is repeated.
    `F.grid_sample` would do the same, but has no bicubic mode on Apple's GPUs.
    """
    first = places.floor()
    t, total = places - first, torch.zeros((), device=maps.device, dtype=maps.dtype)
    for shift, distance in ((-1, 1 + t), (0, t), (1, 1 - t), (2, 2 - t)):
        if shift in (0, 1):
            weight = (1.25 * distance - 2.25) * distance * distance + 1
        else:
            weight = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
        index = (first.long() + shift).clamp(0, maps.shape[dim] - 1)
        total = total + maps.index_select(dim, index) * (weight[:, None] if dim == 1 else weight)
    return total


def find_lattice(read: Tensor) -> Lattice | None:
    """The lattice that the network reads of a block, or None if it reads whole rows and columns or too little is known.

    Args:
        read: bool (h,w), whether the gradient of a position was not zero for any channel of any image that was tried.

    A lattice is found where the rows that are read have one distance from each other and reach from border to border,
    the columns too, one of the distances is at least 2, and at least half of the lattice was read. A position of the
    lattice may be missing, since a ReLU can switch one off; a position beside it may not be read in any image.
    """
    axes = [_progression(read.any(dim=1 - axis)) for axis in (0, 1)]
    rows, columns = axes
    if rows is None or columns is None or rows[1] == columns[1] == 1:
        return None
    lattice = Lattice((rows[0], columns[0]), (rows[1], columns[1]))
    on_it = lattice.select(read)
    return lattice if int(on_it.sum()) >= LEAST_LIT * on_it.numel() else None


def check_reading(lattice: str) -> None:
    """Raise an error that lists the values of the option `lattice`, unless this is one of them."""
    if lattice not in READINGS:
        raise GamlensError(f"lattice cannot be {lattice!r}: {near(str(lattice), READINGS)}")


def _progression(used: Tensor) -> tuple[int, int] | None:
    """The first index and the distance of the indices where `used` (n,) is true, if they are a lattice of all n."""
    places = used.nonzero()[:, 0].tolist()
    if len(places) == len(used):
        return 0, 1
    steps = {after - before for before, after in pairwise(places)}
    if len(steps) != 1 or (step := steps.pop()) == 1:
        return None  # nothing, a single place, or a part without gaps: a border that is not read
    reaches = places[0] < step and places[-1] + step >= len(used)
    return (places[0], step) if reaches else None


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth"}.get(number, f"{number}th")
