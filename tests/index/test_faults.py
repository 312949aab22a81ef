"""What happens to an index when a process is killed, the disk is full, files are damaged, or names are hostile."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from index_kit import CountingLens, contents, photo, put
from typer.testing import CliRunner

import gamlens
from gamlens import GamlensError, GamlensWarning
from gamlens.cli import app
from gamlens.files import PART_NAME, claimed
from gamlens.index import writing
from gamlens.index.backends import BACKENDS
from gamlens.index.catalogue import CATALOGUE
from gamlens.index.hits import Hits
from gamlens.index.index import Index

MOMENTS = 10
TRACED = tuple(str(Path(gamlens.__file__).parent / name) for name in ("index", "files.py"))
runner = CliRunner()


@pytest.fixture(scope="module")
def lens() -> CountingLens:
    return CountingLens()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "COMMIT_EVERY", 2)
    monkeypatch.setattr(writing, "FEW_HOLES", 2)


def shop(place: Path, lens: CountingLens) -> Path:
    """An index of six photos with activations and columns, closed; and changes of its folder that `update` will see."""
    put(place / "photos", *range(6))
    with Index.create(place / "shop.gamlens", lens, activations=True) as index:
        index.add(place / "photos")
        index.annotate({str(place / "photos" / f"{n}.png"): {"price": n} for n in range(6)})
    put(place / "more", *range(10, 15))
    os.rename(place / "photos" / "0.png", place / "photos" / "moved.png")
    (place / "photos" / "1.png").unlink()
    photo(20).save(place / "photos" / "2.png")
    (place / "photos" / "bad.png").write_text("no image")
    return place / "shop.gamlens"


def add(index: Index, place: Path) -> None:
    index.add(place / "more", batch_size=1, workers=1)


def update(index: Index, place: Path) -> None:
    index.update(batch_size=1, workers=1)


def remove(index: Index, place: Path) -> None:
    """Enough images that the files are written anew. What is gone already is no error here."""
    index.remove(where="price = 0 or price >= 3")


CHANGES: dict[str, Callable[[Index, Path], None]] = {"add": add, "update": update, "remove": remove}


def every_change(index: Index, place: Path) -> None:
    for change in CHANGES.values():
        change(index, place)


def state(index: Index) -> dict[str, object]:
    """All that an index says about its images: contents, columns, sizes, what is bad, and what was added."""
    images = list(index.catalogue.images().values())
    known = index.catalogue.described([image.slot for image in images])
    return {
        "contents": contents(index),
        "columns": {image.path: known[image.slot].metadata for image in images},
        "known": {image.path: (image.sha256, image.width, image.height) for image in images},
        "bad": index.catalogue.bad(),
        "sources": index.catalogue.sources(),
    }


def child(work: Callable[[], None]) -> int:
    """Run in a child process; returns how it ended, negative for a signal."""
    if (process := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def counted(work: Callable[[], None], *, kill_at: int | None = None) -> int:
    """Run, and count the lines of the index that are executed in this thread; the process is killed at one of them."""
    lines = 0

    def line(frame, event, argument):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename.startswith(TRACED) else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def is_sound(folder: Path, lens: CountingLens) -> dict[str, object]:
    """The index opens, nothing is damaged, and every vector is that of contents of which the index knows the hash."""
    with Index.open(folder, lens) as index:
        assert index.check() == []
        files = {sha256(file.read_bytes()).hexdigest(): file for file in folder.parent.glob("*/*.png")}
        now = index.snapshot()
        for image in index.catalogue.images().values():
            if image.sha256 in files:
                fresh = lens.remember([str(files[image.sha256])]).embeddings[0].numpy()
                np.testing.assert_allclose(now.vectors[image.slot], fresh, atol=1e-5)
        index.search(photo(3))
        return state(index)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, lens: CountingLens) -> Path:
    """A folder with an index that no change was made to; it is moved to the same place for every test."""
    place = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "COMMIT_EVERY", 2)
        shop(place / "at", lens)
    shutil.copytree(place / "at", place / "kept")
    return place


def restored(plain: Path) -> Path:
    """The folder as it was, at the same path: an index knows its files by their paths, sizes and times."""
    shutil.rmtree(plain / "at", ignore_errors=True)
    shutil.copytree(plain / "kept", plain / "at")
    return plain / "at"


@pytest.mark.parametrize("name", CHANGES)
def test_killed_at_any_line(name: str, plain: Path, lens: CountingLens) -> None:
    change = CHANGES[name]
    folder = restored(plain) / "shop.gamlens"

    def work(kill_at: int | None = None) -> int:
        with Index.open(folder, lens) as index:
            return counted(lambda: change(index, plain / "at"), kill_at=kill_at)

    before = is_sound(folder, lens)
    lines = work()
    expected = is_sound(folder, lens)
    assert expected != before
    draw = random.Random(name)
    for moment in sorted(draw.sample(range(1, lines), MOMENTS)):
        folder = restored(plain) / "shop.gamlens"
        assert child(lambda at=moment: work(at)) == -signal.SIGKILL
        after = is_sound(folder, lens)
        if name == "remove":
            assert after in (before, expected)  # one commit
        assert before["columns"].keys() - after["known"].keys() <= before["columns"].keys() - expected["known"].keys()
        work()
        assert is_sound(folder, lens) == expected, moment
        assert not [file.name for file in folder.iterdir() if PART_NAME.fullmatch(file.name)]
        assert len(list(folder.glob("vectors-*"))) == len(list(folder.glob("activations-*"))) == 1


def test_killed_after_any_time(plain: Path, lens: CountingLens) -> None:
    """Also inside SQLite's commits, and while threads read."""
    draw, killed = random.Random(1), 0

    def changed(folder: Path) -> None:
        with Index.open(folder, lens) as index:
            every_change(index, plain / "at")

    folder = restored(plain) / "shop.gamlens"
    started = time.monotonic()
    assert child(lambda: changed(folder)) == 0
    longest = time.monotonic() - started
    while killed < MOMENTS:
        folder = restored(plain) / "shop.gamlens"
        if (process := os.fork()) == 0:
            changed(folder)
            os._exit(0)
        time.sleep(draw.uniform(0.0, longest))
        os.kill(process, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL:
            killed += 1
        else:
            longest *= 0.7  # it was done before, as on a machine that was busy when the time was taken
        is_sound(folder, lens)
        changed(folder)
        is_sound(folder, lens)


def test_killed_while_an_index_is_made(lens: CountingLens, tmp_path: Path) -> None:
    """The same command makes it then: what is left in the folder is no reason to refuse it."""
    lines = counted(lambda: Index.create(tmp_path / "whole", lens).close())
    draw = random.Random(2)
    for moment in draw.sample(range(lines // 2, lines), MOMENTS):
        place = tmp_path / str(moment)
        assert child(lambda at=moment, to=place: counted(lambda: Index.create(to, lens), kill_at=at)) == -signal.SIGKILL
        if (place / CATALOGUE).exists():
            with Index.open(place, lens) as found:
                found.update()  # whoever changes it next deletes what the killed process has left
        else:
            Index.create(place, lens).close()
        assert sorted(file.name for file in place.iterdir()) == [CATALOGUE]


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow above `limit` bytes, as on a disk that is full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("limit", [100, 900, 5000, 9000])
def test_a_full_disk_leaves_the_old_index(name: str, limit: int, plain: Path, lens: CountingLens) -> None:
    folder = restored(plain) / "shop.gamlens"
    before = is_sound(folder, lens)
    with Index.open(folder, lens) as index:
        error = ""
        with small_files(limit):
            try:
                CHANGES[name](index, plain / "at")
            except GamlensError as found:
                error = str(found)
        if limit < 1000:
            assert "space" in error
            assert "damaged" not in error
        after = is_sound(folder, lens)
        assert before["columns"].keys() - after["known"].keys() <= {
            str(plain / "at" / "photos" / f"{n}.png") for n in range(6)
        }
        CHANGES[name](index, plain / "at")  # by the same object, when there is room again
    with Index.open(folder, lens) as index:
        index.update()
    is_sound(folder, lens)


@pytest.mark.parametrize("step", range(7))
def test_no_room_at_any_write(step: int, plain: Path, lens: CountingLens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th sync of a file fails."""
    folder, synced, real = restored(plain) / "shop.gamlens", [], os.fsync

    def fsync(handle: int) -> None:
        synced.append(handle)
        if len(synced) == step + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with Index.open(folder, lens) as index:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(GamlensError, match=r"No space left.*[Ff]ree some\s+space"):
                every_change(index, plain / "at")
        is_sound(folder, lens)
        every_change(index, plain / "at")
    is_sound(folder, lens)


def test_no_room_for_a_new_index(lens: CountingLens, tmp_path: Path) -> None:
    with small_files(500), pytest.raises(GamlensError, match="Cannot write"):
        Index.create(tmp_path / "i", lens)
    assert not (tmp_path / "i").exists()


# Damage


def edited(file: Path, place: float, change: Callable[[int], int]) -> None:
    data = bytearray(file.read_bytes())
    at = int(place * (len(data) - 1))
    data[at] = change(data[at])
    file.write_bytes(data)


def overwritten(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


def sql(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / CATALOGUE) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def foreign(folder: Path) -> None:
    (folder / CATALOGUE).unlink()
    sql(folder, "CREATE TABLE settings (a, b, c)", "INSERT INTO settings VALUES (1, 2, 3)")


VECTORS, BLOCKS = "vectors-1.f32", "activations-1.bin"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "vectors cut off": lambda folder: os.truncate(folder / VECTORS, 100),
    "vectors emptied": lambda folder: os.truncate(folder / VECTORS, 0),
    "vectors gone": lambda folder: (folder / VECTORS).unlink(),
    "vectors flipped": lambda folder: edited(folder / VECTORS, 0.5, lambda byte: byte ^ 1),
    "vectors are a folder": lambda folder: ((folder / VECTORS).unlink(), (folder / VECTORS).mkdir()),
    "activations cut off": lambda folder: os.truncate(folder / BLOCKS, 100),
    "activations gone": lambda folder: (folder / BLOCKS).unlink(),
    "activations flipped": lambda folder: edited(folder / BLOCKS, 0.5, lambda byte: byte ^ 1),
    "catalogue cut off": lambda folder: os.truncate(folder / CATALOGUE, 5000),
    "catalogue emptied": lambda folder: os.truncate(folder / CATALOGUE, 0),
    "catalogue of zeros": lambda folder: overwritten(folder, CATALOGUE, bytes(20000)),
    "catalogue of text": lambda folder: overwritten(folder, CATALOGUE, b"hello\n" * 3000),
    "catalogue with a hole": lambda folder: overwritten(
        folder, CATALOGUE, (data := (folder / CATALOGUE).read_bytes())[:4096] + bytes(8192) + data[12288:]
    ),
    "another catalogue": foreign,
    "newer": lambda folder: sql(folder, "UPDATE settings SET value = '2' WHERE key = 'format'"),
    "no format": lambda folder: sql(folder, "DELETE FROM settings WHERE key = 'format'"),
    "no JSON": lambda folder: sql(folder, "UPDATE settings SET value = '{' WHERE key = 'end'"),
    "wrong kind": lambda folder: sql(folder, "UPDATE settings SET value = '\"six\"' WHERE key = 'end'"),
    "end too small": lambda folder: sql(folder, "UPDATE settings SET value = '3' WHERE key = 'end'"),
    "end too large": lambda folder: sql(folder, "UPDATE settings SET value = '999' WHERE key = 'end'"),
    "end below zero": lambda folder: sql(folder, "UPDATE settings SET value = '-1' WHERE key = 'end'"),
    "wrong dimension": lambda folder: sql(folder, "UPDATE settings SET value = '31' WHERE key = 'dimension'"),
    "no dimension": lambda folder: sql(folder, "UPDATE settings SET value = '0' WHERE key = 'dimension'"),
    "slot below zero": lambda folder: sql(folder, "UPDATE images SET slot = -1 WHERE slot = 0"),
    "slot of text": lambda folder: sql(folder, "UPDATE images SET slot = 'x' WHERE slot = 0"),
    "unknown backend": lambda folder: sql(folder, "UPDATE settings SET value = '\"faast\"' WHERE key = 'backend'"),
    "frame": lambda folder: sql(folder, "UPDATE images SET frame = '[1]'"),
    "table gone": lambda folder: sql(folder, "DROP TABLE bad"),
    "column gone": lambda folder: sql(folder, "ALTER TABLE images RENAME COLUMN crc TO crx"),
}


def unchanged(hits: Hits) -> Hits:
    return replace(hits, found=tuple(hit for hit in hits if not hit.changed))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_clear_error(name: str, plain: Path, lens: CountingLens) -> None:
    """Everything that fails says what is damaged and how to rebuild it; nothing is wrong without a word."""
    folder = restored(plain) / "shop.gamlens"
    with Index.open(folder, lens) as index:
        query = index.query(photo(40))
        expected = {hit.path: hit.score for hit in index.search(query)}
        maps = index.explain(unchanged(index.search(query))).y.maps
    DAMAGES[name](folder)
    errors = []
    try:
        with Index.open(folder, lens) as index:
            hits = index.search(query)
            assert {hit.path: hit.score for hit in hits} == expected
            assert bool((index.explain(unchanged(hits)).y.maps == maps).all()), "maps of damaged activations"
    except GamlensError as error:
        errors.append(str(error))
    result = runner.invoke(app, ["index", "info", str(folder), "--check"], env={"COLUMNS": "400"})
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    errors.append(result.stderr)
    for error in errors:
        assert ("rebuild" in error) or ("activations" in name and "activations-1.bin" in error), error
    assert errors[0].strip()


def test_all_damage_is_told(plain: Path, lens: CountingLens) -> None:
    """One part that is damaged does not hide the others, nor what else `info` says."""
    folder = restored(plain) / "shop.gamlens"
    for name in ("vectors flipped", "activations flipped"):
        DAMAGES[name](folder)
    result = runner.invoke(app, ["index", "info", str(folder), "--check"], env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert "images 6" in " ".join(result.stdout.split())
    assert "1 of 6 vectors in 'vectors-1.f32' are not what was written" in result.stderr
    assert re.search(r"activations of 1 of 6 images, such as '.*\.png'", result.stderr)
    record = json.loads(runner.invoke(app, ["index", "info", str(folder), "--check", "--json"]).stdout)
    assert (record["images"], record["backend"], len(record["problems"])) == (6, "exact", 2)
    assert all("rebuild" in problem for problem in record["problems"])
    DAMAGES["vectors gone"](folder)
    with Index.open(folder, lens) as index:
        assert index.info()["images"] == 6
        assert len(index.check()) == 2


@pytest.mark.parametrize("backend", [name for name, entry in BACKENDS.items() if not entry.exact and entry.installed])
def test_a_damaged_approximate_index_is_built_again(backend: str, lens: CountingLens, tmp_path: Path) -> None:
    """It follows from the vectors, so a search goes on without its file, and an update writes it."""
    put(tmp_path / "photos", *range(5))
    with Index.create(tmp_path / "i", lens, backend=backend) as index:
        index.add(tmp_path / "photos")
        query = index.query(photo(9))
        expected = [(hit.path, hit.score) for hit in index.search(query)]
    file = tmp_path / "i" / f"{backend}-1.ann"

    def found() -> list[tuple[str, float]]:
        with Index.open(tmp_path / "i", lens) as index:
            return [(hit.path, hit.score) for hit in index.search(query)]

    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", bytes(4000), whole[:9] + b"\xff" + whole[10:]):
        file.write_bytes(damaged)
        with pytest.warns(GamlensWarning, match=rf"{backend}-1.ann' cannot be used .* `gamlens index update .*/i` has"):
            assert found() == expected
        with Index.open(tmp_path / "i", lens) as index:
            (problem,) = index.check()
            assert f"{backend}-1.ann" in problem
            assert "gamlens index update" in problem
            assert index.info()["backend"] == backend
            index.update()
            assert index.check() == []
        assert file.read_bytes() == whole
        assert found() == expected
    file.unlink()
    assert found() == expected
    with Index.open(tmp_path / "i", lens) as index:
        index.update()
    assert file.read_bytes() == whole


@pytest.mark.parametrize("name", ["vectors cut off", "vectors gone", "activations cut off", "activations gone"])
def test_nothing_is_added_behind_a_damaged_file(name: str, plain: Path, lens: CountingLens) -> None:
    folder = restored(plain) / "shop.gamlens"
    DAMAGES[name](folder)
    with Index.open(folder, lens) as index:
        before = sorted(index.catalogue.states())
        for change in ("add", "remove"):
            with pytest.raises(GamlensError, match="rebuild"):
                CHANGES[change](index, plain / "at")
        assert len(before) - len(index.catalogue.states()) in (0, 4)  # what was removed stays so
        assert index.check() != []


def test_a_damaged_vector_is_not_copied(plain: Path, lens: CountingLens) -> None:
    """A copy of the photo would get the damaged vector, with a checksum that says it is right."""
    folder = restored(plain) / "shop.gamlens"
    with Index.open(folder, lens) as index:
        shutil.copy(plain / "at" / "photos" / "4.png", plain / "at" / "more" / "copy.png")
        slot = index.catalogue.by_path([str(plain / "at" / "photos" / "4.png")]).popitem()[1].slot
        edited(folder / VECTORS, (slot * 128 + 9) / (6 * 128 - 1), lambda byte: byte ^ 64)
        with pytest.raises(GamlensError, match=r"damaged.*rebuild"):
            index.add(plain / "at" / "more" / "copy.png")


# Two commands, and folders that cannot be written


def test_a_second_writer_is_refused(plain: Path, lens: CountingLens) -> None:
    folder = restored(plain) / "shop.gamlens"
    before = is_sound(folder, lens)

    def second() -> None:
        with Index.open(folder, lens) as index:
            for change in CHANGES.values():
                with pytest.raises(GamlensError, match="Another gamlens command is writing"):
                    change(index, plain / "at")
            assert len(index.search(photo(9))) == 6  # reading is allowed

    with claimed(folder):
        assert child(second) == 0
    assert is_sound(folder, lens) == before


def test_a_folder_that_cannot_be_written(lens: CountingLens) -> None:
    """It is searched, and a change says why it is refused."""
    place = Path(tempfile.mkdtemp())
    try:
        place.chmod(0o755)
        folder = shop(place, lens)

        def as_reader() -> None:
            if os.geteuid() == 0:
                os.seteuid(65534)
            with Index.open(folder, lens) as index:
                assert len(index.search(photo(9))) == 6
                assert index.check() == []
                for change in CHANGES.values():
                    with pytest.raises(GamlensError, match="Cannot write into the folder"):
                        change(index, place)

        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        assert child(as_reader) == 0
        folder.chmod(0o755)
    finally:
        shutil.rmtree(place)


# Hostile names

TURNING = "\u202e\u202b\u2066\u200f"  # characters that turn the direction of the text beside them
NAMES = [
    "it's.png", 'say "hi".png', "<script>alert(1)<script>.png", "<img src=x onerror=alert(1)>.png",
    "'; DROP TABLE images; --.png",
    "a\nb\tc.png", "\x1b[31mred\x07.png", "[bold]x [nothing].png", "%s {0} $HOME `id`.png", f"日本 ü {TURNING}.png",
    "-rf.png", "x" * 240 + ".png",
]  # fmt: skip
VALUES = [
    f"{TURNING}abc",
    "<script>alert(1)</script>",
    "x" * 100_000,
    "\x1b[2J\x07",
    "'; DROP TABLE images; --",
    "[/x]",
    "日本\u202e",
    '"',
    "",
]
COLUMNS = [
    f"c{TURNING}", "<script>", 'a"b', "[/red]", "x'; --", "\x1b[31m", "price\n", "ü", "slot", "x" * 200, "select",
]  # fmt: skip


def test_hostile_names_values_and_columns(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, name in enumerate(NAMES):
        photo(number).save(photos / name, format="PNG")
    paths = [str(photos / name) for name in NAMES]
    row = {column: VALUES[number % len(VALUES)] for number, column in enumerate(COLUMNS)}
    with Index.create(tmp_path / "i", lens, made_with={"model": "small"}) as index:
        assert index.add(photos).added == len(NAMES)
        assert index.annotate(dict.fromkeys(paths, row)) == len(NAMES)
        hits = index.search(photo(50), top=20)
        assert {hit.path for hit in hits} == set(paths)
        assert all(hit.metadata == row for hit in hits)
        for column, value in row.items():
            name, text = column.replace('"', '""'), value.replace("'", "''")
            if len(text) < 1000 and "\x1b" not in column + text and "\n" not in column:
                assert len(index.search(photo(50), where=f"\"{name}\" = '{text}'", top=20)) == len(NAMES)
        assert index.check() == []
    for module in ("index_command", "search_command"):
        monkeypatch.setattr(f"gamlens.cli.{module}.make_lens", lambda *_, **__: lens)
    query = tmp_path / f"<b>query{TURNING}.png"
    photo(50).save(query)
    found = runner.invoke(
        app, ["search", str(query), "--in", str(tmp_path / "i"), "--top", "12", "--explain",
              "--where", "\"<script>\" = '<script>alert(1)</script>'", "--out", str(tmp_path / "out")],
        env={"COLUMNS": "300"},
    )  # fmt: skip
    groups = runner.invoke(
        app, ["index", "clusters", str(tmp_path / "i"), "--count", "2", "--out", str(tmp_path / "groups")],
        env={"COLUMNS": "300"},
    )  # fmt: skip
    for result, page in ((found, tmp_path / "out"), (groups, tmp_path / "groups")):
        assert result.exit_code == 0, result.stderr
        assert "x" * 250 not in result.stdout
        assert "\x1b" not in result.output
        assert "\x07" not in result.output
        text = (page / "index.html").read_text()
        for sign in TURNING:
            assert sign not in text + result.output
        assert "x" * 250 not in text
        assert "<script>alert(1)" not in text
        assert "<img src=x" not in text
        assert "<b>query" not in text
        assert "&lt;script&gt;" in text
    shown = runner.invoke(app, ["index", "info", str(tmp_path / "i"), "--check"], env={"COLUMNS": "300"})
    assert (shown.exit_code, "\x1b" in shown.output) == (0, False)


def test_an_index_in_a_folder_of_a_hostile_name(lens: CountingLens, tmp_path: Path) -> None:
    for name in ("it's ?mode=ro#x%20.gamlens", "a\nb", "日本"):
        put(tmp_path / "photos", 0)
        with Index.create(tmp_path / name, lens) as index:
            index.add(tmp_path / "photos")
        with Index.open(tmp_path / name, lens) as index:
            assert len(index.search(photo(1))) == 1


def test_numbers_are_not_compared_with_text(lens: CountingLens, tmp_path: Path) -> None:
    """SQLite would compare them by a rule that nobody expects: every text is greater than every number."""
    put(tmp_path / "photos", 0, 1)
    with Index.create(tmp_path / "x.gamlens", lens) as index:
        index.add(tmp_path / "photos")
        rows = [{"price": 5, "colour": "red", "mixed": 1}, {"price": 7.5, "colour": "blue", "mixed": "n/a"}]
        index.annotate({str(tmp_path / "photos" / f"{number}.png"): row for number, row in enumerate(rows)})
        vector = index.query(str(tmp_path / "photos" / "0.png"))
        for where, message in (
            ("price < '50'", "'price' with '50', and the column holds numbers: write a number without quotes"),
            ("price in (5, '7')", "holds numbers"),
            ("colour < 5", "'colour' with 5, and the column holds text: write the value in single quotes"),
            ("image.width = 'wide'", "holds numbers"),
            ("image.name = 3", "holds text"),
        ):
            with pytest.raises(GamlensError, match=re.escape(message)):
                index.search(vector, where=where)
        for where, count in (("price < 6", 1), ("colour = 'red'", 1), ("mixed = 1", 1), ("mixed = 'n/a'", 1),
                             ("colour like '%e%'", 2), ("image.width between 99 and 101", 2)):  # fmt: skip
            assert len(index.search(vector, where=where, with_self=True)) == count, where
