"""How far a long command is: a bar on a terminal, a line per minute where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gamlens.cli.common import err_console, note

SECONDS_BETWEEN_LINES = 60.0


def progress_bar(*, quiet: bool = False) -> Progress:
    """A bar on standard error; nothing is shown where that is no terminal, or with `quiet`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=err_console, transient=True, disable=quiet or not err_console.is_terminal)


@contextmanager
def steps(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A bar for a known number of steps: call it with the name of each step as the step begins."""
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, description=name, advance=1)


class ItemProgress:
    """A bar for many items: call it with the number of items and of errors so far.

    It shows the rate, the time left and the errors. Where standard error is no terminal, it prints them as a line
    every `every` seconds.
    """

    def __init__(self, what: str, total: int, *, every: float = SECONDS_BETWEEN_LINES) -> None:
        self._what, self._total, self._every = what, total, every
        self._bar = progress_bar()
        self._task = self._bar.add_task(what, total=total)
        self._start = self._said = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> ItemProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, items: int, errors: int) -> None:
        if self._first is None:
            self._first, self._start = items, time.monotonic()
            if 1 < items < self._total:
                note(f"going on after {items} of {self._total} items")
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
            clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            parts = [f"{done / seconds:.1f} items a second", f"{clock} left"]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self._what}: {', '.join(parts)}" if parts else self._what
