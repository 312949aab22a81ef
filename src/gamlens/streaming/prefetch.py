"""Work done ahead of the one who needs it: in threads, in order, and never more than a few items of it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

from gamlens.errors import GamlensError

STEP = 8
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


def ahead(fn: Callable[[T], U], items: Iterable[T], *, threads: int | None = None) -> Iterator[tuple[T, U]]:
    """Each item with fn(item), in order, while the next ones are under way: one a thread, and one more."""
    count = crew(threads)
    source = iter(items)
    waiting: deque[tuple[T, Future[U]]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="ahead") as pool:
        try:
            while True:
                for item in islice(source, count + 1 - len(waiting)):
                    waiting.append((item, pool.submit(fn, item)))
                if not waiting:
                    return
                item, future = waiting.popleft()
                yield item, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items `size` at a time, as they come."""
    source = iter(items)
    while group := list(islice(source, size)):
        yield group


def crew(threads: int | None) -> int:
    """How many threads there are, `threads` where that is given."""
    if threads is not None and threads < 1:
        raise GamlensError(f"workers={threads}: give at least 1.")
    return threads or usual()


def usual() -> int:
    """How many threads decode where nobody says so."""
    return min(8, os.cpu_count() or 1)


@dataclass(eq=False)
class _Batch(Generic[T, U, V]):
    """Items put in so far, `sent` of them to threads in `tasks` that are not done; then what is made of them all."""

    items: list[T] = field(default_factory=list)
    found: list[U | None] = field(default_factory=list)
    sent: int = 0
    tasks: int = 0
    closed: bool = False
    made: Future[V] = field(default_factory=Future)


class Line(Generic[T, U, V]):
    """Items go in one by one and come out in batches, in order: made([fn(item), ...]), made by the thread that ends it.

    All threads work on one batch, a few items each, so that the first is soon there; a few batches wait at most.
    """

    def __init__(
        self, fn: Callable[[T], U], made: Callable[[Sequence[U]], V], *, batch: int, threads: int | None = None
    ) -> None:
        count = crew(threads)
        self.fn, self.made, self.batch = fn, made, batch
        self.step = max(1, min(STEP, batch // count))
        self.most = 2 + -(-count * self.step // batch)
        self.waiting: deque[_Batch[T, U, V]] = deque()
        self._open: _Batch[T, U, V] = _Batch()
        self._lock, self._stopped = threading.Lock(), False
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="ahead")

    def __enter__(self) -> Line[T, U, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._pool.shutdown()

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < self.most

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give a batch at once."""
        return bool(self.waiting) and self.waiting[0].made.done()

    def put(self, item: T) -> None:
        batch = self._open
        batch.items.append(item)
        batch.found.append(None)
        if len(batch.items) == self.batch:
            self.flush()
        elif len(batch.items) - batch.sent == self.step:
            self._send(batch)

    def flush(self) -> None:
        """Let the batch begun be one, full or not."""
        if self._open.items:
            batch, self._open = self._open, _Batch()
            self.waiting.append(batch)
            self._send(batch, closes=True)

    def take(self) -> tuple[list[T], V]:
        """The oldest batch, waited for."""
        batch = self.waiting.popleft()
        return batch.items, batch.made.result()

    def _send(self, batch: _Batch[T, U, V], *, closes: bool = False) -> None:
        places = range(batch.sent, len(batch.items))
        with self._lock:
            batch.sent, batch.closed, batch.tasks = len(batch.items), closes, batch.tasks + 1
        self._pool.submit(self._work, batch, places)

    def _work(self, batch: _Batch[T, U, V], places: range) -> None:
        try:
            for place in places:
                if self._stopped:
                    return
                batch.found[place] = self.fn(batch.items[place])
            with self._lock:
                batch.tasks -= 1
                last = batch.closed and not batch.tasks
            if last:
                batch.made.set_result(self.made(batch.found))  # type: ignore[arg-type]  # all of them are found
        except BaseException as error:  # noqa: BLE001 - it is raised where the batch is taken
            if not batch.made.done():
                batch.made.set_exception(error)
