"""From the device to the host: many tensors at once, while the device goes on with other work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

Arrival = Callable[[], list[Tensor]]


def leave(tensors: Sequence[Tensor], pool: Executor | None = None) -> Arrival:
    """Start to copy tensors to the host. The call it gives back waits for them, once for all; they are the caller's.

    From a GPU they go through pinned memory, which it writes itself, into ordinary memory, which may be kept for as
    long as one likes. With a `pool` one of its threads waits and copies.
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
        return [own(room) for room in pinned]

    return arrive


def _is_cuda(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def own(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory. By numpy, in this thread alone: torch would take every core from those that decode."""
    return torch.from_numpy(tensor.numpy().copy())
