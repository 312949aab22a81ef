"""How a long run is going: a bar on a terminal, a line a minute where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import Progress

from gamlens.cli.common import err_console, progress, tell

EVERY = 60.0


class Status:
    """Called with the number of items and errors so far; shows rate, time left and errors."""

    def __init__(self, what: str, total: int, *, every: float = EVERY) -> None:
        self._what, self._total, self._every = what, total, every
        self._bar: Progress = progress(False)
        self._task = self._bar.add_task(what, total=total)
        self._start = self._said = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Status:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, items: int, errors: int) -> None:
        if self._first is None:
            self._first, self._start = items, time.monotonic()
            if 1 < items < self._total:
                tell("note", f"going on after {items} of {self._total} items", "yellow")
        line = self.line(items, errors)
        self._bar.update(self._task, completed=items, description=line)
        if not err_console.is_terminal and time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            err_console.print(f"{items} of {self._total} items, {line}", highlight=False, soft_wrap=True)

    def line(self, items: int, errors: int) -> str:
        """`localization: 12.3 items a second, 1:05:00 left, 2 errors`."""
        seconds = time.monotonic() - self._start
        done = items - (self._first or 0)
        parts = []
        if done and seconds > 0:
            left = round((self._total - items) * seconds / done)
            parts = [
                f"{done / seconds:.1f} items a second",
                f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left",
            ]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self._what}: {', '.join(parts)}" if parts else self._what
