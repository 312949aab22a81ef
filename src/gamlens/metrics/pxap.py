"""Average precision of the map's pixels, after PxAP of Choe et al., CVPR 2020: in the ground-truth boxes, item by item,
and on masks, all items together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps, check_masks, check_truths
from gamlens.metrics.iou import pixel_counts
from gamlens.metrics.metric import MeasuredColumns, MetricInput, MetricValues, StoredColumns

MAPS_SORTED_AT_ONCE = 32  # how many maps `pxap` sorts at once, which bounds its memory
LEVELS = 100  # PxAP on masks: pixels are counted by the thresholds 0, 1/100, ..., 1 that they reach
# How many pixels of the mask, and how many pixels that are not void, have their highest threshold at k/100.
PXAP_COLUMNS = {"pxap_positive": "[int32]", "pxap_pixels": "[int32]"}


def pxap(maps: Tensor, truths: Sequence[Tensor]) -> Tensor:
    """Average precision of finding the pixels of the boxes by the map: (N,H,W), N of (K_i,4) -> (N,) float64.

    A pixel is positive if its centre lies in any box x0,y0,x1,y1 (half-open) of its item, and its score is the value of
    the map. With precision P_t and recall R_t of all pixels >= t,

        AP = sum over the distinct values t of the map, from the highest, of (R_t - R_t') P_t,

    where t' is the next higher value (R_t' = 0 for the highest). Pixels with equal values enter together, so that their
    order does not matter; a constant map has the share of positive pixels. An item without a box, or whose boxes hold
    no pixel of the map, has NaN.

    PxAP of Choe et al. is the same sum with three differences: it counts the pixels of all images of a data set
    together, which gives one number instead of one per item; t runs over a grid of thresholds instead of all values of
    the map; and masks of the objects say which pixels are positive and which are ignored, instead of boxes. Its numbers
    are not comparable with these.

    >>> pxap(torch.tensor([[[0.9, 0.8], [0.7, 0.1]]]), [torch.tensor([[0.0, 0.0, 1.0, 2.0]])])
    tensor([0.8333], dtype=torch.float64)
    """
    check_maps(maps)
    check_truths(truths, len(maps))
    result = maps.new_full((len(maps),), torch.nan, dtype=torch.float64)
    for first in range(0, len(maps), MAPS_SORTED_AT_ONCE):
        part = slice(first, first + MAPS_SORTED_AT_ONCE)
        positive = pixels_in_boxes(truths[part], maps[part])
        result[part] = _average_precision(maps[part].flatten(1), positive.flatten(1))
    return result


def pxap_mask(maps: Tensor, truth: Tensor, void: Tensor | None = None) -> Tensor:
    """PxAP: average precision of finding the pixels of masks, over the pixels of all items together, with the influence
    of each item: (N,H,W), bool (N,H,W) -> (N,) float64.

    The mean over the items is exactly PxAP of Choe et al., theta: with precision P_t and recall R_t of the pixels >= t
    of all items,

        theta = sum over t = 1, 0.99, ..., 0 of (R_t - R_(t + 0.01)) P_t.

    `void` pixels are left out. theta is no mean of values of single items. To give it an interval all the same, item i
    has the value theta + c_i, where c_i = (n - 1) (theta - theta_i) less its mean over the n items, and theta_i is
    theta without item i. c_i is the jackknife's estimate of the item's influence: values below 0 or above 1 are
    possible, and the spread of their mean is that of theta. An item whose mask is empty has NaN and is not counted.

    wsolevaluation has 1000 thresholds in place of 100 and counts items with an empty mask.

    >>> pxap_mask(torch.tensor([[[0.9, 0.8], [0.7, 0.1]]]), torch.tensor([[[True, False], [True, False]]]))
    tensor([0.8333], dtype=torch.float64)
    """
    return pooled_average_precision(*level_counts(maps, truth, void))


def level_counts(maps: Tensor, truth: Tensor, void: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Count pixels by the highest threshold k/100 that they reach, k = 0..100; a value below 0 counts at k = 0.

    Shapes: (N,H,W), bool (N,H,W) -> the pixels of the mask and all pixels, void ones left out: int32 (N,101) each.
    """
    check_maps(maps)
    check_masks("truth", truth, maps)
    void = torch.zeros_like(truth) if void is None else void
    check_masks("void", void, maps)
    counts = pixel_counts(maps, truth, void, [k / LEVELS for k in range(1, LEVELS + 1)]).int()
    return counts[:, 1], counts[:, 0] + counts[:, 1]


