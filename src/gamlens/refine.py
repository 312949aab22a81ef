"""Refine maps by a network's own self-similarity: carry them from the last block's coarse grid to earlier blocks.

The last block says what counts, on a grid of some 7 x 7 positions. Earlier blocks know where things end: positions of
one object have similar activations. So each position of an earlier block is given the mean of the map over the
positions that resemble it. Only activations are needed, which the forward has computed anyway: no further forward, no
gradient.

For a map m and a block with activation h (C,h,w), whose N = h w positions are p and q:

    phi(p) = (h(p) - mean of h over positions) / its length
    s(p,q) = <phi(p), phi(q)>                                 the similarity of two positions, from -1 to 1
    A(p,q) = max(0, s(p,q)) ^ gamma                           gamma = max(1, 10 * r)
    m'(p)  = sum_q A(p,q) m(q) / sum_q A(p,q)                 m resized to h x w before

r is the root mean square of s over all pairs of different positions. 1 / r^2 is about the number of dimensions that the
block's activations use: with few of them chance similarities are large, so the exponent, which suppresses them, grows.

m is carried to the block before the last, from there to the one before it, and so on. The refined map is the weighted
mean of m and of the last m', resized to the input's size and normalised (RSZ and NRM of the GAM paper):

    keep * m + (1 - keep) * NRM(RSZ(m'))                      keep = 1/2

Where the last m' is the same everywhere, as with a block of zeros, the map stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens import fuse
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32

T = TypeVar("T")
SPREAD_FACTOR = 10.0  # the exponent per unit of r; docs/refinement.md says how it was chosen
MOST_POSITIONS = 40 * 40  # a block with more positions is average-pooled to at most this many
ENTRIES_AT_ONCE = 2**24  # how many similarities are in memory at once; it limits the memory
SHARP_VIEWS = ("flip", 1.43, 2.0)  # the further views that sharp="views" stands for


@dataclass(frozen=True)
class Refinement:
    """How a map is refined.

    Attributes:
        blocks: How many blocks the map is carried to, counted backwards from the one before the last.
        keep: The weight of the map before refinement in the result, from 0 (the carried map alone) to 1 (no change).
            The more is kept, the closer the map stays to the evidence for the class; the less, the closer it follows
            the outlines of objects.

    >>> Refinement.parse(True), Refinement.parse(1), Refinement.parse(False)
    (Refinement(blocks=2, keep=0.5), Refinement(blocks=1, keep=0.5), None)
    """

    blocks: int = 2
    keep: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.blocks, bool) or not isinstance(self.blocks, int) or self.blocks < 1:
            raise GamlensError(
                f"refine={self.blocks!r}: give the number of blocks to refine by, 1 or more (2 is usual)."
            )
        if not isinstance(self.keep, int | float) or not 0 <= self.keep <= 1:
            raise GamlensError(f"keep={self.keep!r}: the weight of the map before refinement lies between 0 and 1.")

    @classmethod
    def parse(cls, given: Refine) -> Refinement | None:
        """What an option `refine=` means: True is the usual refinement, k that by k blocks, False or 0 none."""
        if given is None or given is False or (isinstance(given, int) and given == 0):
            return None
        if given is True:
            return cls()
        return given if isinstance(given, Refinement) else cls(given)

    def choose(self, blocks: Sequence[T]) -> tuple[T, ...]:
        """The blocks that the map is carried to, in the order in which it reaches them, of all `blocks` of a network.

        The usual number, 2, gives the one that there is where a network has two blocks.
        """
        earlier = blocks[:-1]
        if not earlier:
            raise GamlensError(
                "A map is refined by blocks before the last, and this model has one block only: leave refine out, or "
                "name earlier layers, too (blocks=)."
            )
        if self.blocks > len(earlier) and not (self.blocks == 2 and len(earlier) == 1):
            most = f"at most {len(earlier)}" if len(earlier) > 1 else "1"
            raise GamlensError(
                f"refine={self.blocks} blocks were asked for, and the model has {len(earlier)} before the last "
                f"({', '.join(map(str, earlier))}): give {most}."
            )
        return tuple(earlier[: -self.blocks - 1 : -1])

    def record(self, names: Sequence[str]) -> dict[str, Any]:
        """What results and files say about it; `names` are the blocks that were used."""
        return {"blocks": list(names), "keep": float(self.keep)}


Refine = bool | int | Refinement | None  # what an option `refine=` takes
Sharp = bool | str  # what an option `sharp=` takes: True, False, or "views"


def preset(sharp: Sharp, refine: Refine, views: Sequence[Any]) -> tuple[Refine, Sequence[Any]]:
    """Resolve `sharp=`, which stands for refine=True, and as "views" also for views=SHARP_VIEWS: (refine, views)."""
    if sharp is False:
        return refine, views
    if sharp not in (True, "views"):
        raise GamlensError(f"sharp={sharp!r}: give True or False, or 'views' for six views of each image as well.")
    if Refinement.parse(refine) is not None:
        raise GamlensError("sharp= stands for refine=True: leave one of them out.")
    if sharp == "views" and tuple(views):
        raise GamlensError("sharp='views' sets the views: leave views out, or give sharp=True.")
    return True, SHARP_VIEWS if sharp == "views" else views


def carried(maps: Tensor, activations: Sequence[Tensor]) -> Tensor:
    """Carry maps to one block after the other, and bring the result to the size of the maps: NRM(RSZ(m')).

    Args:
        maps: T maps for each of B images, (B,T,H,W), at the size of the model's input.
        activations: The blocks that the maps are carried to, in this order: (B,C,h,w) each.

    Returns:
        (B,T,H,W) in [0,1]. A map does not depend on other maps and images; a flat one becomes zeros.

    >>> h = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0, 1.0]]]])  # two groups of two positions
    >>> carried(torch.tensor([[[[1.0, 0.0, 0.2, 0.2]]]]), [h])
    tensor([[[[1., 1., 0., 0.]]]])
    """
    found = carry_on(maps, activations).flatten(0, 1)
    return finished(found, (int(maps.shape[-2]), int(maps.shape[-1])))[0].view(maps.shape)


def carry_on(maps: Tensor, activations: Sequence[Tensor]) -> Tensor:
    """Carry maps (B,T,H,W) of any size to one block after the other: (B,T,h,w), at the grid of the last of them."""
    found = at_least_float32(maps)
    for activation in activations:
        found = carry(found, activation)
    return found


def finished(maps: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Resize carried maps (R,h,w) to (R,H,W) and normalise them; also whether each was flat, (R,), and became zeros."""
    return fuse.min_max(maps if maps.shape[-2:] == size else fuse.resize(maps, size))


