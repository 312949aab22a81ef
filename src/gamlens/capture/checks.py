"""What may be wrong with a result, asked of the device without waiting for it.

On the CPU a check is made at once. On an accelerator asking would stop the host until the device has caught up, so the
answer stays there, travels with the result, and is read together with the others when the result comes to the host.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens.errors import GamlensError, GamlensWarning


@dataclass(frozen=True, eq=False)
class Check:
    """`bad` makes a boolean on the device, where `like` is. `say` makes the message, and `fatal` says whether it is an
    error or a warning. Nothing but what would be gone later is computed before somebody asks.
    """

    bad: Callable[[], Tensor]
    like: Tensor
    say: Callable[[], str]
    fatal: bool = True


def make(checks: Iterable[Check], *, stacklevel: int = 2) -> tuple[Check, ...]:
    """Make those on the CPU now; give back the others, to be made later."""
    waiting = []
    for check in checks:
        if at_once(check.like):
            if bool(check.bad()):
                _tell(check, stacklevel + 1)
        else:
            waiting.append(check)
    return tuple(waiting)


def settle(checks: tuple[Check, ...], *, stacklevel: int = 2) -> None:
    """Make all of them, with one wait for the device."""
    if checks:
        tell(checks, answers(checks), stacklevel=stacklevel + 1)


def answers(checks: Sequence[Check]) -> Tensor:
    """What each finds, on the device: (N,) of bool."""
    return torch.stack([check.bad() for check in checks])


def tell(checks: tuple[Check, ...], bad: Tensor, *, stacklevel: int = 2) -> None:
    """Say what is wrong where the answers (N,) are at hand; errors first."""
    for check, wrong in sorted(zip(checks, bad.tolist(), strict=True), key=lambda pair: not pair[0].fatal):
        if wrong:
            _tell(check, stacklevel + 1)


def at_once(like: Tensor) -> bool:
    """Whether asking costs nothing."""
    return like.device.type == "cpu"


def finite(values: Tensor, say: Callable[[], str]) -> Check:
    """That no value is NaN or infinite: one pass now, since both show in the extremes, and the values are not kept."""
    if values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last):
        values = values.permute(0, 2, 3, 1)  # as it lies in memory: no copy is made
    low, high = values.aminmax()
    return Check(lambda: ~((low > -math.inf) & (high < math.inf)), low, say)


def _tell(check: Check, stacklevel: int) -> None:
    if check.fatal:
        raise GamlensError(check.say())
    warnings.warn(check.say(), GamlensWarning, stacklevel=stacklevel)


def indices_on(values: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers on a device, without waiting for what it is doing: (N,) long."""
    if list(values) == list(range(len(values))):
        return torch.arange(len(values), device=device)
    host = torch.tensor(list(values), dtype=torch.long)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
