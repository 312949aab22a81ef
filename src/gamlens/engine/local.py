"""A run in this process: decoding runs in threads beside the model, a finished chunk is written at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gamlens.engine.jobs import Done, Job, ResultRow, count_errors, pieces
from gamlens.engine.run_folder import RunFolder
from gamlens.streaming.prefetch import prefetch


def run_local(job: Job, items: Sequence[Any], folder: RunFolder, *, workers: int | None = None) -> Iterator[Done]:
    """Work on the chunks that are not written yet; yields each one as it is finished.

    `workers` threads decode, about that many batches ahead: what waits is bounded, however many items there are.
    """
    chunks = pieces(items, job.chunk)
    todo = sorted(set(range(len(chunks))) - folder.written())
    if not todo:
        return
    worker = job.make()
    batches = ((number, batch) for number in todo for batch in pieces(chunks[number], job.batch))
    rows: list[ResultRow] = []
    worked = 0
    for (number, batch), loaded in prefetch(lambda step: worker.load(step[1]), batches, workers=workers):
        rows += worker.work(loaded)
        worked += len(batch)
        if worked == len(chunks[number]):
            folder.write(number, job.encode(rows))
            yield Done(number, worked, count_errors(rows))
            rows, worked = [], 0
