"""Record the trunk of a network as a CUDA graph, so that it is one launch instead of one per kernel.

Only small batches gain from this: with a large one the GPU computes for longer than the host needs to launch the
kernels. A recorded graph also keeps the memory of its forward. Hence the limits: `LARGEST` images per batch, `MOST`
recorded shapes, and a shape is recorded only after it has run `WARM` times.
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
    """A CUDA graph, which always reads the same memory (`entry`) and writes the same memory (`results`).

    `done` is recorded after the results of a call were copied out, so that a call on another stream waits for that.
    """

    graph: torch.cuda.CUDAGraph
    entry: Tensor
    results: tuple[Any, ...]
    done: torch.cuda.Event

    def play(self, batch: Tensor) -> tuple[Any, ...]:
        """Run the graph on `batch` and return copies of its results, which the next call would overwrite."""
        stream = torch.cuda.current_stream(batch.device)
        stream.wait_event(self.done)
        self.entry.copy_(batch)
        self.graph.replay()
        found = tuple(value.clone() if isinstance(value, Tensor) else value for value in self.results)
        self.done.record(stream)
        return found


@dataclass(eq=False)
class Replayed:
    """Wraps `call`, a function from one batch to a tuple, and records it for batch shapes that occur often.

    Attributes:
        call: The function.
        records: The recorded graphs by shape, strides, type and device of the batch.
        seen: How often each of these has run without a record.
    """

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
    """Tell whether a batch lies on a GPU and is small enough to be recorded."""
    return batch.is_cuda and len(batch) <= LARGEST


def record(call: Call, batch: Tensor) -> _Record:
    """Record `call` on a copy of `batch`, whose memory becomes the input of the graph."""
    entry, graph = batch.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.device(batch.device):
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = call(entry)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return _Record(graph, entry, tuple(results), done)
