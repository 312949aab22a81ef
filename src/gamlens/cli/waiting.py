"""Progress on standard error, for work that takes longer than a moment."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gamlens.cli import terminal
from gamlens.errors import printable

SECONDS_BEFORE_SHOWN = 1.0
SECONDS_BETWEEN_LINES = 60.0
BAR = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
SPINNER = SpinnerColumn(), "{task.description}", TimeElapsedColumn()


class TerminalProgress(Progress):
    """Progress on standard error, shown if the work lasts longer than `SECONDS_BEFORE_SHOWN`.

    It is hidden with `quiet` and --json, and where standard error is not a terminal. Of progress inside other progress
    only the outer one is shown.
    """

    _running: ClassVar[int] = 0  # how many have been started and not stopped

    def __init__(self, *columns: str | ProgressColumn, quiet: bool = False) -> None:
        hidden = quiet or terminal.is_json() or not terminal.err_console.is_terminal
        super().__init__(*(columns or BAR), console=terminal.err_console, transient=True, disable=hidden)
        self._shown, self._ended, self._turn = False, False, threading.Lock()
        self._timer = threading.Timer(SECONDS_BEFORE_SHOWN, self._show)
        self._timer.daemon = True

    def start(self) -> None:
        self.disable = self.disable or TerminalProgress._running > 0
        TerminalProgress._running += 1
        if not self.disable:
            self._timer.start()

    def stop(self) -> None:
        TerminalProgress._running -= 1
        self._timer.cancel()
        with self._turn:
            self._ended = True
        if self._shown:
            super().stop()

    def _show(self) -> None:
        with self._turn:
            if not self._ended:
                self._shown = True
                super().start()


@contextmanager
def steps(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a progress bar for `total` steps; yields a function to call with the name of each step as it begins."""
    with TerminalProgress(quiet=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, description=escape(printable(name)), advance=1)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something goes on whose end is not known, such as reading a model, and how long it has taken."""
    with TerminalProgress(*SPINNER) as spinner:
        spinner.add_task(escape(printable(what)), total=None)
        yield


class ItemProgress(TerminalProgress):
    """A progress bar for many items. Call it with the number of finished items and of errors so far.

    It shows the rate, the time left and the errors. Where standard error is not a terminal, it prints these as one
    line per minute instead.
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
                terminal.note(f"continuing after {items} of {self.total} items")
        line = self.line(items, errors)
        self.update(self.task, completed=items, description=line)
        if not terminal.err_console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            terminal.err_console.print(f"{items} of {self.total} items, {line}", highlight=False, soft_wrap=True)

    def line(self, items: int, errors: int) -> str:
        """A status such as `localization: 12.3 items per second, 1:05:00 left, 2 errors`."""
        seconds = time.monotonic() - self.began
        done = items - (self.first or 0)
        parts = []
        if done and seconds > 0:
            left = round((self.total - items) * seconds / done)
            clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            parts = [f"{done / seconds:.1f} items per second", f"{clock} left"]
        if errors:
            parts.append(f"{errors} errors")
        return f"{self.what}: {', '.join(parts)}" if parts else self.what
