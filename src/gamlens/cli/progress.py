"""How far a long command is: a bar on a terminal, a line per minute where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from gamlens.cli.common import err_console, note

SECONDS_BETWEEN_LINES = 60.0


class TerminalProgress(Progress):
    """A bar on standard error; nothing is shown where that is no terminal, or with `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        hidden = quiet or not err_console.is_terminal
        super().__init__(*columns, console=err_console, transient=True, disable=hidden)


@contextmanager
def steps(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A bar for a known number of steps: call it with the name of each step as the step begins."""
    with TerminalProgress(quiet=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, description=name, advance=1)


class ItemProgress(TerminalProgress):
    """A bar for many items: call it with the number of items and of errors so far.

    It shows the rate, the time left and the errors. Where standard error is no terminal, it prints them as a line
    every minute.
    """

    def __init__(self, what: str, total: int) -> None:
        super().__init__()
        self.what, self.total = what, total
        self.task = self.add_task(what, total=total)
        self.began = self.said = time.monotonic()
        self.first: int | None = None

    def __call__(self, items: int, errors: int) -> None:
        if self.first is None:
            self.first, self.began = items, time.monotonic()
            if 1 < items < self.total:
                note(f"going on after {items} of {self.total} items")
        line = self.line(items, errors)
        self.update(self.task, completed=items, description=line)
        if not err_console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            err_console.print(f"{items} of {self.total} items, {line}", highlight=False, soft_wrap=True)

    def line(self, items: int, errors: int) -> str:
        """`localization: 12.3 items a second, 1:05:00 left, 2 errors`."""
        seconds = time.monotonic() - self.began
        done = items - (self.first or 0)
        parts = []
        if done and seconds > 0:
            left = round((self.total - items) * seconds / done)
            clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            parts = [f"{done / seconds:.1f} items a second", f"{clock} left"]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self.what}: {', '.join(parts)}" if parts else self.what
