"""The lock of a remote run folder: who holds it, until when, and what an owner does that lost it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem
from test_run_folder import ABOUT, ITEMS, JOB, Squares, encode, rows

from gamlens import GamlensError
from gamlens.engine import Job, RunFolder, Store, folder_lock, run_local, store

HOUR = 3600.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address far://... of a folder of this machine that is used like one of another machine."""
    monkeypatch.setattr(store, "_remote", lambda place: (LocalFileSystem(), place.removeprefix("far://")))
    monkeypatch.setattr(folder_lock, "SETTLE", 0.02)
    return f"far://{tmp_path / 'run'}"


def opened(place: str) -> RunFolder:
    return RunFolder(place, ABOUT, suffix=".json")


def lock_of(place: str) -> Path:
    return Path(place.removeprefix("far://")) / ".lock"


def held_by(place: str, **values: object) -> Path:
    """A lock with these values."""
    file = lock_of(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"token": "theirs", **values}))
    return file


def dead() -> int:
    """The number of a process that was killed."""
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    process.wait()
    return process.pid


def test_a_run_in_a_remote_folder(place: str) -> None:
    with opened(place) as folder:
        list(run_local(JOB, ITEMS, folder))
        with pytest.raises(GamlensError, match=rf"process {os.getpid()} on .*, since 2.*wait for it"), opened(place):
            pass
        folder.finish({"items": 18})
    root = lock_of(place).parent
    assert sorted(file.name for file in root.iterdir()) == ["done.json", "manifest.json", "parts", "run.json"]
    assert [row["item"] for row in rows(RunFolder.finished(place, suffix=".json", make="it"))] == ITEMS
    (root / "done.json.0123456789abcdef0123456789abcdef.part").write_text("half")
    with RunFolder(place, ABOUT, suffix=".json", fresh=True):
        assert sorted(file.name for file in root.iterdir() if file.is_file()) == [".lock", "run.json"]


@pytest.mark.skipif(not folder_lock._machine(), reason="this system does not tell which processes live")
def test_the_lock_of_a_process_that_was_killed_is_free_at_once(place: str) -> None:
    here = folder_lock._self()
    for gone in ({"pid": dead()}, {"started": "1"}):  # no such process; another process with the same number
        held_by(place, **{**here, **gone}, at=time.time(), since=time.time())
        with opened(place) as folder:
            assert folder.written() == set()
    for unknown in ({"host": "elsewhere"}, {"machine": "another start"}, {"machine": ""}):
        held_by(place, **{**here, "pid": dead(), **unknown}, at=time.time(), since=time.time())
        with pytest.raises(GamlensError, match=r"If that process was killed, the folder is free in (300|299) s, at 2"):
            opened(place).__enter__()


def test_clocks_of_machines_may_differ(place: str) -> None:
    """What counts is when the file was written, by the clock of the file system."""
    held_by(place, host="slow", pid=1, at=time.time() - HOUR)
    with pytest.raises(GamlensError, match=r"process 1 on slow.*is free in (300|299) s"):
        opened(place).__enter__()
    file = held_by(place, host="fast", pid=1, at=time.time() + HOUR)
    os.utime(file, (time.time() - 400, time.time() - 400))
    with opened(place) as folder:
        assert folder.written() == set()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"at": "now", "pid": [], "host": {}, "since": 1e300, "token": 7}'])
def test_a_lock_that_cannot_be_understood_ends_too(text: str, place: str) -> None:
    file = held_by(place)
    file.write_text(text)
    with pytest.raises(GamlensError, match=r"is free in (300|299) s"):
        opened(place).__enter__()
    os.utime(file, (time.time() - 400, time.time() - 400))
    with opened(place) as folder:
        assert folder.written() == set()


def test_of_two_at_once_one_gets_in(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see a free folder before either of them has written."""
    monkeypatch.setattr(folder_lock, "SETTLE", 0.2)
    both, seen = threading.Barrier(2), threading.local()
    real = Store.read

    def read(self: Store, name: str) -> bytes | None:
        found = real(self, name)
        if name == ".lock" and not getattr(seen, "lock", False):
            seen.lock = True
            both.wait(60)
        return found

    monkeypatch.setattr(Store, "read", read)
    entered: list[RunFolder] = []
    refused: list[str] = []

    def enter() -> None:
        folder = opened(place)
        try:
            entered.append(folder.__enter__())
        except GamlensError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == len(refused) == 1
    assert "Another process" in refused[0]
    monkeypatch.setattr(Store, "read", real)
    entered[0].__exit__()
    assert not lock_of(place).exists()


def test_a_chunk_that_takes_long_keeps_the_lock(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "STALE", 0.1)
    with opened(place):
        first, end = lock_of(place).read_text(), time.monotonic() + 60
        while lock_of(place).read_text() == first and time.monotonic() < end:
            time.sleep(0.01)
        later = lock_of(place).read_text()
    assert json.loads(later)["at"] > json.loads(first)["at"]
    assert json.loads(later)["since"] == json.loads(first)["since"]


def test_an_owner_that_lost_its_lock_writes_nothing_more(place: str) -> None:
    """Neither parts nor the summary; and it does not free the lock of the other."""

    class Interrupted(Squares):
        def work(self, loaded):
            if 4 in loaded:
                held_by(place, host="there", pid=5, since=time.time())
            return super().work(loaded)

    with (
        pytest.raises(GamlensError, match=r"lost its lock.*process 5 on there.*Nothing more is written"),
        opened(place) as folder,
    ):
        list(run_local(Job(Interrupted, encode, 4, 4), ITEMS, folder))
    assert folder.written() == {0}
    for late in (
        lambda: folder.finish({}),
        lambda: folder.writer().write(1, b"[]"),
        lambda: folder.drop([0]),
        folder.beat,
    ):
        with pytest.raises(GamlensError, match=r"lost its lock|is missing"):
            late()
    assert folder.written() == {0}
    assert json.loads(lock_of(place).read_text())["token"] == "theirs"


def test_a_folder_that_was_deleted_meanwhile_stops_the_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        (tmp_path / ".lock").unlink()
        with pytest.raises(GamlensError, match=r"The lock of the run folder .* is gone: the folder was deleted"):
            list(run_local(JOB, ITEMS, folder))
        assert folder.written() == set()
