"""Compute items in threads before they are needed, in order, and never more than a few items ahead."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from gamlens.errors import GamlensError

MOST_ITEMS_PER_TASK, MOST_THREADS = 8, 8
ItemT = TypeVar("ItemT")
LoadedT = TypeVar("LoadedT")
BatchT = TypeVar("BatchT")


def prefetch(
    fn: Callable[[ItemT], LoadedT], items: Iterable[ItemT], *, workers: int | None = None
) -> Iterator[tuple[ItemT, LoadedT]]:
    """Yield (item, fn(item)) for each item, in order, while threads compute the next ones.

    Args:
        fn: Called in a thread, or in the calling thread if there is only one item.
        items: Read by the calling thread, at most `workers` + 1 items ahead of the one that is yielded.
        workers: How many threads there are; see `worker_count`.
    """
    source, count = iter(items), worker_count(workers)
    first = list(islice(source, 2))
    if len(first) < 2:  # nothing can be computed meanwhile, so threads would only cost time
        yield from ((item, fn(item)) for item in first)
        return
    source = chain(first, source)
    with BatchPrefetcher(fn, lambda loaded: loaded[0], batch_size=1, workers=count) as batches:
        while True:
            for item in islice(source, count + 1 - len(batches.waiting)):
                batches.put(item)
            if not batches.waiting:
                return
            (item,), loaded = batches.take()
            yield item, loaded


def grouped(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Yield lists of `size` items, as soon as each is complete; the last list may be shorter."""
    source = iter(items)
    while group := list(islice(source, size)):
        yield group


def worker_count(workers: int | None = None) -> int:
    """Return how many threads decode: `workers` if it is given, else one per core but at most 8."""
    if workers is not None and workers < 1:
        raise GamlensError(f"workers={workers}: give at least 1.")
    return workers or min(MOST_THREADS, os.cpu_count() or 1)


@dataclass(eq=False)
class _OpenBatch(Generic[ItemT, LoadedT, BatchT]):
    """A batch that is not complete yet.

    Attributes:
        items: Its items so far.
        loaded: fn(item) by the item's index, for the items that are done.
        sent: How many of the items have been given to threads.
        tasks: How many tasks of threads are not done yet; a task is a few items.
        closed: Whether no more items will come.
        made: The collated batch, or the exception that fn or collate raised.
    """

    items: list[ItemT] = field(default_factory=list)
    loaded: dict[int, LoadedT] = field(default_factory=dict)
    sent: int = 0
    tasks: int = 0
    closed: bool = False
    made: Future[BatchT] = field(default_factory=Future)


class BatchPrefetcher(Generic[ItemT, LoadedT, BatchT]):
    """Takes items one by one and returns batches collate([fn(item), ...]) in order; threads call fn and collate.

    All threads work on the same batch, a few items each, so that the first batch is complete soon. The thread that
    finishes the last item of a batch also collates it. The caller limits the memory: it puts items while `has_room`
    is true, and takes batches otherwise.

    Args:
        fn: Loads one item.
        collate: Makes a batch from loaded items.
        batch_size: How many items a batch has; the last one may have fewer.
        workers: How many threads there are; see `worker_count`.
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
        # Two batches, and as many more (rounded up) as it takes to give every thread a task.
        self.most_waiting = 2 + -(-count * self.items_per_task // batch_size)
        self.waiting: deque[_OpenBatch[ItemT, LoadedT, BatchT]] = deque()
        self._open: _OpenBatch[ItemT, LoadedT, BatchT] = _OpenBatch()
        self._lock, self._stopped = threading.Lock(), False
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="prefetch")

    def __enter__(self) -> BatchPrefetcher[ItemT, LoadedT, BatchT]:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Stop: wait for the items that threads are working on, and start no others."""
        self._stopped = True
        self._pool.shutdown()

    @property
    def has_room(self) -> bool:
        """Whether fewer batches wait to be taken than the limit allows."""
        return len(self.waiting) < self.most_waiting

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return without waiting."""
        return bool(self.waiting) and self.waiting[0].made.done()

    def put(self, item: ItemT) -> None:
        """Add an item to the current batch."""
        batch = self._open
        batch.items.append(item)
        if len(batch.items) == self.batch_size:
            self.flush()
        elif len(batch.items) - batch.sent == self.items_per_task:
            self._send(batch)

    def flush(self) -> None:
        """Close the current batch, full or not, if it has any items."""
        if self._open.items:
            batch, self._open = self._open, _OpenBatch()
            self.waiting.append(batch)
            self._send(batch, closes=True)

    def take(self) -> tuple[list[ItemT], BatchT]:
        """Wait for the oldest batch and return its items and the batch. An exception in a thread is raised here."""
        batch = self.waiting.popleft()
        return batch.items, batch.made.result()

    def _send(self, batch: _OpenBatch[ItemT, LoadedT, BatchT], *, closes: bool = False) -> None:
        """Give the items that were not sent yet to a thread; `closes` says that they are the last of the batch."""
        places = range(batch.sent, len(batch.items))
        with self._lock:
            batch.sent, batch.closed, batch.tasks = len(batch.items), closes, batch.tasks + 1
        self._pool.submit(self._work, batch, places)

    def _work(self, batch: _OpenBatch[ItemT, LoadedT, BatchT], places: range) -> None:
        """Load the items at `places` of a batch, in a thread, and collate the batch if it is complete then."""
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
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            if not batch.made.done():
                batch.made.set_exception(error)
