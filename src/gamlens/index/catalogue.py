"""The catalogue of an index: a SQLite file that says which images the index holds, and where their vectors are.

The transactions of this file are the commits of the index. Vectors are appended to their own file first, and count only
once a transaction names their slots; so a process that is killed at any moment leaves the index as it was before, or as
it is after.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from gamlens.errors import GamlensError, near, printable, readable
from gamlens.files import write_whole
from gamlens.index.where import SqlFilter, parse_filter

CATALOGUE = "catalogue.sqlite"
CATALOGUE_FORMAT = 1
PATIENCE_S = 20.0  # how long a reader waits for a writer that commits
MOST_COLUMNS = 1000  # of the user's table; SQLite has 2000 in all
ROWS_PER_QUERY = 500  # the most parameters that one statement has
# The columns of images that a filter can name, beside those of the user's table, and how each is stored.
OWN_COLUMNS = {
    "image.path": "images.path",
    "image.name": "images.name",
    "image.width": "images.width",
    "image.height": "images.height",
    "image.bytes": "images.bytes",
}
OWN_TEXTS = ("image.path", "image.name")  # those of them that are text
KEY_COLUMN = "image.id"  # the key of the table of metadata; users' columns cannot begin with "image."
SCHEMA = f"""
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (
  id INTEGER PRIMARY KEY AUTOINCREMENT, slot INTEGER NOT NULL UNIQUE, path TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, modified INTEGER NOT NULL, width INTEGER NOT NULL,
  height INTEGER NOT NULL, frame TEXT NOT NULL, crc INTEGER NOT NULL, block_at INTEGER, block_bytes INTEGER,
  block_crc INTEGER
);
CREATE INDEX images_sha256 ON images (sha256);
CREATE INDEX images_bytes ON images (bytes);
CREATE TABLE metadata ("{KEY_COLUMN}" INTEGER PRIMARY KEY REFERENCES images (id) ON DELETE CASCADE);
CREATE TABLE sources (path TEXT PRIMARY KEY);
CREATE TABLE bad (path TEXT PRIMARY KEY, bytes INTEGER NOT NULL, modified INTEGER NOT NULL, reason TEXT NOT NULL);
"""


@dataclass(frozen=True)
class FileState:
    """What tells whether a file has changed: its size in bytes, and when it was modified (ns). No file has bytes=-1."""

    bytes: int
    modified: int


@dataclass(frozen=True)
class IndexedImage:
    """An image of the index.

    Attributes:
        path: Its file, absolute.
        sha256: The hash of the file's contents.
        state: The size and time of the file when it was read.
        width, height: Of the upright image, in pixels.
        frame: Where the model's input lies in the image: original, size and window, see `Frame`.
        slot: The row of its vector.
        crc: The CRC-32 of its vector.
        block: Where its remembered activations lie: (offset, length, CRC-32); None if they are not remembered.
        id: Its number in the catalogue, which never changes; 0 if it is not in a catalogue yet.
    """

    path: str
    sha256: str
    state: FileState
    width: int
    height: int
    frame: Mapping[str, Any]
    slot: int
    crc: int
    block: tuple[int, int, int] | None = None
    id: int = 0

    @property
    def name(self) -> str:
        return Path(self.path).name


class DescribedImage(NamedTuple):
    """What a hit says of an image: its number, file and size, and its columns of the user's table that have a value.

    `state` and `sha256` are those of the file when it was read.
    """

    id: int
    path: str
    width: int
    height: int
    metadata: Mapping[str, Any]
    state: FileState
    sha256: str


class Catalogue:
    """The open catalogue of an index in `folder`. One connection, which threads take in turn."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder, self._connection, self._lock = folder, connection, threading.RLock()

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, Any]) -> Catalogue:
        """Make the catalogue of a new index, with its settings; it is there whole or not at all."""
        with closing(cls.temporary(settings)) as made:
            contents = made._connection.serialize()
        try:
            write_whole(folder / CATALOGUE, lambda out: out.write(contents))
        except OSError as error:
            raise GamlensError(
                f"Cannot write {readable(str(folder / CATALOGUE))!r}: {error.strerror or error}. Free some space, or "
                "name another folder."
            ) from error
        return cls(folder, _connect(folder))

    def _fill(self, settings: Mapping[str, Any]) -> None:
        with self.transaction() as run:
            for statement in SCHEMA.split(";")[:-1]:
                run.execute(statement)
            self.set(run, {"format": CATALOGUE_FORMAT, **settings})

    @classmethod
    def temporary(cls, settings: Mapping[str, Any]) -> Catalogue:
        """A catalogue in memory."""
        made = cls(Path(), sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        made._fill(settings)
        return made

    @classmethod
    def open(cls, folder: Path) -> Catalogue:
        """Open the catalogue of an index that exists."""
        if not (folder / CATALOGUE).is_file():
            what = "a folder, but not an index" if folder.is_dir() else "no index"
            raise GamlensError(
                f"{readable(str(folder))!r} is {what}: make one with `gamlens index add FOLDER --to "
                f"{readable(str(folder))}`."
            )
        found = cls(folder, _connect(folder))
        try:
            found._check_format()
        except BaseException:
            found.close()
            raise
        return found

    def _check_format(self) -> None:
        with self._reading():
            known = self.settings().get("format")
            if isinstance(known, int) and known > CATALOGUE_FORMAT:
                name = readable(str(self.folder))
                raise GamlensError(
                    f"The index {name!r} was written by a newer version of gamlens, in format {known}; this version "
                    f"reads format {CATALOGUE_FORMAT}. Update gamlens, or rebuild the index: run `gamlens index add "
                    "FOLDER --to ANOTHER` on its images."
                )
            if known != CATALOGUE_FORMAT:
                raise self.damaged(f"it is written in format {known!r}, and this version reads {CATALOGUE_FORMAT}")
            for table in ("images", "metadata", "sources", "bad"):
                self._connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def damaged(self, why: str) -> GamlensError:
        """The error about an index that cannot be used as it is."""
        name = readable(str(self.folder))
        return GamlensError(
            f"The index {name!r} is damaged: {why.rstrip('.')}. Restore a copy of the folder, or rebuild it: delete "
            f"it, and run `gamlens index add FOLDER --to {name}` on its images again."
        )

    # Transactions

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the catalogue: all changes of the block take effect at its end, or none if it raises."""
        with self._reading():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Read several things as they are at one moment: what others commit meanwhile is not seen."""
        with self._reading():
            nested = self._connection.in_transaction
            if not nested:
                self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if not nested:
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the connection, and turn SQLite's errors into ours."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise self._error(error) from error
            except UnicodeEncodeError as error:
                raise GamlensError(
                    f"A text holds {error.object[error.start : error.end]!r}, which no file can hold: take it out."
                ) from error
            except (ValueError, KeyError, TypeError) as error:
                raise self.damaged(f"its catalogue cannot be read ({type(error).__name__}: {error})") from error

    def _error(self, error: sqlite3.Error) -> GamlensError:
        """The error that says what SQLite's means: whether the disk is full, the file in use, or damaged."""
        name, kind = readable(str(self.folder)), getattr(error, "sqlite_errorname", "")
        if kind == "SQLITE_FULL" or (kind.startswith("SQLITE_IOERR") and not kind.endswith("READ")):
            return GamlensError(
                f"The disk is full or gives an error ({error}), so {name!r} could not be changed; it is as it was "
                "before. Free some space, and give the command again."
            )
        if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return GamlensError(
                f"Cannot use the catalogue of {name!r}: {error}. Wait for the other program that uses it, or make "
                "the folder readable and writable."
            )
        if isinstance(error, sqlite3.ProgrammingError) and not kind:
            return GamlensError(f"The index {name!r} is closed: open it again by Index.open.")
        return self.damaged(f"its catalogue cannot be read ({type(error).__name__}: {error})")

    def version(self) -> tuple[int, int]:
        """A value that changes whenever somebody commits a change: this process, or another one."""
        with self._reading():
            (other,) = self._connection.execute("PRAGMA data_version").fetchone()
            return other, self._connection.total_changes

    def problem(self) -> str:
        """What SQLite's own check finds wrong with the file; "" if nothing."""
        with self._reading():
            found = [row[0] for row in self._connection.execute("PRAGMA integrity_check(3)")]
        return "" if found == ["ok"] else "; ".join(found)

    # Settings

    def settings(self) -> dict[str, Any]:
        with self._reading():
            return {key: json.loads(value) for key, value in self._connection.execute("SELECT * FROM settings")}

    @staticmethod
    def set(run: sqlite3.Connection, settings: Mapping[str, Any]) -> None:
        """Change settings, in a transaction."""
        rows = [(key, json.dumps(value)) for key, value in settings.items()]
        run.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)

    # Images

    def __len__(self) -> int:
        with self._reading():
            return int(self._connection.execute("SELECT count(*) FROM images").fetchone()[0])

    def end(self) -> int:
        """One more than the last slot that is in use."""
        with self._reading():
            return int(self._connection.execute("SELECT coalesce(max(slot), -1) + 1 FROM images").fetchone()[0])

    def blocks_end(self) -> int:
        """Where the last remembered activations end."""
        text = "SELECT coalesce(max(block_at + block_bytes), 0) FROM images"
        with self._reading():
            return int(self._connection.execute(text).fetchone()[0])

    def slots(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The slots in use, ascending, and the CRC-32 of each vector, (N,) each."""
        with self._reading():
            rows = self._connection.execute("SELECT slot, crc FROM images ORDER BY slot").fetchall()
            found = np.array(rows, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def images(self, slots: Sequence[int] | None = None) -> dict[int, IndexedImage]:
        """Images by slot: those of `slots`, as far as they are there, or all of them in the order of slots."""
        found: dict[int, IndexedImage] = {}
        with self._reading():
            for chosen, numbers in _chosen("slot", slots):
                for row in self._connection.execute(f"SELECT * FROM images{chosen} ORDER BY slot", numbers):
                    image = _image(row)
                    found[image.slot] = image
        return found

    def states(self) -> dict[str, FileState]:
        """The state of every file, as it was when it was read; also of the bad ones."""
        text = "SELECT path, bytes, modified FROM images UNION ALL SELECT path, bytes, modified FROM bad"
        with self._reading():
            rows = self._connection.execute(text)
            return {_loaded(path): FileState(size, modified) for path, size, modified in rows}

    def by_id(self, ids: Iterable[int]) -> dict[int, IndexedImage]:
        """The images with these numbers, by number."""
        return {image.id: image for image in self._by("id", list(ids))}

    def by_path(self, paths: Iterable[str]) -> dict[str, IndexedImage]:
        """The images whose files are named, by path."""
        return {image.path: image for image in self._by("path", [_stored(path) for path in paths])}

    def by_contents(self, hashes: Iterable[str]) -> dict[str, list[IndexedImage]]:
        """The images with each of these sha256 of contents, as far as there are any."""
        found: dict[str, list[IndexedImage]] = {}
        for image in self._by("sha256", list(dict.fromkeys(hashes))):
            found.setdefault(image.sha256, []).append(image)
        return found

    def of_size(self, size: int) -> list[IndexedImage]:
        """The images whose files have this many bytes."""
        with self._reading():
            return [_image(row) for row in self._connection.execute("SELECT * FROM images WHERE bytes = ?", (size,))]

    def _by(self, column: str, values: Sequence[Any]) -> list[IndexedImage]:
        found: list[IndexedImage] = []
        with self._reading():
            for chosen, part in _chosen(column, values):
                rows = self._connection.execute(f"SELECT * FROM images{chosen} ORDER BY id", part)
                found += map(_image, rows)
        return found

    @staticmethod
    def put(run: sqlite3.Connection, images: Iterable[IndexedImage]) -> None:
        """Enter images, in a transaction. One whose path is there already takes its place and keeps its id."""
        for image in images:
            block = image.block or (None, None, None)
            path, name = _stored(image.path), _stored(image.name)
            run.execute("DELETE FROM bad WHERE path = ?", (path,))
            run.execute(
                "INSERT INTO images (slot, path, name, sha256, bytes, modified, width, height, frame, crc, block_at, "
                "block_bytes, block_crc) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (path) DO UPDATE SET "
                "slot=excluded.slot, sha256=excluded.sha256, bytes=excluded.bytes, modified=excluded.modified, "
                "width=excluded.width, height=excluded.height, frame=excluded.frame, crc=excluded.crc, "
                "block_at=excluded.block_at, block_bytes=excluded.block_bytes, block_crc=excluded.block_crc",
                (image.slot, path, name, image.sha256, image.state.bytes, image.state.modified,
                 image.width, image.height, json.dumps(dict(image.frame)), image.crc, *block),
            )  # fmt: skip

    @staticmethod
    def remove(run: sqlite3.Connection, paths: Iterable[str]) -> int:
        """Take images and bad files out, in a transaction. Returns how many images there were."""
        count = 0
        for path in paths:
            count += run.execute("DELETE FROM images WHERE path = ?", (_stored(path),)).rowcount
            run.execute("DELETE FROM bad WHERE path = ?", (_stored(path),))
        return count

    @staticmethod
    def move(run: sqlite3.Connection, moved: Mapping[str, tuple[str, FileState]]) -> None:
        """Give images other paths, in a transaction: {old path: (new path, state)}. Metadata stays with them.

        Images may change places with each other, so each has its number as its path in between.
        """
        ids = [run.execute("SELECT id FROM images WHERE path = ?", (_stored(old),)).fetchone() for old in moved]
        for found in filter(None, ids):
            run.execute("UPDATE images SET path = id WHERE id = ?", found)
        for found, (new, state) in zip(ids, moved.values(), strict=True):
            run.execute("DELETE FROM bad WHERE path = ?", (_stored(new),))
            run.execute(
                "UPDATE images SET path = ?, name = ?, bytes = ?, modified = ? WHERE id = ?",
                (_stored(new), _stored(Path(new).name), state.bytes, state.modified, *(found or (None,))),
            )

    @staticmethod
    def renumber(
        run: sqlite3.Connection, images: Sequence[IndexedImage], blocks: Mapping[tuple[int, int, int], int]
    ) -> None:
        """Give images the rows 0, 1, ... in their order, in a transaction, and activations new places: {old: offset}.

        Images come in the order of their slots, so that a new slot is never one that a later image still has.
        """
        for slot, image in enumerate(images):
            place = blocks[image.block] if image.block is not None else None
            run.execute("UPDATE images SET slot = ?, block_at = ? WHERE id = ?", (slot, place, image.id))

    @staticmethod
    def put_bad(run: sqlite3.Connection, bad: Mapping[str, tuple[FileState, str]]) -> None:
        """Note files that cannot be read, in a transaction: {path: (state, reason)}. They are no images any more."""
        for path, (state, reason) in bad.items():
            row = (_stored(path), state.bytes, state.modified, readable(reason))
            run.execute("DELETE FROM images WHERE path = ?", row[:1])
            run.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, ?, ?)", row)

    def bad(self) -> dict[str, str]:
        """The files that cannot be read, with the reason."""
        with self._reading():
            rows = self._connection.execute("SELECT path, reason FROM bad ORDER BY path")
            return {_loaded(path): str(reason) for path, reason in rows}

    def sources(self) -> list[str]:
        """The folders and files that were added, which `update` looks at again."""
        with self._reading():
            return [_loaded(path) for (path,) in self._connection.execute("SELECT path FROM sources ORDER BY path")]

    @staticmethod
    def put_sources(run: sqlite3.Connection, sources: Iterable[str]) -> None:
        run.executemany("INSERT OR IGNORE INTO sources VALUES (?)", [(_stored(source),) for source in sources])

    @staticmethod
    def remove_sources(run: sqlite3.Connection, sources: Iterable[str]) -> None:
        run.executemany("DELETE FROM sources WHERE path = ?", [(_stored(source),) for source in sources])

    # Metadata

    def columns(self) -> list[str]:
        """The columns of the user's table."""
        with self._reading():
            rows = self._connection.execute("PRAGMA table_info(metadata)").fetchall()
        return [row[1] for row in rows if row[1] != KEY_COLUMN]

    def kinds(self) -> dict[str, type]:
        """Whether each column of the user's table holds text (str) or numbers (float), as far as it holds anything."""
        found: dict[str, type] = {}
        for column in self.columns():
            if self._holds(column, str):
                found[column] = str
            elif self._holds(column, float):
                found[column] = float
        return found

    def _holds(self, column: str, kind: type) -> bool:
        """Whether any value of a column is text (str), or a number (float)."""
        types = "'text'" if kind is str else "'integer', 'real'"
        text = f"SELECT EXISTS (SELECT 1 FROM metadata WHERE typeof({quoted(column)}) IN ({types}))"
        with self._reading():
            return bool(self._connection.execute(text).fetchone()[0])

    def put_metadata(self, run: sqlite3.Connection, rows: Mapping[str, Mapping[str, Any]]) -> int:
        """Set columns of images, in a transaction: {path: {column: value}}. Returns of how many images.

        A column that is new is made. Values of other columns stay.
        """
        known = {column.casefold(): column for column in self.columns()}
        new = {column.casefold() for row in rows.values() for column in row} - known.keys()
        if len(known) + len(new) > MOST_COLUMNS:
            raise GamlensError(
                f"The index would have {len(known) + len(new)} columns, and it can have {MOST_COLUMNS}: leave some out."
            )
        for column in dict.fromkeys(column for row in rows.values() for column in row):
            if column.casefold() not in known:
                run.execute(f"ALTER TABLE metadata ADD COLUMN {quoted(column)}")
                known[column.casefold()] = column
        count = 0
        for path, row in rows.items():
            found = run.execute("SELECT id FROM images WHERE path = ?", (_stored(path),)).fetchone()
            if found is None or not row:
                continue
            count += 1
            names = [quoted(known[column.casefold()]) for column in row]
            run.execute(f"INSERT OR IGNORE INTO metadata ({quoted(KEY_COLUMN)}) VALUES (?)", found)
            text = f"UPDATE metadata SET {', '.join(f'{name} = ?' for name in names)} WHERE {quoted(KEY_COLUMN)} = ?"
            run.execute(text, (*row.values(), *found))
        return count

    def generation(self) -> int:
        """How many times the files were written anew; slots have other numbers since."""
        with self._reading():
            (text,) = self._connection.execute("SELECT value FROM settings WHERE key = 'generation'").fetchone()
        return int(json.loads(text))

    def described(self, slots: Sequence[int]) -> dict[int, DescribedImage]:
        """What hits say of images, by slot, read by one statement: a search does this each time."""
        columns = self.columns()
        names = "".join(f", metadata.{quoted(column)}" for column in columns)
        text = (
            "SELECT images.slot, images.id, images.path, images.width, images.height, images.sha256, images.bytes, "
            f"images.modified{names} FROM images LEFT JOIN metadata ON images.id = metadata.{quoted(KEY_COLUMN)}"
        )
        found = {}
        with self._reading():
            for chosen, numbers in _chosen("images.slot", slots):
                for row in self._connection.execute(text + chosen, numbers):
                    slot, number, path, width, height, sha256, size, modified, *cells = row
                    values = zip(columns, cells, strict=True)
                    metadata = {column: value for column, value in values if value is not None}
                    state = FileState(size, modified)
                    found[slot] = DescribedImage(number, _loaded(path), width, height, metadata, state, sha256)
        return found

    def _check_kind(self, column: str, value: Any) -> None:
        """Raise an error if a column is compared with text and holds numbers alone, or the other way round."""
        text = isinstance(value, str)
        if column in OWN_COLUMNS:
            wrong = text != (column in OWN_TEXTS)
        else:
            fits, other = (str, float) if text else (float, str)
            wrong = not self._holds(column, fits) and self._holds(column, other)
        if wrong:
            holds, instead = ("numbers", "a number without quotes") if text else ("text", "the value in single quotes")
            raise GamlensError(
                f"The filter compares the column {printable(column)[:80]!r} with {value!r:.80}, and the column holds "
                f"{holds}: write {instead}."
            )

    def matching(self, where: str) -> np.ndarray[Any, Any]:
        """The slots, ascending, of images that a filter lets through, such as "price < 50 and colour = 'red'"."""
        columns = self.columns()
        wanted: SqlFilter = parse_filter(where, [*columns, *OWN_COLUMNS])
        for column, value in wanted.pairs:
            self._check_kind(column, value)
        own = ", ".join(f"{place} AS {quoted(column)}" for column, place in OWN_COLUMNS.items())
        users = "".join(f", metadata.{quoted(column)} AS {quoted(column)}" for column in columns)
        joined = f"images LEFT JOIN metadata ON images.id = metadata.{quoted(KEY_COLUMN)}"
        slot = quoted("image.slot")
        rows = f"(SELECT images.slot AS {slot}, {own}{users} FROM {joined}) WHERE {wanted.text}"
        with self._reading():  # one text of all numbers: an object per row would take several times as long
            (text,) = self._connection.execute(f"SELECT group_concat({slot}) FROM {rows}", wanted.values).fetchone()
        return np.sort(np.array(text.split(","), dtype=np.int64)) if text else np.zeros(0, dtype=np.int64)


def check_column(column: str, known: Iterable[str] = ()) -> None:
    """Raise an error if a column of a user's table cannot be one of the index."""
    if not isinstance(column, str):
        raise GamlensError(f"A column of the table is called {column!r:.80}: give every column a name, as a text.")
    if not column.strip() or "\0" in column or len(column) > 200 or readable(column) != column:
        raise GamlensError(f"A column of the table is called {column[:80]!r}: give every column a short name.")
    if column.casefold().startswith("image."):
        raise GamlensError(
            f"The column {column!r} begins with 'image.', as those that the index has itself "
            f"({', '.join(OWN_COLUMNS)}): give it another name."
        )
    if twice := [other for other in known if other != column and other.casefold() == column.casefold()]:
        raise GamlensError(f"The columns {twice[0]!r} and {column!r} differ by upper and lower case alone: rename one.")


def check_value(value: Any, what: str) -> None:
    """Raise an error if a value of a user's table cannot be kept: `what` names it."""
    if isinstance(value, str):
        if readable(value) != value or "\0" in value:
            raise GamlensError(f"{what} is {value[:80]!r}, with characters that no text has: take them out.")
    elif isinstance(value, int | float):
        if not (-(2**63) <= value < 2**63 if isinstance(value, int) else math.isfinite(value)):
            raise GamlensError(f"{what} is {value!r:.80}: give a finite number, and a whole one of at most 64 bits.")
    elif value is not None:
        raise GamlensError(f"{what} is a {type(value).__name__}: give a number, a text or None.")


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def unknown_image(path: str, known: Iterable[str]) -> GamlensError:
    """The error about an image that is not in the index."""
    return GamlensError(f"There is no image {readable(path)!r} in the index: {near(path, known)}")


def _chosen(column: str, values: Sequence[Any] | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """WHERE clauses that choose rows by the values of a column, a part at a time, with their parameters."""
    if values is None:
        yield "", ()
        return
    for start in range(0, len(values), ROWS_PER_QUERY):
        part = values[start : start + ROWS_PER_QUERY]
        plain = tuple(value if isinstance(value, str | bytes) else int(value) for value in part)
        yield f" WHERE {column} IN ({','.join('?' * len(part))})", plain


def _image(row: Sequence[Any]) -> IndexedImage:
    number, slot, path, _, sha256, size, modified, width, height, stored, crc, *block = row
    frame = json.loads(stored)
    if not isinstance(frame, dict):
        raise ValueError(f"the frame of image {number} is {stored[:60]}")
    return IndexedImage(
        path=_loaded(path),
        sha256=sha256,
        state=FileState(size, modified),
        width=width,
        height=height,
        frame=frame,
        slot=slot,
        crc=crc,
        block=None if block[0] is None else (int(block[0]), int(block[1]), int(block[2])),
        id=number,
    )


def _stored(path: str) -> str | bytes:
    """A path as SQLite keeps it. One with bytes that are no UTF-8, which no text can hold, becomes a BLOB."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogatepass")
    return path


def _loaded(path: str | bytes) -> str:
    """A path that SQLite kept."""
    return path if isinstance(path, str) else path.decode("utf-8", "surrogatepass")


def _connect(folder: Path) -> sqlite3.Connection:
    address = f"file:{quote(os.fsencode((folder / CATALOGUE).absolute()))}?mode=rw"
    try:
        found = sqlite3.connect(address, uri=True, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
        found.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error as error:
        raise GamlensError(
            f"Cannot open {readable(str(folder / CATALOGUE))!r}: {error}. Give a folder that can be read and written."
        ) from error
    return found
