"""Work done before it is needed: in threads, in order, and never more than a few items ahead."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from gamlens.errors import GamlensError

MOST_ITEMS_PER_TASK, MOST_THREADS = 8, 8
ItemT = TypeVar("ItemT")
LoadedT = TypeVar("LoadedT")
BatchT = TypeVar("BatchT")


def prefetch(
    fn: Callable[[ItemT], LoadedT], items: Iterable[ItemT], *, workers: int | None = None
) -> Iterator[tuple[ItemT, LoadedT]]:
    """Each item with fn(item), in order, while threads compute the next ones: one per thread, and one more."""
    source, count = iter(items), worker_count(workers)
    with BatchPrefetcher(fn, lambda loaded: loaded[0], batch_size=1, workers=count) as batches:
        while True:
            for item in islice(source, count + 1 - len(batches.waiting)):
                batches.put(item)
            if not batches.waiting:
                return
            (item,), loaded = batches.take()
            yield item, loaded


def grouped(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Lists of `size` items, made as the items come; the last one may be shorter."""
    source = iter(items)
    while group := list(islice(source, size)):
        yield group


def worker_count(workers: int | None = None) -> int:
    """How many threads decode: `workers` where it is given, else one per core, at most 8."""
    if workers is not None and workers < 1:
        raise GamlensError(f"workers={workers}: give at least 1.")
    return workers or min(MOST_THREADS, os.cpu_count() or 1)


@dataclass(eq=False)
class _OpenBatch(Generic[ItemT, LoadedT, BatchT]):
    """A batch in the making: its items, what fn made of them so far (by place), and at last the batch itself.

    `sent` items are given to threads, in `tasks` that are not done yet; `closed` says that no more items will come.
    """

    items: list[ItemT] = field(default_factory=list)
    loaded: dict[int, LoadedT] = field(default_factory=dict)
    sent: int = 0
    tasks: int = 0
    closed: bool = False
    made: Future[BatchT] = field(default_factory=Future)


class BatchPrefetcher(Generic[ItemT, LoadedT, BatchT]):
    """Takes items one by one and gives batches in order: collate([fn(item), ...]), both computed in threads.

    All threads work on one batch, a few items each, so that the first batch is soon complete; the thread that finishes
    it also collates it. Only a few batches wait to be taken: put items while there `has_room`.
    """

    def __init__(
        self,
        fn: Callable[[ItemT], LoadedT],
        collate: Callable[[Sequence[LoadedT]], BatchT],
        *,
        batch_size: int,
        workers: int | None = None,
    ) -> None:
        count = worker_count(workers)
        self.fn, self.collate, self.batch_size = fn, collate, batch_size
        self.items_per_task = max(1, min(MOST_ITEMS_PER_TASK, batch_size // count))
        self.most_waiting = 2 + -(-count * self.items_per_task // batch_size)
        self.waiting: deque[_OpenBatch[ItemT, LoadedT, BatchT]] = deque()
        self._open: _OpenBatch[ItemT, LoadedT, BatchT] = _OpenBatch()
        self._lock, self._stopped = threading.Lock(), False
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="prefetch")

    def __enter__(self) -> BatchPrefetcher[ItemT, LoadedT, BatchT]:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Wait for the items that threads are working on; no other is begun."""
        self._stopped = True
        self._pool.shutdown()

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < self.most_waiting

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give a batch at once."""
        return bool(self.waiting) and self.waiting[0].made.done()

    def put(self, item: ItemT) -> None:
        batch = self._open
        batch.items.append(item)
        if len(batch.items) == self.batch_size:
            self.flush()
        elif len(batch.items) - batch.sent == self.items_per_task:
            self._send(batch)

    def flush(self) -> None:
        """Close the batch that was begun, full or not."""
        if self._open.items:
            batch, self._open = self._open, _OpenBatch()
            self.waiting.append(batch)
            self._send(batch, closes=True)

    def take(self) -> tuple[list[ItemT], BatchT]:
        """The items of the oldest batch, and the batch; waits until it is made."""
        batch = self.waiting.popleft()
        return batch.items, batch.made.result()

    def _send(self, batch: _OpenBatch[ItemT, LoadedT, BatchT], *, closes: bool = False) -> None:
        places = range(batch.sent, len(batch.items))
        with self._lock:
            batch.sent, batch.closed, batch.tasks = len(batch.items), closes, batch.tasks + 1
        self._pool.submit(self._work, batch, places)

    def _work(self, batch: _OpenBatch[ItemT, LoadedT, BatchT], places: range) -> None:
        try:
            for place in places:
                if self._stopped:
                    return
                batch.loaded[place] = self.fn(batch.items[place])
            with self._lock:
                batch.tasks -= 1
                last = batch.closed and not batch.tasks
            if last:
                batch.made.set_result(self.collate([batch.loaded[place] for place in range(len(batch.items))]))
        except BaseException as error:  # noqa: BLE001 - it is raised where the batch is taken
            if not batch.made.done():
                batch.made.set_exception(error)
