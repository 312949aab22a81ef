"""From a map to a place: threshold, largest component, box."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

BoxMode = Literal["all", "largest"]


def boxes(maps: Tensor, *, threshold: float = 0.25, mode: BoxMode = "all") -> Tensor:
    """The tight half-open box x0,y0,x1,y1 around the pixels >= threshold: (B,H,W) -> (B,4); zeros if there is none.

    `all` takes every such pixel, `largest` those of the largest 4-connected component.

    >>> boxes(torch.tensor([[[0.0, 0.3, 0.0], [0.0, 0.9, 1.0]]]))
    tensor([[1., 0., 3., 2.]])
    """
    check_threshold(threshold)
    if mode not in ("all", "largest"):
        raise GamlensError(f"A box is drawn around 'all' pixels or the 'largest' component, not {mode!r}.")
    if len(maps) == 0:
        return maps.new_zeros(0, 4, dtype=torch.float32)
    masks = maps >= threshold
    if mode == "largest":
        masks = largest_component(masks)
    columns, rows = masks.any(dim=1), masks.any(dim=2)
    (x0, x1), (y0, y1) = _extent(columns), _extent(rows)
    box = torch.stack([x0, y0, x1, y1], dim=1).to(torch.float32)
    return box * masks.flatten(1).any(dim=1, keepdim=True)


def check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise GamlensError(f"A threshold lies between 0 and 1, found {threshold}.")


def largest_component(masks: Tensor) -> Tensor:
    """The largest 4-connected component of each mask, the first in reading order on a tie: (B,H,W) -> (B,H,W)."""
    labels = components(masks).flatten(1)
    width = masks.shape[1] * masks.shape[2] + 1
    sizes = labels.new_zeros(len(labels), width).scatter_add_(1, labels, torch.ones_like(labels))
    sizes[:, 0] = 0
    best = sizes.argmax(dim=1, keepdim=True)
    return ((labels == best) & (labels > 0)).view_as(masks)


def components(masks: Tensor) -> Tensor:
    """Labels of 4-connected components, 0 outside: (B,H,W) bool -> (B,H,W) long.

    Each pixel starts with its own number; the smallest number of every horizontal, then every vertical run is
    spread over the run until nothing changes.
    """
    count = masks.shape[1] * masks.shape[2]
    labels = torch.arange(1, count + 1, device=masks.device).view(1, *masks.shape[1:]) * masks
    while True:
        spread = _spread(_spread(labels).transpose(1, 2)).transpose(1, 2)
        if torch.equal(spread, labels):
            return labels
        labels = spread


def _spread(labels: Tensor) -> Tensor:
    """The smallest label of each horizontal run, over the run: (B,H,W) -> (B,H,W)."""
    inside = labels > 0
    starts = inside & ~torch.nn.functional.pad(inside, (1, 0))[:, :, :-1]
    run = starts.flatten().cumsum(0) * inside.flatten()
    flat = labels.flatten()
    least = torch.full((int(run.max()) + 1,), labels.shape[1] * labels.shape[2] + 1, device=labels.device)
    least.scatter_reduce_(0, run, flat, "amin")
    return (least[run] * inside.flatten()).view_as(labels)


def _extent(hits: Tensor) -> tuple[Tensor, Tensor]:
    """First and one past the last True: (B,N) -> (B,), (B,)."""
    first = hits.int().argmax(dim=1)
    return first, hits.shape[1] - hits.flip(1).int().argmax(dim=1)
