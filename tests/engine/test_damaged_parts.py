"""Parts that are missing, damaged or replaced are found and made again; files of others are left alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from test_run_folder import ABOUT, ITEMS, JOB, rows

from gamlens import GamlensError
from gamlens.engine import RunFolder, run_local
from gamlens.engine.part_files import number_of, part_name
from gamlens.engine.run_folder import DONE


def opened(place: Path, **options) -> RunFolder:
    return RunFolder(place, ABOUT, suffix=".json", **options)


def made(place: Path) -> Path:
    with opened(place) as folder:
        list(run_local(JOB, ITEMS, folder))
        folder.finish({"items": 18})
    return place


def part(place: Path, number: int) -> Path:
    return place / part_name(number, ".json")


def read(place: Path) -> list[int]:
    return [row["item"] for row in rows(RunFolder.finished(place, suffix=".json", make="it"))]


def gone(place: Path) -> None:
    part(place, 2).unlink()


def empty(place: Path) -> None:
    part(place, 2).write_bytes(b"")


def truncated(place: Path) -> None:
    part(place, 2).write_bytes(part(place, 2).read_bytes()[:-9])


def replaced(place: Path) -> None:
    shutil.copy(part(place, 1), part(place, 2))


def flipped(place: Path) -> None:
    contents = bytearray(part(place, 2).read_bytes())
    contents[9] ^= 1
    part(place, 2).write_bytes(contents)


DAMAGES = {gone: "is missing", empty: "is empty", truncated: "bytes", replaced: "bytes", flipped: "sha256 differs"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_refused_by_readers_and_made_again(damage, tmp_path: Path) -> None:
    place = made(tmp_path / "run")
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    damage(place)
    with pytest.raises(GamlensError, match=rf"Part 2 .*00000002.json, items '8' to '11'.*{DAMAGES[damage]}.*again"):
        read(place)
    with opened(place) as folder:
        found = folder.find_damaged()
        assert list(found) == [2]
        assert DAMAGES[damage] in found[2]
        folder.drop(found)
        assert folder.summary() is None  # a reader of a half repaired run is refused
        assert [done.chunk for done in run_local(JOB, ITEMS, folder)] == [2]
        folder.finish({"items": 18})
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_files_of_others_are_no_parts(tmp_path: Path) -> None:
    """They are not counted, not read, and not deleted with --fresh."""
    place = made(tmp_path / "run")
    names = [
        "notes.txt",
        "00000001 (copy).json",
        ".DS_Store",
        "7.json",
        "0000000².json",
        "00000099.json",
        "x.json.part",
    ]
    for name in names:
        (place / "parts" / name).write_text("not of the run")
    (place / "parts" / "00000007.json").mkdir()
    assert read(place) == ITEMS
    with opened(place) as folder:
        assert folder.written() == set(range(5))
        assert folder.find_damaged() == {}
    (place / "parts" / "00000099.json").unlink()  # a part by its name, of a longer run: --fresh deletes it
    with opened(place, fresh=True) as folder:
        assert folder.written() == set()
    left = {file.name for file in (place / "parts").iterdir()}
    assert left == {*names, "00000007.json"} - {"00000099.json"}
    assert sorted(file.name for file in place.iterdir()) == [".lock", "parts", "run.json"]


def test_names_beyond_eight_digits() -> None:
    assert [number_of(name, ".json") for name in ("100000000.json", "99999999.json", "000000001.json")] == [
        100000000, 99999999, None
    ]  # fmt: skip


def test_parts_are_read_by_number_not_by_name(tmp_path: Path) -> None:
    about = {key: value for key, value in ABOUT.items() if key != "chunks"}
    with RunFolder(tmp_path, about, suffix=".json") as folder:
        for number in (100000000, 99999999, 7):
            folder.write(number, str(number).encode())
        assert [int(contents) for contents in folder.parts()] == [7, 99999999, 100000000]


@pytest.mark.parametrize("at", range(2, 14))
def test_a_kill_at_any_write_is_resumed(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before the nth file takes its place: run.json, record, part, ..., manifest.json, done.json."""
    whole = made(tmp_path / "whole")
    real, count = os.replace, 0

    def stop(source, target):
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stop)
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        made(place)
    assert not (place / DONE).exists()
    monkeypatch.setattr(os, "replace", real)
    with opened(place) as folder:
        assert folder.find_damaged() == {}
        list(run_local(JOB, ITEMS, folder))
        folder.finish({"items": 18})
    assert {file.name: file.read_bytes() for file in place.rglob("*.json")} == {
        file.name: file.read_bytes() for file in whole.rglob("*.json")
    }
    assert not (place / "records").exists()


