"""ADP and PIC: what the confidence does when only the explanation map is shown. Chattopadhay et al., WACV 2018."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens.metrics._checks import check_scores


@dataclass(frozen=True)
class Adp:
    """`value` in percent over `n` items; `left_out` had no positive confidence to lose."""

    value: float
    n: int
    left_out: int


def drop(before: Tensor, after: Tensor) -> Tensor:
    """max(0, Y - O) / Y, NaN where Y <= 0: (N,), (N,) -> (N,). Above 1 where O < 0.

    >>> drop(torch.tensor([4.0, 4.0, -1.0]), torch.tensor([3.0, 5.0, 2.0]))
    tensor([0.2500, 0.0000,    nan])
    """
    check_scores(before, after)
    usable = before > 0
    return torch.where(usable, (before - after).clamp(min=0) / torch.where(usable, before, 1), torch.nan)


def adp(before: Tensor, after: Tensor) -> Adp:
    """100 x mean drop over the items with Y > 0 (NaN if there is none), and the number left out: (N,), (N,)."""
    drops = drop(before, after)
    used = drops[~drops.isnan()].double()
    return Adp(100 * float(used.mean()), len(used), len(drops) - len(used))


def increase(before: Tensor, after: Tensor) -> Tensor:
    """O > Y: (N,), (N,) -> (N,) bool."""
    check_scores(before, after)
    return after > before


def pic(before: Tensor, after: Tensor) -> float:
    """100 x share of all items with O > Y, NaN if there is none: (N,), (N,)."""
    return 100 * float(increase(before, after).double().mean())
