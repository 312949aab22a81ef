"""Between the host and a device without waiting for what the device is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

Arrival = Callable[[], list[Tensor]]


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
        return [own(room) for room in pinned]

    return arrive


def _is_cuda(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def own(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory, made by numpy: torch would take cores from the threads that decode images."""
    return torch.from_numpy(tensor.numpy().copy())
