"""Progress: on a terminal only, only for work that lasts, and never more than one at a time."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from gamlens.cli import options, terminal, waiting


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    made = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(terminal, "err_console", made)
    yield made
    assert waiting.TerminalProgress._running == 0


def until_shown(progress: waiting.TerminalProgress) -> None:
    """Wait until the progress is on the terminal."""
    for _ in range(6000):
        if progress.live.is_started:
            return
        time.sleep(0.01)
    raise AssertionError("the progress was not shown within a minute")


def test_short_work_shows_nothing(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS_BEFORE_SHOWN", 3600)
    with waiting.waiting("loading"), waiting.steps("steps", 2) as step:
        step("one")
    assert console.file.getvalue() == ""


def test_work_that_lasts_is_shown_and_removed(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS_BEFORE_SHOWN", 0)
    with waiting.TerminalProgress(*waiting.SPINNER) as progress:
        progress.add_task("loading", total=None)
        until_shown(progress)
        progress.refresh()
    assert "loading" in console.file.getvalue()
    assert not progress.live.is_started


def test_of_two_only_the_outer_one_is_shown(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS_BEFORE_SHOWN", 0)
    with waiting.TerminalProgress(*waiting.SPINNER) as outer:
        until_shown(outer)
        with waiting.TerminalProgress(*waiting.SPINNER) as inner:
            assert inner.disable
            assert not inner._timer.is_alive()
    assert console.file.getvalue()


@pytest.mark.parametrize("why", ["json", "quiet", "no terminal"])
def test_it_is_hidden(console: Console, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(waiting, "SECONDS_BEFORE_SHOWN", 0)
    if why == "no terminal":
        monkeypatch.setattr(terminal, "err_console", Console(file=io.StringIO()))
    with terminal.screen(json_=why == "json"), waiting.TerminalProgress(quiet=why == "quiet") as bar:
        bar.add_task("loading", total=3)
        assert not bar._timer.is_alive()
        assert bar.disable
    assert terminal.err_console.file.getvalue() == ""


def test_an_error_leaves_no_thread_and_no_progress(console: Console) -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), waiting.waiting("loading"):
        raise KeyError
    for _ in range(6000):
        if threading.active_count() <= before:
            return
        time.sleep(0.01)
    raise AssertionError("a timer is still running after a minute")


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("gr", ["grad_cam"]), ("gam,gr", ["gam,grad_cam"]), ("x", []), ("", ["gam", "grad_cam"])],
)
def test_names_are_completed_also_after_a_comma(typed: str, wanted: list[str]) -> None:
    assert options.completed(("gam", "grad_cam"))(typed) == wanted
