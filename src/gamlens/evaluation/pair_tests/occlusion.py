"""Occlusion of one image of a pair by a sliding window: the drop of the similarity, spread over the window.

This is what xaitk-saliency does for the similarity of images (its SlidingWindow and SimilarityScoring), in one batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gamlens import fuse
from gamlens.errors import GamlensError


def check_windows(window: float, stride: float) -> None:
    """Raise a GamlensError if there is no sliding window of this side and step, both as shares of the input."""
    if not (0 < window < 1 and 0 < stride <= window):
        raise GamlensError(
            f"The window of the occlusion is a share of the input between 0 and 1, and its stride at most as large, so "
            f"that every pixel is covered; found window={window:g}, stride={stride:g}: try 0.25 and 0.125."
        )


def windows(size: tuple[int, int], *, window: float, stride: float) -> Tensor:
    """The windows of an input of `size` (H,W), row by row: bool (M,H,W), True where a window hides pixels.

    Every window lies inside the input. The last one of a row and of a column ends at the border, so that every pixel is
    covered.
    """
    check_windows(window, stride)
    sides = [max(1, round(window * length)) for length in size]
    starts = [_starts(length, side, max(1, round(stride * length))) for length, side in zip(size, sides, strict=True)]
    found = torch.zeros(len(starts[0]) * len(starts[1]), *size, dtype=torch.bool)
    for place, (top, left) in enumerate((top, left) for top in starts[0] for left in starts[1]):
        found[place, top : top + sides[0], left : left + sides[1]] = True
    return found


def occluded(image: Tensor, hidden: Tensor, fill: Tensor) -> Tensor:
    """Copies of an image (C,H,W) with the pixels of each window (M,H,W) in the colour `fill` (C,): (M,C,H,W)."""
    return torch.where(hidden[:, None], fill.to(image)[None, :, None, None], image[None])


def drop_map(drops: Tensor, hidden: Tensor) -> Tensor:
    """The mean drop of the similarity over the windows that cover a pixel; where it rises, 0: (M,), (M,H,W) -> (H,W).

    It is scaled to [0,1]; a map without a positive drop is 0 everywhere.

    >>> hidden = torch.tensor([[[1, 1, 0]], [[0, 1, 1]]], dtype=torch.bool)
    >>> drop_map(torch.tensor([0.4, -0.4]), hidden)
    tensor([[1., 0., 0.]])
    """
    weight = hidden.to(drops)
    mean = (drops[:, None, None] * weight).sum(dim=0) / weight.sum(dim=0).clamp(min=1)
    return fuse.min_max(mean.relu()[None])[0][0]


def _starts(length: int, side: int, step: int) -> list[int]:
    found = list(range(0, length - side + 1, step))
    return found if found[-1] == length - side else [*found, length - side]
