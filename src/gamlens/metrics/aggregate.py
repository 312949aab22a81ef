"""The numbers of tables from the values of items: bootstrap intervals, paired differences, relative improvement."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

Better = Literal["up", "down"]
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

    `wins`, `losses` and `ties` count the items on which a is better, worse and equal; `p` is the p value of the
    two-sided sign test.
    """

    mean: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int
    p: float


def bootstrap(values: Tensor, *, samples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """The mean of the values (N,) that are not NaN, and the percentile interval of that mean over resampled items.

    >>> bootstrap(torch.tensor([2.0, 2.0, torch.nan]))
    Interval(mean=2.0, low=2.0, high=2.0, n=2)
    """
    if values.ndim != 1 or samples < 1 or not 0 < level < 1:
        found = f"shape {tuple(values.shape)}, samples {samples}, level {level}"
        raise GamlensError(f"bootstrap takes values (N,), samples >= 1 and a level between 0 and 1, found {found}.")
    used = values[~values.isnan()].detach().cpu().double()
    if len(used) == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    make = torch.Generator().manual_seed(seed)
    rows = max(1, INDICES_AT_ONCE // len(used))
    sizes = [min(rows, samples - start) for start in range(0, samples, rows)]
    draws = (torch.randint(len(used), (size, len(used)), generator=make) for size in sizes)
    means = torch.cat([used[draw].mean(dim=1) for draw in draws])
    low, high = torch.quantile(means, means.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(float(used.mean()), low, high, len(used))


def paired(
    a: Tensor, b: Tensor, *, better: Better = "up", samples: int = 1000, seed: int = 0, level: float = 0.95
) -> Difference:
    """The differences a - b of items without NaN, (N,) and (N,). `wins` counts the items on which a is better."""
    check_better(better)
    if a.shape != b.shape:
        raise GamlensError(f"Paired values have one shape (N,), found {tuple(a.shape)} and {tuple(b.shape)}.")
    difference = a.detach().cpu().double() - b.detach().cpu().double()
    interval = bootstrap(difference, samples=samples, seed=seed, level=level)
    above, below = int((difference > 0).sum()), int((difference < 0).sum())
    wins, losses = (above, below) if better == "up" else (below, above)
    ties = interval.n - wins - losses
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
