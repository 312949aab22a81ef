"""How alike two saliency maps are: SSIM, rank correlation, correlation of HOG, as in Adebayo et al., NeurIPS 2018.

Maps lie in [0,1]. A correlation is NaN if one of the maps is constant.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps

WINDOW, K1, K2 = 7, 0.01, 0.03  # SSIM: the side of a window, and the constants of Wang et al.
# HOG: cells along the shorter side, pixels per cell at least, cells per side of a block, bins of a histogram.
CELLS, LEAST, BLOCK, ORIENTATIONS = 14, 4, 3, 9


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity, mean over 7x7 windows that lie inside (Wang et al. 2004): (N,H,W), (N,H,W) -> (N,)."""
    check_maps(a)
    _check_shapes(a, b)
    if min(a.shape[1:]) < WINDOW:
        raise GamlensError(f"SSIM needs maps of {WINDOW} pixels or more per side, found {tuple(a.shape[1:])}.")
    a, b = a.double(), b.double()
    mean_a, mean_b = _windows(a), _windows(b)
    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    var_a, var_b = (unbiased * (_windows(x * x) - m * m) for x, m in ((a, mean_a), (b, mean_b)))
    both = unbiased * (_windows(a * b) - mean_a * mean_b)
    c1, c2 = K1**2, K2**2
    top = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean(dim=(1, 2))


def ranks(maps: Tensor) -> Tensor:
    """The rank of each pixel in its map, from 1; equal pixels share the mean of their ranks: (N,H,W) -> (N,HW).

    `pearson` of the ranks is Spearman's correlation.
    """
    check_maps(maps)
    found = []
    for values in maps.flatten(1):
        _, place, counts = values.unique(return_inverse=True, return_counts=True)
        found.append((counts.cumsum(0) - (counts - 1) / 2)[place])
    return torch.stack(found).double()


def hog(maps: Tensor) -> Tensor:
    """Histograms of oriented gradients (Dalal and Triggs, CVPR 2005): (N,H,W) -> (N,F).

    9 unsigned orientations; cells of 1/14 of the shorter side (16 pixels of 224), at least 4 pixels; blocks of 3x3
    cells, each L2-Hys normalised.
    """
    check_maps(maps)
    side = max(LEAST, min(maps.shape[1:]) // CELLS)
    if min(maps.shape[1:]) < BLOCK * side:
        raise GamlensError(f"HOG needs maps of {BLOCK * side} pixels or more per side, found {tuple(maps.shape[1:])}.")
    values = maps.double()
    down, along = torch.zeros_like(values), torch.zeros_like(values)
    down[:, 1:-1], along[:, :, 1:-1] = values[:, 2:] - values[:, :-2], values[:, :, 2:] - values[:, :, :-2]
    angle = torch.rad2deg(torch.atan2(down, along)) % 180
    bins = F.one_hot((angle / (180 / ORIENTATIONS)).long().clamp(max=ORIENTATIONS - 1), ORIENTATIONS)
    votes = bins * torch.hypot(down, along)[..., None]
    cells = F.avg_pool2d(votes.permute(0, 3, 1, 2), side)
    blocks = cells.unfold(2, BLOCK, 1).unfold(3, BLOCK, 1).permute(0, 2, 3, 4, 5, 1).flatten(3)
    return _unit(_unit(blocks).clamp(max=0.2)).flatten(1)


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """The correlation of each row of a with that of b, NaN if one of them is constant: (N,F), (N,F) -> (N,)."""
    _check_shapes(a, b)
    a, b = (x - x.mean(dim=1, keepdim=True) for x in (a, b))
    lengths = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(lengths > 0, (a * b).sum(dim=1) / torch.where(lengths > 0, lengths, 1), torch.nan)


def _windows(maps: Tensor) -> Tensor:
    return F.avg_pool2d(maps[:, None], WINDOW, stride=1)[:, 0]


def _check_shapes(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise GamlensError(f"Two sets of maps must have the same shape; found {tuple(a.shape)} and {tuple(b.shape)}.")


def _unit(vectors: Tensor) -> Tensor:
    return vectors / (vectors.square().sum(dim=-1, keepdim=True) + 1e-10).sqrt()
