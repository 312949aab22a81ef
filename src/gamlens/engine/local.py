"""A run in this process: decoding runs in threads beside the model, a finished chunk is written at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from gamlens.engine.folder import RunFolder
from gamlens.engine.jobs import Done, Job, Row, failed, pieces


def run_local(job: Job, items: Sequence[Any], folder: RunFolder, *, workers: int | None = None) -> Iterator[Done]:
    """Work on the chunks that are not written yet; yields each one as it is finished.

    `workers` threads decode, at most that many batches ahead: what waits is bounded, however many items there are.
    """
    threads = workers or min(8, os.cpu_count() or 1)
    chunks = pieces(items, job.chunk)
    done = folder.written()
    todo = (
        (number, batch, batch is pieces_of[-1])
        for number, chunk in enumerate(chunks)
        if number not in done
        for pieces_of in [pieces(chunk, job.batch)]
        for batch in pieces_of
    )
    worker = job.make() if len(done) < len(chunks) else None
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        ahead: deque[tuple[int, bool, Future[Any]]] = deque()
        rows: list[Row] = []
        try:
            while worker is not None:
                while len(ahead) <= threads and (following := next(todo, None)) is not None:
                    ahead.append((following[0], following[2], pool.submit(worker.load, following[1])))
                if not ahead:
                    return
                number, last, loading = ahead.popleft()
                rows += worker.work(loading.result())
                if last:
                    folder.write(number, job.encode(rows))
                    yield Done(number, len(chunks[number]), failed(rows))
                    rows = []
        finally:
            for _, _, waiting in ahead:
                waiting.cancel()
