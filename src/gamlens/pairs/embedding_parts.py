"""Split an embedding over the positions of a block: what does each position of the image add to it?

Let f be the part of the network from a block to the embedding, h the activations of an image at that block, and b those
of a baseline. Along the straight line h(t) = b + t (h - b), with J the Jacobian of f,

    f(h) - f(b) = integral over t from 0 to 1 of J(h(t)) (h - b) dt = sum over positions p of F_p,
    F_p = integral of J(h(t)) (h - b)_p dt,

where (h - b)_p is h - b at position p and zero elsewhere. These are integrated gradients (Sundararajan et al., ICML
2017) of every number of the embedding at once. J times a direction is one forward-mode derivative, so F costs one of
them per position and step, however long the embedding is. With t = u^3 the integral becomes one of 3 u^2 J(h(u^3)),
which stays finite where J grows like t^(-2/3) at the baseline, as roots of means do (generalised-mean pooling); it is
computed as a Gauss-Legendre sum over `steps` values of u.

If the embedding is a multiple of the average of the block, F_p is that multiple of (h - b)_p / (number of positions):
exact, and nothing is run. The baseline is 0, or "average": activations that are everywhere the average over all
positions of both images of a pair. Compared with it, a place has a part only as far as it differs from what both images
have everywhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gamlens.capture.layer_points import NHWC, TokenGrid
from gamlens.capture.tail import NetworkTail
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32

ZEROS, BLANK, AVERAGE, AUTO_BASELINE = "zeros", "blank", "average", "auto"
BASELINES = (AUTO_BASELINE, ZEROS, BLANK, AVERAGE)
POOLING_TOLERANCE = 0.02  # how far an embedding may be from a multiple of the average, relative to its length
MOST_INTEGRAL_STEPS = 1000
PROBE_STEPS = 20  # the largest number of steps by which a baseline is chosen
CLOSE_ENOUGH = 0.02  # how large a part of the change of an embedding the integral from zeros may miss
TAIL_TOLERANCE = 0.02  # how far the tail's embedding of a block may be from the network's, relative to its length
BYTES_AT_ONCE = 128 << 20  # how large any tensor of the rows that run together is; its tangents take as much
BYTES_AT_ONCE_ON_GPU = 4 << 30


class CellLayout(NamedTuple):
    """Which positions of a block belong to which cell. All cells are equally large.

    Attributes:
        cells: The number of rows and columns of cells, (gh,gw).
        rows, columns: How much of each row and column of positions lies in each row and column of cells, (gh,h) and
            (gw,w): 1 and 0, or parts of 1 where the border of two cells runs through a position.
        masks: How much of each position lies in each cell, (G,...), to be multiplied by a block as it is laid out in
            the network. Behind the gh * gw cells follows one more for tokens that lie nowhere in the image, if there
            are any.
        channel: Which dimension of a block as it is laid out in the network holds its channels.
    """

    cells: tuple[int, int]
    rows: Tensor
    columns: Tensor
    masks: Tensor
    channel: int = 0

    @property
    def has_aside(self) -> bool:
        """Whether there are tokens that lie nowhere in the image: class and register tokens."""
        return len(self.masks) > math.prod(self.cells)


class EmbeddingParts(NamedTuple):
    """An embedding as a sum: `parts` over the cells, plus `aside`, plus `baseline`, up to an error of the integral.

    Attributes:
        parts: What each cell adds, (gh,gw,D).
        aside: What class and register tokens add, (D,).
        baseline: The embedding of the baseline, (D,), measured by a forward of its own.
        name: The name of the baseline, one of BASELINES, or "given".
        exact: Whether the parts follow from average pooling, without an integral.
    """

    parts: Tensor
    aside: Tensor
    baseline: Tensor
    name: str
    exact: bool


def positions_of(block: Tensor, name: str, grid: TokenGrid | None, most: int | None) -> CellLayout:
    """Divide the positions of a block into at most `most` x `most` cells of neighbours; one each if it is None.

    Args:
        block: One row of the block as it is laid out in the network: (C,h,w), (h,w,C) or tokens (...,C).
        name: The name of the block, which tells how it is laid out.
        grid: Which token lies where in the image; None if the block has no tokens.
        most: The largest number of rows and of columns of cells.
    """
    last = name.endswith(f":{NHWC}")
    if grid is not None:
        height, width = grid.height, grid.width
    else:
        height, width = (block.shape[0], block.shape[1]) if last else (block.shape[1], block.shape[2])
    rows, columns = (overlaps(side, side if most is None else min(side, most)).to(block) for side in (height, width))
    cells, count = (len(rows), len(columns)), len(rows) * len(columns)
    masks = (rows[:, None, :, None] * columns[None, :, None, :]).view(count, height, width)
    if grid is None:
        return CellLayout(cells, rows, columns, masks[..., None] if last else masks[:, None], -1 if last else 0)
    of_token = masks.new_zeros(count + bool(grid.aside), grid.count)
    of_token[:count, torch.tensor(grid.order, device=block.device)] = masks.flatten(1)
    if grid.aside:  # class and register tokens: the last cell
        of_token[count] = (of_token[:count].sum(dim=0) == 0).to(block.dtype)
    return CellLayout(cells, rows, columns, of_token.view(len(of_token), *block.shape[:-1], 1), -1)


def overlaps(positions: int, cells: int) -> Tensor:
    """How much of each position lies in each cell along one side of an image, (cells,positions); columns add up to 1.

    >>> overlaps(3, 2)
    tensor([[1.0000, 0.5000, 0.0000],
            [0.0000, 0.5000, 1.0000]], dtype=torch.float64)
    """
    start, first = torch.arange(positions) * cells, (torch.arange(cells) * positions)[:, None]  # in whole numbers
    inside = torch.minimum(start + cells, first + positions) - torch.maximum(start, first)
    return inside.clamp(min=0).double() / cells


def pooled_scale(activation: Tensor, embedding: Tensor, eps: float) -> Tensor | None:
    """The number c (a scalar tensor) in embedding = c * mean_p h_p; None if the embedding is no multiple of the mean.

    With average pooling it is 1. With sum pooling, and if the average is brought to length 1, it is another number.

    Args:
        activation: The last block of one image, (C,u,v).
        embedding: Its embedding, (D,).
        eps: The machine epsilon of the precision in which the network computed the embedding.
    """
    if len(activation) != len(embedding):
        return None
    mean = activation.mean(dim=(1, 2))
    tiny = torch.finfo(mean.dtype).tiny
    scale = (embedding @ mean) / (mean @ mean).clamp(min=tiny)
    if len(embedding) == 1:  # any number is a multiple of any other: only the average itself is told from the rest
        scale = torch.ones_like(scale)
    off = float((embedding - scale * mean).norm() / embedding.norm().clamp(min=tiny))
    return scale if off <= min(1000 * eps, POOLING_TOLERANCE) else None


def pooled_parts(
    activation: Tensor, scale: Tensor, positions: CellLayout, average: Tensor | None = None
) -> EmbeddingParts:
    """The parts of an embedding that is `scale` times the average of the block (C,u,v): exact, without a forward.

    The baseline is 0, or `average` (C,) at every position.
    """
    zero = activation.new_zeros(len(activation))
    start, name = (zero, ZEROS) if average is None else (average, AVERAGE)
    scaled = (activation - start[:, None, None]) * (scale / math.prod(activation.shape[1:]))
    parts = positions.rows.to(scaled) @ scaled @ positions.columns.to(scaled).T  # (C,gh,gw)
    return EmbeddingParts(parts.permute(1, 2, 0), zero, start * scale, name, True)


def average_activation(block: Tensor, layout: CellLayout) -> Tensor:
    """Activations that are everywhere the average over the positions of a block, laid out as the block is.

    Class and register tokens have an average of their own.
    """
    count = math.prod(layout.cells)
    weights = [layout.masks[:count].sum(dim=0), layout.masks[count:].sum(dim=0)]  # of positions, and of other tokens
    found = torch.zeros_like(block)
    for own in weights:
        others = [dim for dim in range(found.ndim) if dim != layout.channel % found.ndim]
        if bool((total := own.sum()) > 0):
            found = found + own * ((block * own).sum(dim=others, keepdim=True) / total)
    return found


def integrated_parts(
    tail: NetworkTail, block: Tensor, embedding: Tensor, positions: CellLayout, *, steps: int, baseline: str | Tensor
) -> EmbeddingParts:
    """The parts of any embedding, by integrated Jacobians.

    Args:
        tail: The network after the block.
        block: One row of the block as it is laid out in the network.
        embedding: The embedding (D,) that the network computed of the image, which the tail must give again.
        positions: The cells, and the tokens that lie nowhere.
        steps: At how many points of the line from the baseline the Jacobian is computed.
        baseline: "zeros" (activations of 0), "blank" (those of an image of the mean colour), a tensor that has the
            shape of `block` or can be expanded to it, or "auto": zeros, unless the integral from there misses a part of
            the embedding in these steps (as with layers that normalise their input, which jump at 0), and then blank.
            The baseline "average" is given as a tensor, see `average_activation`.
    """
    again = tail.embed_measured(block[None])[0]
    if float((again - embedding).norm()) > TAIL_TOLERANCE * float(embedding.norm()):
        raise GamlensError(
            f"The embedding does not follow from block {tail.point.name!r} alone: another part of the network is "
            "joined to it later. Name the last layer before pooling as the last of blocks=, or another embedding=."
        )
    start, name, at_start = _baseline(tail, block, again, baseline, steps)
    found = _integral(tail, start, block - start, positions.masks, steps)
    if not bool(found.isfinite().all()):
        raise GamlensError(
            f"The layers after block {tail.point.name!r} have no finite derivative on the way from the baseline "
            f"{name!r}, so the embedding cannot be split over positions: give another baseline=, or another embedding=."
        )
    count, at_start = math.prod(positions.cells), at_least_float32(at_start)
    aside = found[count] if positions.has_aside else torch.zeros_like(at_start)
    return EmbeddingParts(found[:count].view(*positions.cells, -1), aside, at_start, name, False)


def checked_count(name: str, value: Any, most: int | None = None) -> int:
    """A whole number of at least 1, and of at most `most`, that was given as the argument `name`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1 or (most is not None and value > most):
        limits = "of at least 1" if most is None else f"from 1 to {most}"
        raise GamlensError(f"{name}={value!r:.80}: give a whole number {limits}.")
    return int(value)


