"""From a map to a place: threshold, largest component, box."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

BoxMode = Literal["all", "largest"]
_TOGETHER = 16  # maps cut at every threshold at once: bounds the memory


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


def largest_boxes(maps: Tensor, thresholds: Sequence[float]) -> Tensor:
    """The tight box around the largest 4-connected component of the pixels >= t, for every t: (B,H,W) -> (B,T,4)."""
    for threshold in thresholds:
        check_threshold(threshold)
    grid = maps.new_tensor(list(thresholds))[:, None, None]
    found = [_largest_boxes((part[:, None] >= grid).flatten(0, 1)) for part in torch.split(maps, _TOGETHER)]
    return torch.cat(found or [maps.new_zeros(0, 4)]).view(len(maps), len(thresholds), 4).to(torch.float32)


def largest_component(masks: Tensor) -> Tensor:
    """The largest 4-connected component of each mask, the first in reading order on a tie: (B,H,W) -> (B,H,W)."""
    runs = _runs(masks)
    return _fill(runs, _largest(runs, len(masks), masks.shape[1]).long(), masks).bool()


def components(masks: Tensor) -> Tensor:
    """Labels of 4-connected components, 0 outside: (B,H,W) bool -> (B,H,W) long; a label is its first pixel's place."""
    runs = _runs(masks)
    height, width = masks.shape[1:]
    first = (runs.row % height * width + runs.x0 + 1)[runs.root]
    return _fill(runs, first, masks)


@dataclass(frozen=True)
class _Runs:
    """Horizontal runs of pixels in reading order: row over all masks, extent, and the first run of the component."""

    row: Tensor
    x0: Tensor
    x1: Tensor
    root: Tensor


def _runs(masks: Tensor) -> _Runs:
    """Runs of (B,H,W) and their components. Two runs of neighbouring rows touch where their extents overlap."""
    height, width = masks.shape[1:]
    padded = torch.nn.functional.pad(masks, (1, 1))
    ends = (padded[:, :, 1:] != padded[:, :, :-1]).flatten().nonzero()[:, 0]
    row, x0, x1 = ends[0::2] // (width + 1), ends[0::2] % (width + 1), ends[1::2] % (width + 1)
    key, below = width + 2, row + 1
    first = torch.searchsorted(row * key + x1, below * key + x0, right=True)
    last = torch.searchsorted(row * key + x0, below * key + x1)
    touching = (last - first).clamp(min=0) * (below % height != 0)
    upper = torch.arange(len(row), device=row.device).repeat_interleave(touching)
    before = (touching.cumsum(0) - touching)[upper]
    lower = first[upper] + torch.arange(len(upper), device=row.device) - before
    return _Runs(row, x0, x1, _roots(len(row), upper, lower))


def _roots(count: int, a: Tensor, b: Tensor) -> Tensor:
    """The smallest node of each connected part: edges (E,), (E,) -> (count,). Roots hook on, then paths are halved."""
    root = torch.arange(count, device=a.device)
    while True:
        least = torch.minimum(root[a], root[b])
        hooked = root.scatter_reduce(0, root[a], least, "amin").scatter_reduce(0, root[b], least, "amin")
        hooked = hooked[hooked][hooked]
        if torch.equal(hooked, root):
            return root
        root = hooked


def _largest(runs: _Runs, count: int, height: int) -> Tensor:
    """Whether each run belongs to the largest component of its mask: (R,) bool."""
    sizes = torch.zeros_like(runs.root).scatter_add_(0, runs.root, runs.x1 - runs.x0)
    mask = runs.row // height
    most = sizes.new_zeros(count).scatter_reduce_(0, mask, sizes, "amax")
    is_best = (sizes == most[mask]).nonzero()[:, 0]
    best = sizes.new_full((count,), len(sizes)).scatter_reduce_(0, mask[is_best], is_best, "amin")
    return runs.root == best[mask]


def _largest_boxes(masks: Tensor) -> Tensor:
    """(M,H,W) -> (M,4), zeros where a mask is empty."""
    runs, height = _runs(masks), masks.shape[1]
    chosen = _largest(runs, len(masks), height)
    mask, y = runs.row[chosen] // height, runs.row[chosen] % height
    low = torch.full((len(masks), 2), max(masks.shape[1:]) + 1, device=masks.device)
    high = torch.zeros_like(low)
    at = mask[:, None].expand(-1, 2)
    low = low.scatter_reduce(0, at, torch.stack([runs.x0[chosen], y], dim=1), "amin")
    high = high.scatter_reduce(0, at, torch.stack([runs.x1[chosen], y + 1], dim=1), "amax")
    return torch.cat([low, high], dim=1) * (high[:, :1] > 0)


def _fill(runs: _Runs, values: Tensor, masks: Tensor) -> Tensor:
    """A value a run, written over its pixels: (R,) -> (B,H,W), 0 outside. Runs cover the mask in reading order."""
    out = values.new_zeros(masks.shape)
    out[masks] = values.repeat_interleave(runs.x1 - runs.x0)
    return out


def _extent(hits: Tensor) -> tuple[Tensor, Tensor]:
    """First and one past the last True: (B,N) -> (B,), (B,)."""
    first = hits.int().argmax(dim=1)
    return first, hits.shape[1] - hits.flip(1).int().argmax(dim=1)