def test_a_full_disk_at_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def full(source, target):
        if Path(target).name in ("manifest.json", "done.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(GamlensError, match=r"'manifest.json'.*No space left.*make room, then give the same command"):
        made(tmp_path)
    with pytest.raises(GamlensError, match=r"not finished: 5 of 5"):
        read(tmp_path)
    monkeypatch.setattr(os, "replace", real)
    assert read(made(tmp_path)) == ITEMS


def test_a_part_without_a_record_is_of_an_early_version(tmp_path: Path) -> None:
    """It is taken over if the check finds nothing wrong with it."""
    place = made(tmp_path)
    (place / "manifest.json").unlink()
    assert read(place) == ITEMS
    with opened(place) as folder:
        assert not folder.has_records
        assert folder.find_damaged(lambda chunk, contents: "odd" if chunk == 3 else "") == {3: "odd"}
        folder.drop([3])
        assert [done.chunk for done in run_local(JOB, ITEMS, folder)] == [3]
        folder.finish({"items": 18})
    assert len(json.loads((place / "manifest.json").read_text())["parts"]) == 5


def test_the_manifest_of_another_run_does_not_condemn_the_parts(tmp_path: Path) -> None:
    """An early version may delete a run and measure another one in the same folder: it knows no manifest."""
    place = made(tmp_path / "run")
    with RunFolder(tmp_path / "other", {**ABOUT, "n": [9]}, suffix=".json") as folder:
        folder.write(0, b"[]")
        for number in range(1, 5):
            folder.write(number, b"[]")
        folder.finish({})
    shutil.copy(tmp_path / "other" / "manifest.json", place)
    assert read(place) == ITEMS
    with opened(place) as folder:
        assert folder.find_damaged() == {}


def test_parts_of_a_run_with_other_settings_are_refused(tmp_path: Path) -> None:
    """run.json of another run with equally many parts: its settings would be shown with these results."""
    place = made(tmp_path / "run")
    before = {file: file.read_bytes() for file in place.rglob("*.json")}
    other = {**ABOUT, "n": [9]}
    (place / "run.json").write_text(json.dumps(other))
    with pytest.raises(GamlensError, match=r"Part 0 .* was measured with other settings than run\.json says"):
        read(place)
    with (
        RunFolder(place, other, suffix=".json") as folder,
        pytest.raises(GamlensError, match=r"Nothing was changed: restore run\.json, or start over with --fresh"),
    ):
        folder.find_damaged()
    (place / "run.json").write_bytes(before[place / "run.json"])
    assert {file: file.read_bytes() for file in place.rglob("*.json")} == before
    assert read(place) == ITEMS


def test_unfinished_parts_of_a_run_with_other_settings_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.write(0, b"[]", ["a"])
    (tmp_path / "run.json").write_text(json.dumps({**ABOUT, "n": [9]}))
    with (
        RunFolder(tmp_path, {**ABOUT, "n": [9]}, suffix=".json") as folder,
        pytest.raises(GamlensError, match=r"Part 0 .* other settings"),
    ):
        folder.find_damaged()


DEEP = "[" * 100_000 + "]" * 100_000
NESTED = '{"a":' * 300 + "1" + "}" * 300


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null", DEEP, NESTED, '{"a": ' + DEEP + "}"])
@pytest.mark.parametrize("name", ["run.json", "done.json", "manifest.json"])
def test_json_of_the_wrong_kind(name: str, text: str, tmp_path: Path) -> None:
    place = made(tmp_path)
    (place / name).write_text(text)
    with pytest.raises(GamlensError, match=rf"'{name}' in .* cannot be read: (it|its) .*\. (Give|Restore)"):
        read(place)
    if name == "run.json":
        with pytest.raises(GamlensError, match="cannot be read"), opened(place):
            pass
        return
    with opened(place) as folder:
        assert folder.find_damaged() == {}
        assert list(run_local(JOB, ITEMS, folder)) == []
        folder.finish({"items": 18})
    assert read(place) == ITEMS


@pytest.mark.parametrize("chunks", [10**18, -1, "five", None, [5]])
def test_a_number_of_parts_that_cannot_be(chunks: object, tmp_path: Path) -> None:
    place = made(tmp_path)
    (place / "manifest.json").unlink()  # by which the change would be found
    (place / "run.json").write_text(json.dumps({**ABOUT, "chunks": chunks}))
    if chunks == 10**18:
        with pytest.raises(GamlensError, match=r"Part 5 .*the file is missing"):
            read(place)
    else:
        assert read(place) == ITEMS  # nothing says how many there must be


@pytest.mark.parametrize("parts", ["7", "[]", "[7]", '[{"items": "x"}]', "null"])
def test_a_manifest_of_wrong_values(parts: str, tmp_path: Path) -> None:
    place = made(tmp_path)
    run = json.loads((place / "manifest.json").read_text())["run"]
    (place / "manifest.json").write_text(f'{{"run": "{run}", "parts": {parts}}}')
    with pytest.raises(GamlensError, match=r"'manifest.json' .*Give the command that made the run again"):
        read(place)


def test_temporary_files_of_a_killed_writer_go(tmp_path: Path) -> None:
    """Those of this program, in the folder and below it; a download of the user stays."""
    place = made(tmp_path)
    ours = [".done.json.0123456789ab.part", "run.json.0123456789abcdef.part", "parts/.00000003.json.0123456789ab.part"]
    theirs = ["film.mkv.part", ".film.mkv.0123456789ab.part", "parts/notes.txt.part"]
    for name in (*ours, *theirs):
        (place / name).write_text("half")
    with opened(place):
        assert [name for name in (*ours, *theirs) if (place / name).exists()] == theirs