def check_baseline(baseline: str | Tensor) -> None:
    """Raise an error if `baseline` is neither a tensor nor one of BASELINES."""
    if not isinstance(baseline, Tensor) and not (isinstance(baseline, str) and baseline in BASELINES):
        given = repr(baseline) if isinstance(baseline, str | int | float) else f"a {type(baseline).__name__}"
        raise GamlensError(f"baseline={given:.80}: give one of {', '.join(BASELINES)}, or a tensor.")


def _baseline(
    tail: NetworkTail, block: Tensor, end: Tensor, baseline: str | Tensor, steps: int
) -> tuple[Tensor, str, Tensor]:
    """The activations of the baseline, its name, and its embedding (D,)."""
    if isinstance(baseline, Tensor):
        try:
            start = baseline.to(block).expand_as(block)
        except RuntimeError as error:
            raise GamlensError(
                f"A baseline has the shape of the block, {tuple(block.shape)}, or one that can be expanded to it; "
                f"found {tuple(baseline.shape)}."
            ) from error
        return start, "given", tail.embed(start[None])[0]
    if baseline != BLANK:
        start = torch.zeros_like(block)
        at_start = tail.embed(start[None])[0]
        if baseline == ZEROS:
            return start, ZEROS, at_start
        change = end - at_start
        whole = torch.ones_like(block)[None]
        missed = (_integral(tail, start, block, whole, min(steps, PROBE_STEPS))[0] - change).norm()
        if bool(at_start.isfinite().all()) and float(missed) <= CLOSE_ENOUGH * float(change.norm()):
            return start, ZEROS, at_start
    start = tail.activation(tail.blank).to(block)
    return start, BLANK, tail.embed(start[None])[0]


