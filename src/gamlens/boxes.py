"""Bounding boxes from maps: threshold a map, optionally take its largest connected component, and box it.

Connected components are found on the GPU as well as on the CPU, without a Python loop over pixels or masks. Each mask
is split into runs: horizontal stretches of True pixels. Runs of neighbouring rows that overlap are joined by
union-find over tensors (`_roots`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

BoxMode = Literal["all", "largest"]
_TOGETHER = 16  # how many maps `largest_boxes` thresholds at once; it limits the memory


def boxes(maps: Tensor, *, threshold: float = 0.25, mode: BoxMode = "all") -> Tensor:
    """Find the tight box around the pixels of each map that reach the threshold.

    Args:
        maps: (B,H,W) in [0,1].
        threshold: The lowest value that counts, from 0 to 1.
        mode: "all" boxes all such pixels, "largest" only those of the largest 4-connected component.

    Returns:
        (B,4) float32: x0, y0, x1, y1 in pixels, half-open (x1 and y1 lie one past the last pixel). A map without such
        pixels has four zeros.

    >>> boxes(torch.tensor([[[0.0, 0.3, 0.0], [0.0, 0.9, 1.0]]]))
    tensor([[1., 0., 3., 2.]])
    """
    check_threshold(threshold)
    if mode not in ("all", "largest"):
        raise GamlensError(f"mode must be 'all' (all pixels) or 'largest' (the largest component); found {mode!r}.")
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
        raise GamlensError(f"A threshold must lie between 0 and 1, as map values do; found {threshold}.")


def largest_boxes(maps: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Find the box of `boxes(..., mode="largest")` at each of T thresholds: (B,H,W) -> (B,T,4)."""
    for threshold in thresholds:
        check_threshold(threshold)
    grid = maps.new_tensor(list(thresholds))[:, None, None]
    found = [_largest_boxes((part[:, None] >= grid).flatten(0, 1)) for part in torch.split(maps, _TOGETHER)]
    return torch.cat(found or [maps.new_zeros(0, 4)]).view(len(maps), len(thresholds), 4).to(torch.float32)


def largest_component(masks: Tensor) -> Tensor:
    """Keep the largest 4-connected component of each mask: (B,H,W) bool -> (B,H,W) bool.

    Of components with equally many pixels, the first in reading order is kept.
    """
    runs = _runs(masks)
    return _fill(runs, _largest(runs, len(masks), masks.shape[1]).long(), masks).bool()


def components(masks: Tensor) -> Tensor:
    """Label the 4-connected components of each mask: (B,H,W) bool -> (B,H,W) int64.

    A pixel outside the mask is 0. A component is labelled y * W + x + 1, where (x, y) is its first pixel in reading
    order.
    """
    runs = _runs(masks)
    height, width = masks.shape[1:]
    first = (runs.row % height * width + runs.x0 + 1)[runs.root]
    return _fill(runs, first, masks)


@dataclass(frozen=True)
class _Runs:
    """The R runs (horizontal stretches of True pixels) of a batch of masks, in reading order; each attribute is (R,).

    Attributes:
        row: The row of the run, counted over all masks: mask * H + y.
        x0, x1: The run covers the columns x0 <= x < x1.
        root: The index of the first run of the same component.
    """

    row: Tensor
    x0: Tensor
    x1: Tensor
    root: Tensor


def _runs(masks: Tensor) -> _Runs:
    """Find the runs of masks (B,H,W) and join them to components.

    A run starts and ends where neighbouring pixels of a row differ. Run a touches run b of the next row if
    a.x0 < b.x1 and b.x0 < a.x1. Runs are sorted by row and column, so those that a touches are consecutive, and two
    binary searches on row * (W + 2) + column give the first and the last of them. `touching` is how many there are;
    `upper` and `lower` list all touching pairs.
    """
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
    """Find the smallest node of each connected component of a graph, for each of its `count` nodes: (count,).

    Args:
        count: The number of nodes.
        a, b: The two ends of each edge, (E,) each.

    In each round, the root at either end of an edge is pointed to the smaller of the two roots, and then every
    node skips to the root of its root's root. The rounds end when nothing changes any more.
    """
    root = torch.arange(count, device=a.device)
    while True:
        least = torch.minimum(root[a], root[b])
        hooked = root.scatter_reduce(0, root[a], least, "amin").scatter_reduce(0, root[b], least, "amin")
        hooked = hooked[hooked][hooked]
        if torch.equal(hooked, root):
            return root
        root = hooked


def _largest(runs: _Runs, count: int, height: int) -> Tensor:
    """Tell for each run whether it belongs to the largest component of its mask: (R,) bool.

    Args:
        runs: The runs of all masks.
        count: The number of masks.
        height: The height H of a mask.
    """
    sizes = torch.zeros_like(runs.root).scatter_add_(0, runs.root, runs.x1 - runs.x0)
    mask = runs.row // height
    most = sizes.new_zeros(count).scatter_reduce_(0, mask, sizes, "amax")
    is_best = (sizes == most[mask]).nonzero()[:, 0]
    best = sizes.new_full((count,), len(sizes)).scatter_reduce_(0, mask[is_best], is_best, "amin")
    return runs.root == best[mask]


def _largest_boxes(masks: Tensor) -> Tensor:
    """Box the largest component of each mask: (M,H,W) bool -> (M,4), zeros for an empty mask."""
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
    """Write the value of each run, (R,), to the pixels of the run: (B,H,W), 0 outside the masks.

    Indexing with a mask visits its True pixels in reading order, which is the order of the runs.
    """
    out = values.new_zeros(masks.shape)
    out[masks] = values.repeat_interleave(runs.x1 - runs.x0)
    return out


def _extent(hits: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first True of each row, and one past the last: (B,N) -> (B,), (B,)."""
    first = hits.int().argmax(dim=1)
    return first, hits.shape[1] - hits.flip(1).int().argmax(dim=1)
