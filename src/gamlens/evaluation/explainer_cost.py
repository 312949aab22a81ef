"""What a call costs: its time, and the memory that it takes at its peak."""

import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

T = TypeVar("T")


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Call a function and return its result with the seconds it took, until the device has finished."""
    _wait(device)
    start = time.perf_counter()
    result = call()
    _wait(device)
    return result, time.perf_counter() - start


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The largest number of bytes that tensors take at any time during a call, beyond those before it.

    On a GPU it is what its allocator reports. On a CPU it is the sum of all tensors that operations of torch have made
    and that are still alive. It does not depend on the system's allocator or on other programs; memory that NumPy,
    OpenCV, or an operation for itself takes is not counted.
    """
    if device.type == "cuda":
        _wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    counted = _LiveBytes()
    with counted:
        call()
    return counted.most


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make, as long as they are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_iter(result):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self._alive.add(storage._cdata)
                    self.held += storage.nbytes()
                    self.most = max(self.most, self.held)
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return result

    def _free(self, storage: int, size: int) -> None:
        self._alive.discard(storage)
        self.held -= size


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
