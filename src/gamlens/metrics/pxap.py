"""Average precision of the map's pixels in the ground-truth boxes, after PxAP of Choe et al., CVPR 2020."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gamlens.metrics._checks import check_maps, check_truths

MAPS_SORTED_AT_ONCE = 32  # how many maps `pxap` sorts at once, which bounds its memory


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
        positive = _in_any_box(truths[part], maps[part])
        result[part] = _average_precision(maps[part].flatten(1), positive.flatten(1))
    return result


def _in_any_box(truths: Sequence[Tensor], maps: Tensor) -> Tensor:
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
