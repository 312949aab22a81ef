"""The job that a run does with its items, and the engine that does it in this process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gamlens.engine.run_folder import RunFolder
from gamlens.streaming.prefetch import prefetch

ResultRow = dict[str, Any]  # one row of results; if the item failed, `error` holds the reason


class Worker(Protocol):
    """Holds the model and computes result rows.

    `load` decodes a batch of items; several threads may call it at once. `work` runs the model on what `load`
    returned; only one thread at a time calls it.
    """

    def load(self, items: Sequence[Any]) -> Any: ...

    def work(self, loaded: Any) -> list[ResultRow]: ...


@dataclass(frozen=True)
class Job:
    """What every process of a run does.

    The items of a chunk are always divided into the same batches. So the rows of a chunk do not depend on when and
    where it is computed.

    Attributes:
        make: Makes the worker; called once per process. It must be picklable, because Ray sends it to other machines.
        encode: Turns the rows of a chunk into the contents of its file; picklable, too.
        chunk: The number of items per chunk.
        batch: The number of items per batch.
        name: The name of an item, for the record of its part; picklable, too.
    """

    make: Callable[[], Worker]
    encode: Callable[[Sequence[ResultRow]], bytes]
    chunk: int
    batch: int
    name: Callable[[Any], str] = str

    def names(self, items: Sequence[Any]) -> list[str]:
        """The names of items."""
        return [self.name(item) for item in items]

    def unwritten(self, items: Sequence[Any], folder: RunFolder) -> dict[int, Sequence[Any]]:
        """The chunks that have no file in the run folder yet: {chunk number: items}."""
        written = folder.written()
        return {number: part for number, part in enumerate(pieces(items, self.chunk)) if number not in written}


@dataclass(frozen=True)
class Done:
    """A finished chunk: its number, how many items it has, and how many of them failed."""

    chunk: int
    items: int
    errors: int


def pieces(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Divide items into consecutive pieces of `size`; the last piece may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def count_errors(rows: Sequence[ResultRow]) -> int:
    """The number of rows with an error."""
    return sum(1 for row in rows if row.get("error"))


def run_local(job: Job, items: Sequence[Any], folder: RunFolder, *, workers: int | None = None) -> Iterator[Done]:
    """Compute the chunks that are not written yet in this process; yields each one as soon as it is written.

    `workers` threads decode batches while the model runs. They stay about `workers` batches ahead of it, so the
    memory for decoded batches is bounded for any number of items.
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
            folder.write(number, job.encode(rows), job.names(chunks[number]))
            yield Done(number, worked, count_errors(rows))
            rows, worked = [], 0
