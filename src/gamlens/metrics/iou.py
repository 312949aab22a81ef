"""Intersection over union of boxes and of masks, at all thresholds at once.

Boxes are x0,y0,x1,y1 and half-open. The IoU of an item without ground truth is NaN, and means leave it out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_boxes, check_maps, check_masks, check_truths
from gamlens.metrics.metric import (
    MeasuredColumns,
    MetricInput,
    MetricValues,
    StoredColumns,
    at_own_threshold,
    counted_items,
)
from gamlens.metrics.thresholds import THRESHOLDS, best_threshold

MAPS_AT_ONCE = 128  # how many maps `mask_iou_grid` processes at once, which bounds its memory
IOU_LEVELS = (0.3, 0.5, 0.7)  # at which MaxBoxAccV2 counts a box as a hit


def box_iou(predicted: Tensor, truths: Sequence[Tensor]) -> Tensor:
    """The IoU with the best-matching ground-truth box: (N,4), N of (K_i,4) -> (N,).

    With T predicted boxes per item, (N,T,4) -> (N,T). A box without area has the IoU 0; an item without ground-truth
    box has NaN.

    >>> box_iou(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), [torch.tensor([[2.0, 0.0, 4.0, 4.0]])])
    tensor([0.5000])
    """
    check_boxes("Predicted boxes", predicted)
    check_truths(truths, len(predicted))
    predicted = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
    result = predicted.new_full(predicted.shape[:-1], torch.nan)
    if not truths or sum(map(len, truths)) == 0:
        return result
    grid = (1,) * (predicted.ndim - 2)
    truth = torch.cat([boxes.to(predicted) for boxes in truths]).view(-1, *grid, 4)
    item = torch.repeat_interleave(torch.tensor([len(boxes) for boxes in truths])).to(predicted.device)
    pairs = _overlap(predicted[item], truth)
    index = item.view(-1, *grid).expand_as(pairs)
    return result.scatter_reduce(0, index, pairs, "amax", include_self=False)


def boxes_at(maps: Tensor, thresholds: Sequence[float] | Tensor = THRESHOLDS) -> Tensor:
    """The tight box around all pixels >= t, for every t: (N,H,W), (T,) -> (N,T,4); zeros if there is no such pixel.

    A row of pixels is hit at t if and only if its maximum is >= t, so the map itself is read only once.

    >>> boxes_at(torch.tensor([[[0.0, 0.3, 0.0], [0.0, 0.9, 1.0]]]), [0.25, 1.0])
    tensor([[[1., 0., 3., 2.],
             [2., 1., 3., 2.]]])
    """
    check_maps(maps)
    grid = _thresholds(thresholds, maps)[:, None]
    rows, columns = maps.amax(dim=2)[:, None] >= grid, maps.amax(dim=1)[:, None] >= grid
    (y0, y1), (x0, x1) = _extent(rows), _extent(columns)
    return torch.stack([x0, y0, x1, y1], dim=2).to(torch.float32) * rows.any(dim=2, keepdim=True)


def iou_grid(maps: Tensor, truths: Sequence[Tensor], *, thresholds: Sequence[float] | Tensor = THRESHOLDS) -> Tensor:
    """IoU of the tight box around all pixels >= t, for every threshold t: (N,H,W), N of (K_i,4) -> (N,T)."""
    return box_iou(boxes_at(maps, thresholds), truths)


def mask_iou_grid(
    maps: Tensor, truth: Tensor, void: Tensor | None = None, *, thresholds: Sequence[float] | Tensor = THRESHOLDS
) -> Tensor:
    """IoU of the pixels >= t with a mask, `void` pixels left out, for every t: (N,H,W), bool (N,H,W) -> (N,T).

    The map is not compared with each t. Instead, pixels are counted once by the number of thresholds that they reach;
    a cumulative sum of the counts, from the largest number down, gives how many pixels are >= t for every t.
    """
    check_maps(maps)
    check_masks("truth", truth, maps)
    void = torch.zeros_like(truth) if void is None else void
    check_masks("void", void, maps)
    unsort = _thresholds(thresholds, maps).argsort()
    # kept[n, region, k]: how many pixels of the region reach at least k thresholds. Region 0 is outside, 1 inside.
    kept = pixel_counts(maps, truth, void, thresholds).flip(2).cumsum(dim=2).flip(2)
    union = kept[:, 0, 1:] + kept[:, 1, :1]
    iou = torch.where(kept[:, 1, :1] > 0, kept[:, 1, 1:] / union, torch.nan)
    return iou[:, unsort.argsort()]


def pixel_counts(maps: Tensor, truth: Tensor, void: Tensor, thresholds: Sequence[float] | Tensor) -> Tensor:
    """Count the pixels of each region by how many of the thresholds they reach: (N,H,W) each, (T,) -> (N,3,T+1) long.

    The regions are 0: outside the mask, 1: inside, 2: void.
    """
    grid = _thresholds(thresholds, maps).sort().values
    parts = (torch.split(tensor, MAPS_AT_ONCE) for tensor in (maps, truth, void))
    return torch.cat([_counts(*part, grid=grid) for part in zip(*parts, strict=True)])


def box_hits(grid: Tensor, *, at: float = 0.5) -> Tensor:
    """1 where IoU >= `at` (by default 0.5), else 0, NaN where there is no ground truth: (N,T) -> (N,T).

    MaxBoxAcc (Choe et al., CVPR 2020) is 100 x its mean over items at the threshold that is best for them.
    """
    return torch.where(grid.isnan(), torch.nan, (grid >= at).to(grid.dtype))


def box_accuracy(grid: Tensor, *, counted: Tensor | None = None, levels: Sequence[float] = IOU_LEVELS) -> Tensor:
    """The mean over the IoU levels 0.3, 0.5 and 0.7 of whether the box reaches the level, each level at the threshold
    that is best for these items: (N,T) -> (N,). The mean over the items is MaxBoxAccV2 (Choe et al., 2022).

    With `counted`, bool (N,), the thresholds are those that are best for these items. Items without ground truth are
    NaN.

    It differs from MaxBoxAccV2 of wsolevaluation in two ways: there are the 19 thresholds of THRESHOLDS in place of 100
    or 1000; and one box is compared per threshold, the evaluation's own (around all pixels >= t, or around the largest
    connected region), in place of the best one of the boxes around every contour.

    >>> box_accuracy(torch.tensor([[0.4, 0.6], [0.8, 0.2]]))
    tensor([0.3333, 1.0000])
    """
    hits = [box_hits(grid, at=level) for level in levels]
    best = [own[:, best_threshold(own if counted is None else own[counted])] for own in hits]
    return torch.stack(best).cumsum(dim=0)[-1] / len(levels)


def box_accuracy_value(stored: StoredColumns) -> MetricValues:
    """Compute MaxBoxAccV2 from the column of IoU, each level at the threshold that is best for the counted items."""
    grid, counted = stored.columns["iou"].double(), counted_items(stored.held_out)
    left_out = int((~counted).sum())
    why = "belong to the hold-out" if left_out else ""
    return MetricValues(100 * box_accuracy(grid, counted=counted), counted, left_out=left_out, why=why)


def measure_boxes(given: MetricInput) -> MeasuredColumns:
    """The IoU of the predicted boxes at every threshold, with the boxes themselves, predicted and true."""
    assert given.predicted is not None
    return {
        "iou": box_iou(given.predicted, given.boxes),
        "boxes": given.predicted.flatten(1).int(),
        "truth": [boxes.flatten().tolist() for boxes in given.boxes],
    }


def hits_value(stored: StoredColumns) -> MetricValues:
    """Compute MaxBoxAcc from the column of IoU, at the threshold that is best for the counted items themselves.

    This is its definition: unlike for IoU, the threshold is not chosen on held-out items.
    """
    return at_own_threshold(box_hits(stored.columns["iou"].double()), stored.held_out)


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    """IoU of boxes (...,4), broadcast; 0 where one has no area."""
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    both = sides.prod(dim=-1)
    union = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - both
    return torch.where(both > 0, both / torch.where(both > 0, union, 1), 0)


def _thresholds(thresholds: Sequence[float] | Tensor, maps: Tensor) -> Tensor:
    """The thresholds in the maps' precision, so that map >= t means the same everywhere: (T,)."""
    grid = torch.as_tensor(thresholds, dtype=maps.dtype, device=maps.device)
    if grid.ndim != 1 or len(grid) == 0 or not bool(grid.isfinite().all()):
        raise GamlensError(f"Thresholds are a row (T,) of finite numbers, found {thresholds!r}.")
    return grid


def _extent(hits: Tensor) -> tuple[Tensor, Tensor]:
    """First and one past the last True: (N,T,L) -> (N,T), (N,T)."""
    whole = hits.to(torch.uint8)
    return whole.argmax(dim=2), hits.shape[2] - whole.flip(2).argmax(dim=2)


def _counts(maps: Tensor, truth: Tensor, void: Tensor, *, grid: Tensor) -> Tensor:
    """Count the pixels of each region by how many of the sorted thresholds they reach: (N,H,W) -> (N,3,T+1).

    The regions are 0: outside the mask, 1: inside, 2: void.
    """
    width = len(grid) + 1
    region = torch.where(void, 2, truth.to(torch.int32))
    first = torch.arange(len(maps), dtype=torch.int32, device=maps.device)[:, None, None] * 3
    bucket = torch.bucketize(maps.contiguous(), grid, right=True, out_int32=True)
    cells = (first + region) * width + bucket
    return torch.bincount(cells.flatten(), minlength=len(maps) * 3 * width).view(len(maps), 3, width)
