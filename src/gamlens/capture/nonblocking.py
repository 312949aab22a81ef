"""Work with a GPU without waiting for it: checks that are read later, indices, copies to the host.

A Check asks whether something is wrong with a result, such as a NaN. On the CPU it is answered at once. On a GPU,
reading the answer would block the host until the GPU has finished all work before it. There the Check travels with the
result, and is answered together with all others when the result is copied to the host.
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

Arrival = Callable[[], list[Tensor]]  # waits until tensors have been copied to the host, and returns the copies
HOST = "cpu"  # the type of the device whose values can be read without waiting


@dataclass(eq=False)
class Check:
    """One question about a result: is this wrong with it?

    Attributes:
        bad: Computes the answer as a boolean tensor () on the device; True means that something is wrong.
        say: Makes the message. It is called only if the answer is True.
        fatal: True for an error, which is raised each time the result is read; False for a warning, which is given
            once.
        answer: The answer on the host, or None as long as it has not been read.
    """

    bad: Callable[[], Tensor]
    say: Callable[[], str]
    fatal: bool = True
    answer: bool | None = None

    def tell(self) -> None:
        """Raise the error, or give the warning, if the answer is True."""
        if self.answer and self.fatal:
            raise GamlensError(self.say())
        if self.answer:
            self.answer = False
            warn(self.say())


@dataclass(frozen=True, eq=False)
class Checks:
    """The checks that travel with a result. Results may share a check, which is then answered once for all of them."""

    items: tuple[Check, ...] = ()

    def with_check(self, check: Check, device: torch.device) -> Checks:
        """Return these checks with one more. If the result lies on the CPU, the check is answered now and not added."""
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
        """Return the checks that have no answer yet."""
        return [check for check in self.items if check.answer is None]

    def resolve(self) -> None:
        """Answer all checks, waiting for the device once, and raise or warn if something is wrong."""
        waiting = self.open()
        self.tell(waiting, answers_of(waiting).tolist() if waiting else [])

    def tell(self, asked: Sequence[Check], answers: Sequence[bool]) -> None:
        """Note the answers to the checks in `asked`, then raise or warn if something is wrong, errors first."""
        for check, answer in zip(asked, answers, strict=True):
            check.answer = answer if check.answer is None else check.answer
        for check in sorted(self.items, key=lambda check: not check.fatal):
            check.tell()


def answers_of(checks: Sequence[Check]) -> Tensor:
    """Compute the answers of N checks on the device: (N,) bool."""
    return torch.stack([check.bad() for check in checks])


def finite(values: Mapping[str, Tensor], say: Callable[[str], str]) -> Check:
    """Make a check that finds NaN and infinite values in tensors.

    The minimum and maximum of each tensor are computed now, in one pass, and the check keeps only these two: an
    infinity is itself an extreme, and a NaN makes both extremes NaN.

    Args:
        values: The tensors by name.
        say: Makes the message from the name of the first bad tensor.
    """
    extremes: list[Tensor] = []
    for tensor in values.values():
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            tensor = tensor.permute(0, 2, 3, 1)  # contiguous in this order, so that aminmax makes no copy
        extremes += tensor.aminmax()
    return Check(partial(_any_infinite, extremes), partial(_say_infinite, list(values), extremes, say))


def finite_score(values: Any, rows: int) -> Check:
    """Make a check that a score is finite, and raise at once if it is not a tensor (rows,)."""
    if not isinstance(values, Tensor) or values.shape != (rows,):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise GamlensError(
            f"The score must be a tensor ({rows},), one number for each of the {rows} rows; found {found}."
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
        f"The score of row {row} is {float(values[row])}: look for NaN or infinite values in the weights and the image."
    )


def indices_on(values: Sequence[int], device: torch.device) -> Tensor:
    """Make an int64 tensor (N,) on a device; for a GPU through pinned memory, so that the host does not wait."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    if list(values) == list(range(len(values))):
        return torch.arange(len(values), device=device)
    return torch.tensor(values, dtype=torch.long).pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor], pool: Executor | None = None) -> Arrival:
    """Start to copy tensors to the host.

    A GPU can copy to pinned memory while the host goes on. Pinned memory is scarce, so the values are then copied
    to ordinary memory, which the caller may keep.

    Args:
        tensors: The tensors to copy.
        pool: If given, one of its threads waits for the GPU and makes the second copy.

    Returns:
        A function that waits for the copies and returns them.
    """
    if not any(map(_is_cuda, tensors)):
        here = [tensor.cpu() for tensor in tensors]
        return lambda: here
    arrival = _from_cuda(tensors)
    return pool.submit(arrival).result if pool is not None else arrival


def _from_cuda(tensors: Sequence[Tensor]) -> Arrival:
    device = next(tensor.device for tensor in tensors if _is_cuda(tensor))
    pinned = [_pinned(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
    # A blocking event puts the waiting thread to sleep; any other keeps a core busy, which threads that decode need.
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
    """Copy a tensor to ordinary memory by numpy: torch's own copy threads would take cores from decoding threads."""
    return torch.from_numpy(tensor.numpy().copy())
