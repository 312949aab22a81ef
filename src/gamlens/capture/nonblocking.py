"""Working with a device without waiting for it: checks that are answered later, indices, copies to the host.

A check asks what may be wrong with a result. On the CPU it is answered at once. On an accelerator, reading an answer
would stop the host until the device has caught up. There the answer stays on the device, travels with the result, and
is read together with all others when the result comes to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError, warn

Arrival = Callable[[], list[Tensor]]
HOST = "cpu"  # the kind of device whose values can be read without waiting


@dataclass(eq=False)
class Check:
    """One question about a result.

    Attributes:
        bad: Computes a boolean on the device when somebody asks.
        say: Makes the message.
        fatal: Whether a bad answer is an error, which is raised whenever the result is read, or a warning, which is
            given once.
        answer: The answer, once it has come to the host.
    """

    bad: Callable[[], Tensor]
    say: Callable[[], str]
    fatal: bool = True
    answer: bool | None = None

    def tell(self) -> None:
        """Raise the error, or give the warning, if the answer is bad."""
        if self.answer and self.fatal:
            raise GamlensError(self.say())
        if self.answer:
            self.answer = False
            warn(self.say())


@dataclass(frozen=True, eq=False)
class Checks:
    """The checks that travel with a result. Several results may share some: each check is answered once for all."""

    items: tuple[Check, ...] = ()

    def with_check(self, check: Check, device: torch.device) -> Checks:
        """These checks and one more. On the CPU it is answered at once and not kept."""
        if device.type != HOST:
            return Checks((*self.items, check))
        if bool(check.bad()):
            check.answer = True
            check.tell()
        return self

    def __add__(self, other: Checks) -> Checks:
        return Checks(self.items + other.items) if other.items else self

    def __len__(self) -> int:
        return len(self.items)

    def open(self) -> list[Check]:
        """The checks without an answer."""
        return [check for check in self.items if check.answer is None]

    def resolve(self) -> None:
        """Answer all checks with one wait for the device, and say what is wrong."""
        waiting = self.open()
        self.tell(waiting, answers_of(waiting).tolist() if waiting else [])

    def tell(self, asked: Sequence[Check], answers: Sequence[bool]) -> None:
        """Say what is wrong, given the answers to the checks that were asked. Errors come before warnings."""
        for check, answer in zip(asked, answers, strict=True):
            check.answer = answer if check.answer is None else check.answer
        for check in sorted(self.items, key=lambda check: not check.fatal):
            check.tell()


def answers_of(checks: Sequence[Check]) -> Tensor:
    """What each check finds, still on the device: (N,) of bool."""
    return torch.stack([check.bad() for check in checks])


def finite(values: Mapping[str, Tensor], say: Callable[[str], str]) -> Check:
    """A check that no value of these tensors is NaN or infinite; `say` makes the message for a name.

    The extremes of each tensor are taken now, in one pass, so that the values themselves need not be kept: a NaN
    makes both extremes NaN.
    """
    extremes: list[Tensor] = []
    for tensor in values.values():
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            tensor = tensor.permute(0, 2, 3, 1)  # in the order of the memory, so that no copy is made
        extremes += tensor.aminmax()
    return Check(partial(_any_infinite, extremes), partial(_say_infinite, list(values), extremes, say))


def finite_score(values: Any, rows: int) -> Check:
    """A check that a score is one finite number per row: a tensor (rows,)."""
    if not isinstance(values, Tensor) or values.shape != (rows,):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise GamlensError(
            f"The score must be one number for each of the {rows} rows, a tensor ({rows},); found {found}."
        )
    values = values.detach()
    return Check(partial(_any_infinite, [values]), partial(_say_score, values))


def _any_infinite(values: Sequence[Tensor]) -> Tensor:
    finite = list(map(torch.isfinite, values))
    return ~(torch.stack(finite) if len(finite) > 1 else finite[0]).all()


def _say_infinite(names: Sequence[str], extremes: Sequence[Tensor], say: Callable[[str], str]) -> str:
    bad = [number for number, value in enumerate(extremes) if not bool(value.isfinite())]
    return say(names[bad[0] // 2])


def _say_score(values: Tensor) -> str:
    row = int((~values.isfinite()).nonzero()[0, 0])
    return (
        f"The score of row {row} is {float(values[row])}: are there NaN or infinite values in the weights or the image?"
    )


def indices_on(values: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers as a tensor (N,) of int64 on a device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    if list(values) == list(range(len(values))):
        return torch.arange(len(values), device=device)
    return torch.tensor(values, dtype=torch.long).pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor], pool: Executor | None = None) -> Arrival:
    """Start to copy tensors to the host; returns a function that waits for the copies and gives them back.

    From a GPU the values go through pinned memory, which the GPU writes by itself, into ordinary memory, which the
    caller may keep. With a `pool`, one of its threads waits and copies.
    """
    if not any(map(_is_cuda, tensors)):
        here = [tensor.cpu() for tensor in tensors]
        return lambda: here
    arrival = _from_cuda(tensors)
    return pool.submit(arrival).result if pool is not None else arrival


def _from_cuda(tensors: Sequence[Tensor]) -> Arrival:
    device = next(tensor.device for tensor in tensors if _is_cuda(tensor))
    pinned = [_pinned(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))

    def arrive() -> list[Tensor]:
        done.synchronize()
        return [unpinned_copy(room) for room in pinned]

    return arrive


def _is_cuda(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def unpinned_copy(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory, made by numpy: torch would take cores from the threads that decode images."""
    return torch.from_numpy(tensor.numpy().copy())
