"""Run folders: whole files or none, one worker at a time, another configuration refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gamlens import GamlensError
from gamlens.engine import Job, RunFolder, Store, run_local
from gamlens.engine.part_files import PARTS_FOLDER

ABOUT = {"what": "squares", "n": [1, 2], "chunks": 5}


class Squares:
    """Rows of squares; a three is an error."""

    def load(self, items):
        return list(items)

    def work(self, loaded):
        return [{"item": item, "square": item * item, "error": "a three" if item == 3 else ""} for item in loaded]


def encode(rows) -> bytes:
    return json.dumps(rows).encode()


JOB = Job(Squares, encode, chunk=4, batch=3)
ITEMS = list(range(18))


def rows(folder: RunFolder) -> list[dict]:
    return [row for part in folder.parts() for row in json.loads(part)]


def test_a_run_from_beginning_to_end(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", ABOUT, suffix=".json") as folder:
        done = list(run_local(JOB, ITEMS, folder, workers=2))
        assert [(d.chunk, d.items, d.errors) for d in done] == [(0, 4, 1), (1, 4, 0), (2, 4, 0), (3, 4, 0), (4, 2, 0)]
        assert [row["item"] for row in rows(folder)] == ITEMS
        assert folder.summary() is None
        with pytest.raises(GamlensError, match=r"not finished: 5 of 5 parts"):
            RunFolder.finished(tmp_path / "run", suffix=".json", make="it")
        folder.finish({"items": 18})
    again = RunFolder.finished(tmp_path / "run", suffix=".json", make="it")
    assert again.about == ABOUT
    assert again.summary() == {"items": 18}
    with RunFolder(tmp_path / "run", ABOUT, suffix=".json") as folder:
        assert list(run_local(JOB, ITEMS, folder)) == []


def test_only_what_is_missing_is_done_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        for _, _ in zip(range(2), run_local(JOB, ITEMS, folder), strict=False):
            pass
        kept = {name: (tmp_path / PARTS_FOLDER / name).stat().st_mtime_ns for name in folder.store.names(PARTS_FOLDER)}
        assert 2 <= len(kept) < 5
    (tmp_path / PARTS_FOLDER / ".00000004.json.x.part").write_bytes(b"broken off")
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        assert not list((tmp_path / PARTS_FOLDER).glob("*.part"))
        assert {done.chunk for done in run_local(JOB, ITEMS, folder)} == set(range(5)) - set(range(len(kept)))
        assert [row["item"] for row in rows(folder)] == ITEMS
    assert all((tmp_path / PARTS_FOLDER / name).stat().st_mtime_ns == when for name, when in kept.items())


def test_another_configuration_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        list(run_local(JOB, ITEMS, folder))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    with (
        pytest.raises(GamlensError, match=r"n: \[1, 2\] there, \[1\] now.*--fresh"),
        RunFolder(tmp_path, {**ABOUT, "n": [1]}, suffix=".json"),
    ):
        pass
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == before
    (tmp_path / "mine.txt").write_text("not of the run")
    with RunFolder(tmp_path, {**ABOUT, "n": [1]}, suffix=".json", fresh=True) as folder:
        assert folder.written() == set()
    assert (tmp_path / "mine.txt").exists()


def test_parts_without_a_description_and_broken_ones(tmp_path: Path) -> None:
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        list(run_local(JOB, ITEMS, folder))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(GamlensError, match="is not JSON"), RunFolder(tmp_path, ABOUT, suffix=".json"):
        pass
    (tmp_path / "run.json").unlink()
    with pytest.raises(GamlensError, match="has parts of a run"), RunFolder(tmp_path, ABOUT, suffix=".json"):
        pass
    with pytest.raises(GamlensError, match=r"is not a run: run.json is missing. Make one: gamlens x"):
        RunFolder.finished(tmp_path, suffix=".json", make="gamlens x")


def test_two_at_once(tmp_path: Path) -> None:
    """The second says who works there; a process that was killed holds nothing, also by the address of the folder."""
    address = tmp_path.as_uri()
    code = (
        "import sys, time; from gamlens.engine import RunFolder\n"
        f"with RunFolder({address!r}, {ABOUT!r}, suffix='.json'):\n    print('in', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline().strip() == "in"
        for place in (tmp_path, address):
            with (
                pytest.raises(GamlensError, match=rf"Another process \(process {other.pid} on .*since 2.*wait for it"),
                RunFolder(place, ABOUT, suffix=".json"),
            ):
                pass
    finally:
        other.kill()
        other.wait()
    with RunFolder(address, ABOUT, suffix=".json") as folder:
        assert folder.written() == set()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third part does not fit: a clear error, no half file, and later the rest."""
    real, count = os.fsync, 0

    def full(number: int) -> None:
        nonlocal count
        count += 1
        if count == 7:  # run.json, and then a record and a part, three times
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(GamlensError, match=r"No space left on device.*give the same command again"),
        RunFolder(tmp_path, ABOUT, suffix=".json") as folder,
    ):
        list(run_local(JOB, ITEMS, folder))
    assert sorted(file.name for file in (tmp_path / PARTS_FOLDER).iterdir()) == ["00000000.json", "00000001.json"]
    assert not list(tmp_path.rglob("*.part"))
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        assert len(list(run_local(JOB, ITEMS, folder))) == 3
        assert [row["item"] for row in rows(folder)] == ITEMS


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """The same on a file system of 64 KiB, where the machine lets us make one."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("no small file system can be mounted here; the failing write above stands for it")
    try:
        big = Job(Squares, lambda rows: encode(rows) + b" " * 20000, chunk=4, batch=4)
        with (
            pytest.raises(GamlensError, match="No space left on device"),
            RunFolder(place / "run", ABOUT, suffix=".json") as folder,
        ):
            list(run_local(big, ITEMS, folder))
        kept = RunFolder(place / "run", ABOUT, suffix=".json").written()
        assert 0 < len(kept) < 5
        subprocess.run(["mount", "-o", "remount,size=1m", str(place)], check=True)
        with RunFolder(place / "run", ABOUT, suffix=".json") as folder:
            assert len(list(run_local(big, ITEMS, folder))) == 5 - len(kept)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_an_error_in_the_work_frees_the_folder(tmp_path: Path) -> None:
    class Broken(Squares):
        def work(self, loaded):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        list(run_local(Job(Broken, encode, 4, 3), ITEMS, folder))
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        assert len(list(run_local(JOB, ITEMS, folder))) == 5


def test_files_elsewhere(tmp_path: Path) -> None:
    """By the address of the folder, which is the same folder."""
    place = f"file://{tmp_path / 'far'}"
    with RunFolder(place, ABOUT, suffix=".json") as folder:
        list(run_local(JOB, ITEMS, folder))
        with (
            pytest.raises(GamlensError, match="Another process"),
            RunFolder(place, ABOUT, suffix=".json"),
        ):
            pass
        folder.finish({"items": 18})
    found = RunFolder.finished(place, suffix=".json", make="it")
    assert [row["item"] for row in rows(found)] == ITEMS
    with RunFolder(place, {**ABOUT, "n": []}, suffix=".json", fresh=True) as folder:
        assert folder.written() == set()
    assert Store(place).read("nothing") is None
    with pytest.raises(GamlensError, match="Cannot open 'nowhere://x'"):
        Store("nowhere://x")


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    """At most a batch a thread, and one, is decoded ahead, however many items there are."""
    state = {"loaded": 0, "worked": 0, "most": 0}

    class Counting(Squares):
        def load(self, items):
            state["loaded"] += 1
            state["most"] = max(state["most"], state["loaded"] - state["worked"])
            return list(items)

        def work(self, loaded):
            state["worked"] += 1
            return super().work(loaded)

    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        list(run_local(Job(Counting, encode, 10, 2), list(range(400)), folder, workers=3))
    assert state["worked"] == 200
    assert state["most"] <= 4


def test_a_kill_at_the_very_end_leaves_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """done.json is written last: without it the run is finished again, and with it nothing is left to delete."""

    class Killed(BaseException):
        pass

    def write(store: Store, name: str, contents: bytes, plain=Store.write) -> None:
        if name == "done.json":
            raise Killed
        plain(store, name, contents)

    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        list(run_local(JOB, ITEMS, folder))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", write)
            with pytest.raises(Killed):
                folder.finish({"items": 18})
    with RunFolder(tmp_path, ABOUT, suffix=".json") as folder:
        assert folder.find_damaged() == {}
        folder.finish({"items": 18})
    assert not (tmp_path / "records").exists()
    assert len(rows(RunFolder.finished(tmp_path, suffix=".json", make="it"))) == 18


def test_a_run_of_an_earlier_version_says_less_and_is_continued(tmp_path: Path) -> None:
    """A newer entry has the value that was fixed before; another value of it is another run."""
    old = {**ABOUT, "how": {"size": 1}}
    with RunFolder(tmp_path, old, suffix=".json") as folder:
        for _, _ in zip(range(2), run_local(JOB, ITEMS, folder), strict=False):
            pass
        kept = folder.written()
    unsaid = {"device": "cpu", "how": {"heat": 1.0}}
    new = {**ABOUT, "how": {"size": 1, "heat": 1.0}, "device": "cpu"}
    other = {**new, "how": {"size": 1, "heat": 2.0}}
    with (
        pytest.raises(GamlensError, match=r"how\.heat: 1\.0 there, 2\.0 now"),
        RunFolder(tmp_path, other, suffix=".json", unsaid=unsaid),
    ):
        pass
    with pytest.raises(GamlensError, match="device: None there"), RunFolder(tmp_path, new, suffix=".json"):
        pass
    with RunFolder(tmp_path, new, suffix=".json", unsaid=unsaid) as folder:
        assert {done.chunk for done in run_local(JOB, ITEMS, folder)} == set(range(5)) - kept
        folder.finish({"items": 18})
    assert RunFolder.finished(tmp_path, suffix=".json", make="it").about == old
