"""The values of a run by method and n, paired item by item."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.evaluation.results import Columns, Run
from gamlens.evaluation.row_titles import row_title
from gamlens.evaluation.run_scores import Score, scores
from gamlens.figures.request import PAPER_N
from gamlens.metrics import Difference, Metric

ItemKey = tuple[str, str]  # an item's name, and "x" or "y" where it is a side of a pair


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one metric for one method and n.

    Attributes:
        method: The method, or the name of a control.
        n: The number of blocks; 0 for a control.
        keys: The item and side of each of the N values.
        clusters: The image (of a run of pairs: the pair) that each value belongs to. Intervals resample these.
        metric: The metric.
        values: (N,) in percent; NaN where there is no value.
        used: bool (N,): False for items on which the threshold was chosen.
        threshold: The threshold of `values`, if the metric has thresholds.
        grid: The values at all thresholds, (N,T) in percent, for such a metric.
    """

    method: str
    n: int
    keys: tuple[ItemKey, ...]
    metric: Metric
    values: Tensor
    used: Tensor
    threshold: float | None = None
    grid: Tensor | None = None
    clusters: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return row_title(self.method, self.n)

    @property
    def counted(self) -> Tensor:
        """The items that the mean is taken over, bool (N,): those of `used` that have a value."""
        return self.used & ~self.values.isnan()

    @property
    def sign(self) -> int:
        """1, or -1 for a metric where lower is better. A difference times `sign` is positive where it is better."""
        return 1 if self.metric.better == "up" else -1

    @property
    def cluster_of(self) -> dict[ItemKey, str]:
        """The cluster of every item and side."""
        return dict(zip(self.keys, self.clusters, strict=True))

    @property
    def item_title(self) -> str:
        """What the value of one item is called."""
        return self.metric.item_title or self.metric.title

    def mean(self) -> float:
        return float(self.values[self.counted].mean())


def columns(run: Run, *, confidence: str = "logit") -> list[Column]:
    """One Column per method and n, controls last, for the first metric that the run has (such as IoU or ADP)."""
    found = {key: scores(run, rows, confidence=confidence) for key, rows in run.groups.items()}
    made = [_column(*key, run.groups[key], own[0]) for key, own in found.items() if own]
    return sorted(made, key=lambda column: column.n == 0)


def reference(found: Sequence[Column]) -> Column | None:
    """The column that the others are compared with: GAM at n = 2, or at its largest n; without GAM the first method."""
    own = [column for column in found if column.n > 0]
    gam = [column for column in own if column.method == "gam"]
    usual = [column for column in gam if column.n == PAPER_N]
    return next(iter(usual or sorted(gam, key=lambda column: -column.n) or own), None)


def rivals(found: Sequence[Column], base: Column) -> list[Column]:
    """Every other method at its best n, then the method of the reference at its other n."""
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
    """The items that count and that both columns have, with the values of both, (M,) each."""
    good, theirs_good = base.counted.tolist(), (~other.values.isnan()).tolist()
    place = {key: number for number, key in enumerate(other.keys) if theirs_good[number]}
    mine = [number for number, key in enumerate(base.keys) if good[number] and key in place]
    theirs = [place[base.keys[number]] for number in mine]
    return tuple(base.keys[number] for number in mine), base.values[mine], other.values[theirs]


def difference(base: Column, other: Column) -> Difference:
    """The paired difference, with its sign turned so that plus is better."""
    keys, mine, theirs = aligned(base, other)
    own = base.cluster_of
    return metrics.paired(base.sign * mine, base.sign * theirs, clusters=[own[key] for key in keys])


def gains(base: Column, other: Column) -> dict[ItemKey, float]:
    """How much better the reference is than the other column, for each item that counts and that both have."""
    keys, mine, theirs = aligned(base, other)
    return dict(zip(keys, (base.sign * (mine - theirs)).tolist(), strict=True))


def _column(method: str, n: int, rows: Columns, score: Score) -> Column:
    keys = tuple((str(item), str(side)) for item, side in zip(rows["item"], rows["side"], strict=True))
    own = score.found
    used = torch.ones(len(keys), dtype=torch.bool) if own.counted is None else own.counted
    return Column(method, n, keys, score.metric, own.values, used, own.threshold, own.grid, score.clusters)