def pooled_average_precision(positive: Tensor, pixels: Tensor) -> Tensor:
    """Average precision of all items together with the centred influence of each one, as in `pxap_mask`.

    Shapes: counts of positive and of all pixels per level, from the lowest level to the highest, (N,L), (N,L) -> (N,).
    Items without a positive pixel, or with NaN, have NaN and take no part.
    """
    if positive.ndim != 2 or positive.shape != pixels.shape:
        shapes = f"{tuple(positive.shape)} and {tuple(pixels.shape)}"
        raise GamlensError(f"Counts of positive and of all pixels have the same shape (N,L), found {shapes}.")
    positive, pixels = positive.double(), pixels.double()
    used = (positive.sum(dim=1) > 0) & pixels.isfinite().all(dim=1)
    found = torch.full_like(positive[:, 0], torch.nan)
    if not bool(used.any()):
        return found
    own = [counts[used] for counts in (positive, pixels)]
    whole = [counts.sum(dim=0) for counts in own]
    theta = _precision_of_counts(whole[0][None], whole[1][None])
    influence = torch.zeros_like(found[used])
    if len(influence) > 1:
        without = _precision_of_counts(whole[0] - own[0], whole[1] - own[1])
        influence = (len(influence) - 1) * (theta - without)
    found[used] = theta + (influence - influence.mean())
    return found


def measure_pxap_mask(given: MetricInput) -> MeasuredColumns:
    """Fill PXAP_COLUMNS with the counts of `level_counts`."""
    assert given.mask is not None
    return dict(zip(PXAP_COLUMNS, level_counts(given.maps, given.mask, given.void), strict=True))


def pxap_mask_value(stored: StoredColumns) -> MetricValues:
    """PxAP of all items of a table from their stored counts, with the influence of each item."""
    values = pooled_average_precision(*(stored.columns[name] for name in PXAP_COLUMNS))
    missing = int(values.isnan().sum())
    return MetricValues(100 * values, left_out=missing, why="have nothing to measure" if missing else "")


def pixels_in_boxes(truths: Sequence[Tensor], maps: Tensor) -> Tensor:
    """Whether the centre of a pixel lies in a box of its item: N of (K_i,4), (N,H,W) -> (N,H,W) bool."""
    padded = [boxes.to(maps.device, torch.float64) for boxes in truths]
    boxes = pad_sequence(padded, batch_first=True)[..., None]  # (N,K,4,1); the zeros that fill it up hold no pixel
    y, x = (torch.arange(size, dtype=torch.float64, device=maps.device) + 0.5 for size in maps.shape[1:])
    rows = (boxes[:, :, 1] <= y) & (y < boxes[:, :, 3])  # (N,K,H)
    columns = (boxes[:, :, 0] <= x) & (x < boxes[:, :, 2])  # (N,K,W)
    return torch.einsum("nkh,nkw->nhw", rows.float(), columns.float()) > 0  # in how many boxes a pixel lies


def _average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """Average precision of each row, NaN where no pixel is positive: (N,P), bool (N,P) -> (N,) float64."""
    scores, order = scores.sort(dim=1, descending=True)
    found = positive.gather(1, order).cumsum(dim=1)  # positives among the first 1, 2, ..., P pixels
    ends = torch.ones_like(positive)  # the last pixel of each value: only there all pixels >= t are counted
    ends[:, :-1] = scores[:, :-1] != scores[:, 1:]
    so_far = torch.where(ends, found, 0).cummax(dim=1).values
    gained = so_far.diff(dim=1, prepend=torch.zeros_like(so_far[:, :1]))  # positives of each value, at its last pixel
    precision = found.double() / torch.arange(1, scores.shape[1] + 1, device=scores.device)
    # Unlike sum, cumsum adds in the same order for any N, so that a value does not depend on the batch. 0 / 0 is NaN.
    return (gained * precision).cumsum(dim=1)[:, -1] / found[:, -1]


def _precision_of_counts(positive: Tensor, pixels: Tensor) -> Tensor:
    """Average precision of each row of counts per level, lowest level first: (M,L), (M,L) -> (M,)."""
    found, kept = (counts.flip(1).cumsum(dim=1) for counts in (positive, pixels))  # from the highest level down
    precision = found / kept.clamp(min=1)  # where nothing is kept, nothing is found either
    return (positive.flip(1) * precision).cumsum(dim=1)[:, -1] / found[:, -1]
