"""A run's rows as values by method and n, paired item by item."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.evaluation.results import Columns, Run
from gamlens.figures.request import PAPER_N
from gamlens.methods import METHODS
from gamlens.metrics import Difference

ItemKey = tuple[str, str]  # an item's name, and "x" or "y" where it is a side of a pair


@dataclass(frozen=True, eq=False)
class Column:
    """One method at one n: a value in % for every item and side, NaN where there is none.

    `grid` (N,T) holds IoU in % at every threshold, where the run measured places; `held` the hold-out.
    """

    method: str
    n: int
    keys: tuple[ItemKey, ...]
    values: Tensor
    held: Tensor
    threshold: float | None = None
    grid: Tensor | None = None

    @property
    def name(self) -> str:
        return f"{METHODS[self.method].title}, n={self.n}" if self.n else f"{self.method} (control)"

    @property
    def used(self) -> Tensor:
        """Which items count: all but the hold-out, or all where nothing else is left."""
        return ~self.held if bool((~self.held).any()) else torch.ones_like(self.held)

    @property
    def counted(self) -> Tensor:
        """Which items count and have a value."""
        return self.used & ~self.values.isnan()

    @property
    def sign(self) -> int:
        """What a difference of two values is multiplied by so that plus is better: IoU should rise, a drop fall."""
        return -1 if self.grid is None else 1

    def mean(self) -> float:
        return float(self.values[self.counted].mean())


def columns(run: Run, *, confidence: str = "logit") -> list[Column]:
    """Every method and n of the run, controls last."""
    made = [_column(method, n, rows, confidence) for (method, n), rows in run.groups.items()]
    return sorted(made, key=lambda column: column.n == 0)


def reference(found: Sequence[Column]) -> Column | None:
    """What the others are compared with: GAM at n = 2, or at its largest n; without GAM the first method."""
    own = [column for column in found if column.n > 0]
    gam = [column for column in own if column.method == "gam"]
    usual = [column for column in gam if column.n == PAPER_N]
    return next(iter(usual or sorted(gam, key=lambda column: -column.n) or own), None)


def rivals(found: Sequence[Column], base: Column) -> list[Column]:
    """Every other method at its best n, then the reference's own method at its other n."""
    others = [column for column in found if column.n > 0 and column.method != base.method]
    best = {
        name: max(
            (column for column in others if column.method == name), key=lambda column: column.sign * column.mean()
        )
        for name in dict.fromkeys(column.method for column in others)
    }
    own = [column for column in found if column.method == base.method and column.n not in (0, base.n)]
    return [*best.values(), *own]


def aligned(base: Column, other: Column) -> tuple[tuple[ItemKey, ...], Tensor, Tensor]:
    """The items that both have and that count, with both values."""
    good, theirs_good = base.counted.tolist(), (~other.values.isnan()).tolist()
    place = {key: number for number, key in enumerate(other.keys) if theirs_good[number]}
    mine = [number for number, key in enumerate(base.keys) if good[number] and key in place]
    theirs = [place[base.keys[number]] for number in mine]
    return tuple(base.keys[number] for number in mine), base.values[mine], other.values[theirs]


def difference(base: Column, other: Column) -> Difference:
    """The paired difference, turned so that plus is better."""
    _, mine, theirs = aligned(base, other)
    return metrics.paired(base.sign * mine, base.sign * theirs)


def gains(base: Column, other: Column) -> dict[ItemKey, float]:
    """How much better the reference is than the other one, for each item that both have and that counts."""
    keys, mine, theirs = aligned(base, other)
    return dict(zip(keys, (base.sign * (mine - theirs)).tolist(), strict=True))


def _column(method: str, n: int, rows: Columns, confidence: str) -> Column:
    keys = tuple((str(item), str(side)) for item, side in zip(rows["item"], rows["side"], strict=True))
    held = torch.from_numpy(rows["held_out"])
    if "iou" in rows:
        grid = 100 * torch.from_numpy(rows["iou"]).double()
        best = metrics.best_threshold(grid[held] if bool(held.any()) else grid)
        return Column(method, n, keys, grid[:, best], held, float(metrics.THRESHOLDS[best]), grid)
    name = "similarity" if "before_similarity" in rows else confidence
    before, after = (torch.from_numpy(rows[f"{when}_{name}"]) for when in ("before", "after"))
    return Column(method, n, keys, 100 * metrics.drop(before, after), torch.zeros_like(held))
