"""What a run does with its items, wherever it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
