"""`make chaos` in small, and that its judges see what is wrong."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
import time
from pathlib import Path

import chaos
import chaos_oracle
import pytest
from chaos_oracle import REFUSED, RIGHT, CaseFailedError, Ended, judge
from chaos_room import Room, dice_of

from gamlens import GamlensError

CHAOS = Path(chaos.__file__)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("chaos") / "room")


def test_sixty_cases(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    tally = chaos.run(room, chaos.plan(60, 0), seed=7)
    assert not tally.failures, capsys.readouterr().out
    assert sum(count.total() for count in tally.counts.values()) == 60


@pytest.mark.slow
def test_five_hundred_cases_and_ten_kills() -> None:
    """In a process of its own, since forks need one that has computed nothing."""
    command = [sys.executable, str(CHAOS), "--cases", "500", "--kills", "10", "--seed", "11", "--seconds", "240"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped after" not in done.stdout


def test_a_failed_case_says_how_to_run_it_alone(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dice: random.Random, room: Room, here: Path) -> str:
        return chaos_oracle.call(lambda: 1 / 0)

    monkeypatch.setitem(chaos.KINDS, "image", broken)
    said: list[str] = []
    tally = chaos.run(room, [("image", 3)], seed=5, say=said.append)
    assert "ZeroDivisionError" in tally.failures[0]
    assert "python benchmarks/chaos.py --seed 5 --only image --case 3" in said[-1]
    assert tally.table().split()[-5:] == ["1", "0", "0", "1", "0"]


def test_a_case_that_hangs_or_swells_fails(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(dice: random.Random, room: Room, here: Path) -> str:
        try:
            time.sleep(5)
        except Exception:  # noqa: BLE001 - what a library may do must not hide it
            return RIGHT
        return RIGHT

    def swells(dice: random.Random, room: Room, here: Path) -> str:
        with mmap.mmap(-1, 60 << 20) as pages:  # never from memory that the process has kept
            for start in range(0, len(pages), mmap.PAGESIZE):
                pages[start] = 1
        return RIGHT

    monkeypatch.setattr(chaos, "SECONDS_PER_CASE", 0.2)
    monkeypatch.setitem(chaos.KINDS, "image", waits)
    assert "did not end within" in chaos.run(room, [("image", 0)], seed=0, say=str).failures[0]
    monkeypatch.setattr(chaos, "SECONDS_PER_CASE", 10.0)
    monkeypatch.setattr(chaos, "MIB_PER_CASE", 30)
    monkeypatch.setitem(chaos.KINDS, "image", swells)
    assert "MiB of memory" in chaos.run(room, [("image", 0)], seed=0, say=str).failures[0]


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (Ended(0, "0.5\n", ""), "its result is wrong"),
        (Ended(1, "", "Traceback (most recent call last):\nKeyError\n"), "a traceback"),
        (Ended(1, "", "error  a\nerror  b\n"), "2 errors"),
        (Ended(1, "", ""), "0 errors"),
        (Ended(0, "", "error  a\n"), "printed an error"),
        (Ended(2, "", "error  a\n"), "exit code 2"),
        (Ended(-9, "", ""), "exit code -9"),
        (Ended(1, "", "error  red\x1b[31m\n"), "control characters"),
    ],
)
def test_how_a_command_may_not_end(ended: Ended, message: str) -> None:
    with pytest.raises(CaseFailedError, match=message):
        judge(ended, lambda: False)


def test_how_a_command_may_end() -> None:
    assert judge(Ended(0, "0.5\n", "note  a\n"), lambda: True) == RIGHT
    assert judge(Ended(1, "", "error  a\n"), lambda: True) == REFUSED
    assert chaos_oracle.call(lambda: _raise(GamlensError("no"))) == REFUSED
    with pytest.raises(CaseFailedError, match="KeyError"):
        chaos_oracle.call(lambda: _raise(KeyError("no")))
    with pytest.raises(CaseFailedError, match="wrong result"):
        chaos_oracle.call(lambda: 1, lambda found: found == 2)


def _raise(error: Exception) -> None:
    raise error


def test_lost_files_are_seen(tmp_path: Path) -> None:
    chaos_oracle.put_foreign(tmp_path)
    chaos_oracle.check_foreign(tmp_path)
    before = chaos_oracle.tree(tmp_path)
    (tmp_path / "notes.txt").write_text("yours")
    (tmp_path / ".stray.part").touch()
    assert chaos_oracle.difference(before, chaos_oracle.tree(tmp_path)) == (
        "'.stray.part' is there and should not be, 'notes.txt' differs"
    )
    with pytest.raises(CaseFailedError, match=r"notes\.txt"):
        chaos_oracle.check_foreign(tmp_path)


def test_a_case_does_not_depend_on_those_before_it() -> None:
    """So it can be run alone; and a plan names every case once, with forks first."""
    assert dice_of(1, "run", 5).random() == dice_of(1, "run", 5).random() != dice_of(1, "run", 6).random()
    plan = chaos.plan(30, 10)
    assert len(set(plan)) == len(plan) == 30 + 10 + 3 * 2
    assert [kind for kind, _ in plan[:10]] == ["kill"] * 10
    assert set(chaos.KINDS) == {kind for kind, _ in plan}
    assert chaos.plan(10, 10, ["gallery"]) == [("gallery", number) for number in range(10)]
