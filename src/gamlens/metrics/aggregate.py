"""The numbers of tables from the values of items: bootstrap intervals, paired differences, relative improvement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

Better = Literal["up", "down"]
Clusters = Sequence[int] | Sequence[str] | Tensor  # one id per value; values with the same id are not independent
INDICES_AT_ONCE = 2**22  # how many random indices the bootstrap draws at once, which bounds its memory


@dataclass(frozen=True)
class Interval:
    """The mean over n items and the ends of its bootstrap interval; NaN if n = 0."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean of a - b and the ends of its bootstrap interval (`low`, `high`).

    `wins`, `losses` and `ties` count the items (or clusters) on which a is better, worse and equal; `p` is the p value
    of the two-sided sign test.
    """

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int
    p: float


def bootstrap(
    values: Tensor, *, clusters: Clusters | None = None, samples: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """The mean of the values (N,) that are not NaN, and the percentile interval of that mean over resampled items.

    Values that are not independent, such as those of both maps of a pair, belong to one cluster. With `clusters`, whole
    clusters are resampled in place of items: as many as there are are drawn with replacement, and the mean is taken
    over all values in them, so that a cluster counts by its size. The mean itself stays that over all values.

    Args:
        values: (N,).
        clusters: The cluster of each value, N whole numbers or N texts. By default every value is independent.
        samples: How many resamples are drawn.
        seed: The seed of the draws.
        level: The share of resampled means that lie in the interval.

    >>> bootstrap(torch.tensor([2.0, 2.0, torch.nan]))
    Interval(mean=2.0, low=2.0, high=2.0, n=2)
    >>> bootstrap(torch.tensor([1.0, 3.0, 5.0, 7.0]), clusters=["a", "a", "b", "b"])
    Interval(mean=4.0, low=2.0, high=6.0, n=4)
    """
    if values.ndim != 1 or samples < 1 or not 0 < level < 1:
        found = f"shape {tuple(values.shape)}, samples {samples}, level {level}"
        raise GamlensError(f"bootstrap takes values (N,), samples >= 1 and a level between 0 and 1, found {found}.")
    used = values[~values.isnan()].detach().cpu().double()
    sums, counts = (used, None) if clusters is None else cluster_sums(values, clusters)
    if len(used) == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    make = torch.Generator().manual_seed(seed)
    rows = max(1, INDICES_AT_ONCE // len(sums))
    sizes = [min(rows, samples - start) for start in range(0, samples, rows)]
    draws = (torch.randint(len(sums), (size, len(sums)), generator=make) for size in sizes)
    means = torch.cat([_mean_of(draw, sums, counts) for draw in draws])
    low, high = torch.quantile(means, means.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(float(used.mean()), low, high, len(used))


def cluster_sums(values: Tensor, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """The sum of the values (N,) of each cluster and how many they are, NaN left out: two tensors (C,), float64.

    Clusters are in the order of their ids, so that the order of the values does not matter. A cluster of which every
    value is NaN is left out.
    """
    where = _places(clusters, len(values))
    own = values.detach().cpu().double()
    used = ~own.isnan()
    counts = torch.bincount(where[used]).double()
    sums = torch.zeros_like(counts).index_add_(0, where[used], own[used])
    return sums[counts > 0], counts[counts > 0]


def _places(clusters: Clusters, n: int) -> Tensor:
    """The place of each of n ids in the sorted list of different ids: (N,)."""
    found = clusters.tolist() if isinstance(clusters, Tensor) else list(clusters)
    texts = [one for one in found if isinstance(one, str)]
    numbers = [index(one) for one in found if hasattr(one, "__index__")]
    if len(found) != n or n not in (len(texts), len(numbers)):
        kinds = ", ".join(sorted({type(one).__name__ for one in found})) or "none"
        raise GamlensError(
            f"Clusters are one id per value, all whole numbers or all texts: for {n} values, found {len(found)} ids "
            f"({kinds})."
        )
    ordered: list[str | int] = [*sorted(set(texts)), *sorted(set(numbers))]  # one of the two is empty
    places = {one: place for place, one in enumerate(ordered)}
    return torch.tensor([places[one] for one in texts or numbers], dtype=torch.int64)


def _mean_of(draw: Tensor, sums: Tensor, counts: Tensor | None) -> Tensor:
    """The mean of each resample, (S,), from drawn places (S,C): of items if counts is None, else of whole clusters."""
    if counts is None or len(counts) == counts.sum():  # every cluster has one item
        return sums[draw].mean(dim=1)
    return sums[draw].sum(dim=1) / counts[draw].sum(dim=1)


def paired(
    a: Tensor,
    b: Tensor,
    *,
    clusters: Clusters | None = None,
    better: Better = "up",
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Difference:
    """The differences a - b of items without NaN, (N,) and (N,). `wins` counts the items on which a is better.

    With `clusters`, one id per item as for `bootstrap`, whole clusters are resampled, and `wins`, `losses` and `ties`
    count clusters by the mean difference of their items.
    """
    check_better(better)
    if a.shape != b.shape:
        raise GamlensError(f"Paired values have one shape (N,), found {tuple(a.shape)} and {tuple(b.shape)}.")
    difference = a.detach().cpu().double() - b.detach().cpu().double()
    interval = bootstrap(difference, clusters=clusters, samples=samples, seed=seed, level=level)
    independent = difference[~difference.isnan()] if clusters is None else cluster_sums(difference, clusters)[0]
    above, below = int((independent > 0).sum()), int((independent < 0).sum())
    wins, losses = (above, below) if better == "up" else (below, above)
    ties = len(independent) - wins - losses
    return Difference(interval.mean, interval.low, interval.high, wins, losses, ties, sign_test(wins, losses))


def sign_test(wins: int, losses: int) -> float:
    """The exact two-sided p value under the hypothesis that a win is as likely as a loss; 1 without wins and losses.

    Ties do not count.

    >>> sign_test(5, 0)
    0.0625
    """
    n = wins + losses
    tail, ways = 0, 1
    for k in range(min(wins, losses) + 1):
        tail += ways
        ways = ways * (n - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << n))


def improvement(v1: float, v2: float, better: Better) -> float:
    """The relative change from v1 to v2 in percent, with the sign turned so that plus is better; NaN if v1 = 0."""
    check_better(better)
    if v1 == 0:
        return math.nan
    return 100 * (v2 - v1) / abs(v1) * (1 if better == "up" else -1)


def check_better(better: str) -> None:
    if better not in ("up", "down"):
        raise GamlensError(f"Better is 'up' or 'down', not {better!r}.")
