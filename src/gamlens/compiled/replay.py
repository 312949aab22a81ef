"""The trunk of a network as one launch: on a GPU its kernels are recorded once and played again.

A large batch keeps the GPU busy for longer than its kernels take to launch and gains nothing, and a record keeps the
memory of its forward: only small batches are recorded, and few sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LARGEST = 64
MOST = 4
WARM = 2
Call = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class _Record:
    """A graph that reads `entry` and writes `results`; `done` is when the last results were copied out."""

    graph: torch.cuda.CUDAGraph
    entry: Tensor
    results: tuple[Any, ...]
    done: torch.cuda.Event

    def play(self, batch: Tensor) -> tuple[Any, ...]:
        stream = torch.cuda.current_stream(batch.device)
        stream.wait_event(self.done)
        self.entry.copy_(batch)
        self.graph.replay()
        found = tuple(value.clone() if isinstance(value, Tensor) else value for value in self.results)
        self.done.record(stream)
        return found


@dataclass(eq=False)
class Replayed:
    """`call` takes one batch and gives a tuple; the same from a record, once a size has been seen a few times."""

    call: Call
    records: dict[Any, _Record] = field(default_factory=dict)
    seen: dict[Any, int] = field(default_factory=dict)

    def __call__(self, batch: Tensor) -> Any:
        if not recordable(batch):
            return self.call(batch)
        key = (batch.shape, batch.stride(), batch.dtype, batch.device)
        if (known := self.records.get(key)) is not None:
            return known.play(batch)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= WARM or len(self.records) >= MOST:
            return self.call(batch)
        self.records[key] = record(self.call, batch)
        return self.records[key].play(batch)


def recordable(batch: Tensor) -> bool:
    return batch.is_cuda and len(batch) <= LARGEST


def record(call: Call, batch: Tensor) -> _Record:
    """Record `call` on a copy of `batch`."""
    entry, graph = batch.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.device(batch.device):
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = call(entry)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return _Record(graph, entry, tuple(results), done)