def _integral(tail: NetworkTail, start: Tensor, change: Tensor, masks: Tensor, steps: int) -> Tensor:
    """The integral of J(start + t change) (change * mask) over t from 0 to 1, for each of G masks: (G,D).

    Rows of `steps` x G activations run through the tail: as many at once as keep every tensor below BYTES_AT_ONCE, and
    half as many whenever the memory of the device does not suffice.
    """
    places, weights = np.polynomial.legendre.leggauss(steps)
    u = (places + 1) / 2
    precise = at_least_float32(change.new_empty(0))  # networks of half precision run as they are; sums need more
    times, shares = (torch.from_numpy(numbers).to(precise) for numbers in (u**3, 3 * u**2 * weights / 2))
    groups = len(masks)
    memory = BYTES_AT_ONCE_ON_GPU if change.is_cuda else BYTES_AT_ONCE
    at_once = max(1, memory // max(1, change.numel() * change.element_size(), tail.row_bytes))
    total: Tensor | None = None
    first, count = 0, steps * groups
    while first < count:
        row = torch.arange(first, min(first + at_once, count), device=change.device)
        step, group = row // groups, row % groups
        t = times[step].to(change).view(-1, *[1] * change.ndim)
        try:
            _, slope = tail.jvp(start + t * change, change * masks[group])
        except torch.OutOfMemoryError:
            if len(row) == 1:
                raise
            at_once = len(row) // 2
            continue
        first += len(row)
        slope = at_least_float32(slope)
        total = slope.new_zeros(groups, slope.shape[1]) if total is None else total
        total.index_add_(0, group, slope * shares[step][:, None].to(slope))
    assert total is not None
    return total
