"""ADP and PIC: what the confidence does when only the explanation map is shown. Chattopadhay et al., WACV 2018."""

import torch
from torch import Tensor

from gamlens.metrics._checks import check_scores


def drop(before: Tensor, after: Tensor) -> Tensor:
    """max(0, Y - O) / Y, NaN where Y <= 0: (N,), (N,) -> (N,). Above 1 where O < 0.

    ADP is 100 x its mean over the items with Y > 0.

    >>> drop(torch.tensor([4.0, 4.0, -1.0]), torch.tensor([3.0, 5.0, 2.0]))
    tensor([0.2500, 0.0000,    nan])
    """
    check_scores(before, after)
    usable = before > 0
    return torch.where(usable, (before - after).clamp(min=0) / torch.where(usable, before, 1), torch.nan)


def increase(before: Tensor, after: Tensor) -> Tensor:
    """O > Y: (N,), (N,) -> (N,) bool. PIC is 100 x its mean over all items."""
    check_scores(before, after)
    return after > before
