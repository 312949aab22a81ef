"""Work done ahead of the one who needs it: in threads, in order, and never more than a few items of it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def ahead(fn: Callable[[T], U], items: Iterable[T], *, threads: int | None = None) -> Iterator[tuple[T, U]]:
    """Each item with fn(item), in order, while the next ones are under way: one a thread, and one more."""
    count = threads or min(8, os.cpu_count() or 1)
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
