"""How much of the map lies on the object: relevance mass and rank accuracy (Arras et al., Information Fusion 2022), and
the energy-based pointing game of Score-CAM (Wang et al., CVPR Workshops 2020), which is the mass in boxes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gamlens.metrics._checks import check_maps, check_masks, check_truths
from gamlens.metrics._sums import row_sums
from gamlens.metrics.pxap import pixels_in_boxes

MAPS_RANKED_AT_ONCE = 32  # how many maps are sorted or converted to float64 at once, which bounds the memory


def relevance_mass(maps: Tensor, truth: Tensor, void: Tensor | None = None) -> Tensor:
    """The share of the map's sum that lies on the mask, `void` pixels left out: (N,H,W), bool (N,H,W) -> (N,) float64.

        sum over the mask of map / sum over all pixels of map

    A map of zeros has 0: nothing of it points at the object. An item whose mask is empty has NaN.

    >>> relevance_mass(torch.tensor([[[0.5, 0.25], [0.25, 0.0]]]), torch.tensor([[[True, False], [False, True]]]))
    tensor([0.5000], dtype=torch.float64)
    """
    return _in_parts(_mass, maps, truth, void)


def relevance_rank(maps: Tensor, truth: Tensor, void: Tensor | None = None) -> Tensor:
    """Of the K highest pixels, the share that lies on the mask of K pixels: (N,H,W), bool (N,H,W) -> (N,) float64.

    `void` pixels are left out. If several pixels have the K-th highest value, as many of them as are still wanted are
    taken at random, and the share is the expected one, so that the order of pixels does not matter: a flat map has the
    mask's share of the pixels. An item whose mask is empty has NaN.

    >>> relevance_rank(torch.tensor([[[0.9, 0.2], [0.2, 0.1]]]), torch.tensor([[[True, True], [False, False]]]))
    tensor([0.7500], dtype=torch.float64)
    """
    return _in_parts(_rank, maps, truth, void)


def energy_pointing(maps: Tensor, truths: Sequence[Tensor]) -> Tensor:
    """The share of the map's sum that lies in the boxes of the item: (N,H,W), N of (K_i,4) -> (N,) float64.

    A pixel belongs to a box x0,y0,x1,y1 (half-open) if its centre lies in it. A map of zeros has 0. An item without a
    box, or whose boxes hold no pixel, has NaN.

    >>> energy_pointing(torch.tensor([[[0.5, 0.25], [0.25, 0.0]]]), [torch.tensor([[0.0, 0.0, 1.0, 2.0]])])
    tensor([0.7500], dtype=torch.float64)
    """
    return relevance_mass(maps, _masks_of_boxes(maps, truths))


def relevance_rank_boxes(maps: Tensor, truths: Sequence[Tensor]) -> Tensor:
    """Of the K highest pixels, the share that lies in the boxes, which hold K pixels: (N,H,W), N of (K_i,4) -> (N,).

    The boxes are as in `energy_pointing`, and equal values are treated as in `relevance_rank`.
    """
    return relevance_rank(maps, _masks_of_boxes(maps, truths))


def _masks_of_boxes(maps: Tensor, truths: Sequence[Tensor]) -> Tensor:
    check_maps(maps)
    check_truths(truths, len(maps))
    return pixels_in_boxes(truths, maps) if len(maps) else torch.zeros_like(maps, dtype=torch.bool)


def _in_parts(
    rule: Callable[[Tensor, Tensor, Tensor], Tensor], maps: Tensor, truth: Tensor, void: Tensor | None
) -> Tensor:
    """Apply a rule to some maps at a time: its arguments are pixels (N,P), positive and counted, bool (N,P)."""
    check_maps(maps)
    check_masks("truth", truth, maps)
    if void is not None:
        check_masks("void", void, maps)
    found = maps.new_full((len(maps),), torch.nan, dtype=torch.float64)
    for first in range(0, len(maps), MAPS_RANKED_AT_ONCE):
        part = slice(first, first + MAPS_RANKED_AT_ONCE)
        positive = truth[part].flatten(1)
        counted = torch.ones_like(positive) if void is None else ~void[part].flatten(1)
        found[part] = rule(maps[part].flatten(1), positive & counted, counted)
    return found


def _mass(values: Tensor, positive: Tensor, counted: Tensor) -> Tensor:
    values = values.double()
    inside, whole = (row_sums(torch.where(some, values, 0)) for some in (positive, counted))
    share = torch.where(whole > 0, inside / torch.where(whole > 0, whole, 1), 0)
    return torch.where(positive.any(dim=1), share, torch.nan)


def _rank(values: Tensor, positive: Tensor, counted: Tensor) -> Tensor:
    size = positive.sum(dim=1, keepdim=True)  # K of every item, (N,1)
    values = values.masked_fill(~counted, -torch.inf)
    last = values.sort(dim=1, descending=True).values.gather(1, (size - 1).clamp(min=0))  # the K-th highest value
    above, level = values > last, values == last
    taken = above.sum(dim=1)
    share = (size[:, 0] - taken) / level.sum(dim=1).double()  # of the pixels at the K-th value, how many are taken
    hits = (above & positive).sum(dim=1) + share * (level & positive).sum(dim=1)
    return torch.where(size[:, 0] > 0, hits / size[:, 0], torch.nan)