def on_grid(maps: Tensor, activation: Tensor) -> Tensor:
    """Resize maps (R,H,W) to the positions of a block, as `carry` does first."""
    grid = _grid(activation, MOST_POSITIONS)
    return F.interpolate(at_least_float32(maps)[:, None], size=grid, mode="bilinear", antialias=True)[:, 0]


def carry(maps: Tensor, activation: Tensor, *, at_once: int = ENTRIES_AT_ONCE) -> Tensor:
    """One step of the formula above: m' at every position of a block.

    Args:
        maps: T maps for each of B images, (B,T,H,W) of any size; they are resized to the block's grid.
        activation: (B,C,h,w). A block of more than MOST_POSITIONS positions is average-pooled to a smaller grid of the
            same shape first: positions are then groups of neighbours.
        at_once: How many similarities may be in memory at once. Images are worked on in groups of this size.

    Returns:
        (B,T,h,w), or at the smaller grid.
    """
    eps = torch.finfo(activation.dtype).eps
    activation = _at_most(at_least_float32(activation), MOST_POSITIONS)
    images, _, height, width = activation.shape
    positions = height * width
    values = F.interpolate(maps.to(activation.dtype), size=(height, width), mode="bilinear", antialias=True)
    # A column of ones beside the maps gives the sum of the weights in the same product.
    columns = torch.cat([values.flatten(2), values.new_ones(images, 1, positions)], dim=1).transpose(1, 2)
    directions, parts = _directions(activation, eps), []
    group = max(1, at_once // positions**2)
    for start in range(0, images, group):
        part = slice(start, start + group)
        weights = torch.bmm(directions[part].transpose(1, 2), directions[part])
        parts.append(torch.bmm(_sharpened(weights), columns[part]))
    sums = torch.cat(parts) if len(parts) > 1 else parts[0]
    return (sums[..., :-1] / sums[..., -1:]).transpose(1, 2).reshape(images, -1, height, width)


def _directions(activation: Tensor, eps: float) -> Tensor:
    """phi of every position, one unit vector each: (B,C,h,w) -> (B,C+1,hw).

    A position whose activation is the mean of the block, up to rounding, has no direction. The last channel is 1 there
    and 0 elsewhere, so that such positions are similar to each other and to no others. `eps` is the machine epsilon of
    the type in which the network computed the block.
    """
    flat = activation.detach().flatten(2)
    images, channels, positions = flat.shape
    found = flat.new_empty(images, channels + 1, positions)
    centred = torch.sub(flat, flat.mean(dim=2, keepdim=True), out=found[:, :channels])
    length = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    noise = 16 * eps * torch.linalg.vector_norm(flat, dim=1).amax(dim=1)[:, None, None]
    none = length <= noise
    centred.div_(length.masked_fill(none, math.inf))
    found[:, channels:] = none
    return found


def _sharpened(similarities: Tensor) -> Tensor:
    """max(0, s) ^ gamma of similarities (B,N,N), which are overwritten; gamma follows from their spread."""
    positions = similarities.shape[1]
    squares = torch.linalg.vector_norm(similarities, dim=(1, 2)).square() - positions  # s(p,p) = 1 is left out
    spread = (squares.clamp(min=0) / max(1, positions * (positions - 1))).sqrt()
    return similarities.clamp_(min=0).pow_((SPREAD_FACTOR * spread).clamp(min=1)[:, None, None])


def _at_most(activation: Tensor, positions: int) -> Tensor:
    """Average-pool a block (B,C,h,w) with more than so many positions to a smaller grid of about the same shape."""
    grid = _grid(activation, positions)
    return activation if grid == tuple(activation.shape[-2:]) else F.adaptive_avg_pool2d(activation, grid)


def _grid(activation: Tensor, positions: int) -> tuple[int, int]:
    """The height and width of a block (B,C,h,w), or of the smaller grid that it is pooled to."""
    height, width = int(activation.shape[-2]), int(activation.shape[-1])
    if height * width <= positions:
        return height, width
    factor = math.sqrt(positions / (height * width))
    rows = min(max(1, int(height * factor)), positions)
    return rows, min(max(1, int(width * factor)), positions // rows)
