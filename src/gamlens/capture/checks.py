"""What may be wrong with a result, asked of the device without waiting for it.

On the CPU a check is answered at once. On an accelerator, reading an answer would stop the host until the device has
caught up. There the answer stays on the device, travels with the result, and is read together with all others when
the result comes to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError, warn

HOST = "cpu"  # the kind of device whose values can be read without waiting


@dataclass(frozen=True, eq=False)
class Check:
    """One question about a result.

    `bad` computes a boolean on the device when somebody asks. `say` makes the message. `fatal` says whether a bad
    answer is an error or a warning.
    """

    bad: Callable[[], Tensor]
    say: Callable[[], str]
    fatal: bool = True

    def tell(self) -> None:
        """Raise the error, or give the warning."""
        if self.fatal:
            raise GamlensError(self.say())
        warn(self.say())


@dataclass(frozen=True, eq=False)
class Checks:
    """The checks of a result that still wait for their answers, and one way to resolve all of them."""

    waiting: tuple[Check, ...] = ()

    def ask(self, check: Check, device: torch.device) -> Checks:
        """These checks and one more, which is answered at once where the values are on the CPU."""
        if device.type != HOST:
            return Checks((*self.waiting, check))
        if bool(check.bad()):
            check.tell()
        return self

    def __add__(self, other: Checks) -> Checks:
        return Checks(self.waiting + other.waiting) if other.waiting else self

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def answers(self) -> Tensor:
        """What each check finds, still on the device: (N,) of bool."""
        return torch.stack([check.bad() for check in self.waiting])

    def tell(self, answers: Tensor) -> None:
        """Say what is wrong, given the answers (N,) on the host. Errors come before warnings."""
        pairs = zip(self.waiting, answers.tolist(), strict=True)
        for check, bad in sorted(pairs, key=lambda pair: not pair[0].fatal):
            if bad:
                check.tell()

    def resolve(self) -> None:
        """Answer all checks with one wait for the device, and say what is wrong."""
        if self.waiting:
            self.tell(self.answers())


def finite(values: Tensor, say: Callable[[], str]) -> Check:
    """A check that no value is NaN or infinite.

    The extremes are taken now, in one pass over the values, so that the values themselves need not be kept: a NaN
    makes both extremes NaN.
    """
    if values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last):
        values = values.permute(0, 2, 3, 1)  # in the order of the memory, so that no copy is made
    return Check(partial(_not_finite, values.aminmax()), say)


def score(values: Any, rows: int) -> Check:
    """A check that a score is one finite number per row: a tensor (rows,)."""
    if not isinstance(values, Tensor) or values.shape != (rows,):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise GamlensError(
            f"The score must be one number for each of the {rows} rows, a tensor ({rows},); found {found}."
        )
    return finite(values.detach(), partial(_say_score, values.detach()))


def _not_finite(extremes: Sequence[Tensor]) -> Tensor:
    low, high = extremes
    return ~((low > -math.inf) & (high < math.inf))


def _say_score(values: Tensor) -> str:
    row = int((~values.isfinite()).nonzero()[0, 0])
    return (
        f"The score of row {row} is {float(values[row])}: are there NaN or infinite values in the weights or the image?"
    )
