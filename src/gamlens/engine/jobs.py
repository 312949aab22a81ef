"""What a run does with its items, wherever it happens; and how it happens in this process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gamlens.engine.run_folder import RunFolder
from gamlens.streaming.prefetch import prefetch

ResultRow = dict[str, Any]  # one line of a run's results; `error` says why an item failed


class Worker(Protocol):
    """Holds the model. `load` decodes a few items and may run in any thread; only one thread at a time calls `work`."""

    def load(self, items: Sequence[Any]) -> Any: ...

    def work(self, loaded: Any) -> list[ResultRow]: ...


@dataclass(frozen=True)
class Job:
    """What every process does: `make` its worker once, and `encode` the rows of a chunk as one file. Both functions
    travel to other machines.

    A chunk is worked on `batch` items at a time, always the same ones together, so that its rows are the same
    whenever and wherever it is done.
    """

    make: Callable[[], Worker]
    encode: Callable[[Sequence[ResultRow]], bytes]
    chunk: int
    batch: int

    def unwritten(self, items: Sequence[Any], folder: RunFolder) -> dict[int, Sequence[Any]]:
        """The chunks that are still to be done, by number."""
        written = folder.written()
        return {number: part for number, part in enumerate(pieces(items, self.chunk)) if number not in written}


@dataclass(frozen=True)
class Done:
    """A chunk that is finished."""

    chunk: int
    items: int
    errors: int


def pieces(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Items `size` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def count_errors(rows: Sequence[ResultRow]) -> int:
    """How many items failed."""
    return sum(1 for row in rows if row.get("error"))


def run_local(job: Job, items: Sequence[Any], folder: RunFolder, *, workers: int | None = None) -> Iterator[Done]:
    """Work on the chunks that are not written yet, in this process; yields each one as soon as it is written.

    `workers` threads decode beside the model, about that many batches ahead: what waits is bounded, however many items
    there are.
    """
    chunks = job.unwritten(items, folder)
    if not chunks:
        return
    worker = job.make()
    batches = ((number, batch) for number, chunk in chunks.items() for batch in pieces(chunk, job.batch))
    rows: list[ResultRow] = []
    worked = 0
    for (number, batch), loaded in prefetch(lambda step: worker.load(step[1]), batches, workers=workers):
        rows += worker.work(loaded)
        worked += len(batch)
        if worked == len(chunks[number]):
            folder.write(number, job.encode(rows))
            yield Done(number, worked, count_errors(rows))
            rows, worked = [], 0
