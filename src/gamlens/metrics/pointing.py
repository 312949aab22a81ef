"""The pointing game: does the maximum of the map lie on the object? Zhang et al., IJCV 2018."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps, check_masks, check_truths
from gamlens.metrics.metric import MeasuredColumns, MetricInput


def peak(maps: Tensor) -> Tensor:
    """Column and row of the maximum, the first in reading order if there are several: (N,H,W) -> (N,2) long."""
    check_maps(maps)
    index = maps.flatten(1).argmax(dim=1)
    return torch.stack([index % maps.shape[2], index // maps.shape[2]], dim=1)


def pointing(maps: Tensor, truths: Sequence[Tensor], *, tolerance: float = 0) -> Tensor:
    """Whether the maximum of the map lies in a box, or at most `tolerance` pixels from one (by default 0).

    Shapes: (N,H,W), N of (K_i,4) -> (N,) bool.

    A box x0,y0,x1,y1 is half-open and holds the pixels whose centres lie in it. Every item needs a box.

    >>> pointing(torch.eye(3)[None], [torch.tensor([[0.0, 0.0, 2.0, 2.0]])])
    tensor([True])
    """
    _check_tolerance(tolerance)
    points = peak(maps)
    check_truths(truths, len(maps))
    bare = [row for row, truth in enumerate(truths) if len(truth) == 0]
    if bare:
        raise GamlensError(f"Item {bare[0]} has no ground-truth box to point at: leave it out first.")
    hits = [_in_boxes(point, truth, tolerance) for point, truth in zip(points, truths, strict=True)]
    return torch.stack(hits) if hits else points.new_zeros(0, dtype=torch.bool)


def pointing_mask(maps: Tensor, truth: Tensor, void: Tensor | None = None, *, tolerance: float = 0) -> Tensor:
    """Whether the maximum of the map lies on the mask, or at most `tolerance` pixels from it (by default 0).

    Shapes: (N,H,W), bool (N,H,W) -> (N,) bool.

    `void` pixels are neither object nor background, so they take no part: the maximum is that of the other pixels, and
    a void pixel is no pixel of the mask. Every item needs a pixel of the mask that is not void.
    """
    _check_tolerance(tolerance)
    check_maps(maps)
    check_masks("truth", truth, maps)
    if void is not None:
        check_masks("void", void, maps)
        maps, truth = maps.masked_fill(void, -torch.inf), truth & ~void
    points = peak(maps)
    bare = (~truth.flatten(1).any(dim=1)).nonzero()[:, 0].tolist()
    if bare:
        raise GamlensError(f"Item {bare[0]} has an empty mask, nothing to point at: leave it out first.")
    x = torch.arange(maps.shape[2], device=maps.device) - points[:, :1]
    y = torch.arange(maps.shape[1], device=maps.device) - points[:, 1:]
    reached = x.square()[:, None, :] + y.square()[:, :, None] <= tolerance**2
    return (reached & truth).flatten(1).any(dim=1)


def measure_pointing_mask(given: MetricInput) -> MeasuredColumns:
    """1 where the map points at the mask, else 0; NaN where the mask is empty because a crop cut the object off."""
    assert given.mask is not None
    assert given.void is not None
    some = (given.mask & ~given.void).flatten(1).any(dim=1)
    hits = torch.full((len(given.maps),), torch.nan, dtype=torch.float64)
    hits[some] = pointing_mask(given.maps[some], given.mask[some], given.void[some]).double()
    return {"pointing": hits}


def _in_boxes(point: Tensor, boxes: Tensor, tolerance: float) -> Tensor:
    """Whether the distance to the nearest pixel of a box is at most the tolerance: (2,), (K,4) -> () bool."""
    boxes = boxes.to(point.device, torch.promote_types(boxes.dtype, torch.float32))
    first, last = (boxes[:, :2] - 0.5).ceil(), (boxes[:, 2:] - 0.5).ceil() - 1
    away = torch.maximum(first - point, point - last).clamp(min=0)
    return (away.square().sum(dim=1) <= tolerance**2).any()


def _check_tolerance(tolerance: float) -> None:
    if not tolerance >= 0:
        raise GamlensError(f"A tolerance is a number of pixels, 0 or more, found {tolerance}.")
