"""The parts of a run, one file per finished chunk, and the records by which a damaged part is found.

A record says what a part must hold: how many items, the first and the last one, a hash of all their names, and the
size and the sha256 of the file. While a run goes on, each part has a record of its own in records/, so that a part
costs one small file more, however many parts there are. When the run is finished, manifest.json holds the records of
all parts, so that a reader opens one file more, and records/ is deleted.

A record is written before its part, and each of the two is written atomically. So a process that is killed leaves
either a whole part with its record, or a record without a part: then the chunk is measured again. A part without any
record is one of an early version of gamlens, which wrote none. Manifest and records name the run that they belong to.
Those of another run, which an early version left behind, count as missing; but a part that fits one of them exactly
shows that run.json is not the one with which the part was measured.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from gamlens.engine.folder_lock import check_lock
from gamlens.engine.json_objects import misfit, parse_object
from gamlens.engine.store import Store

PARTS_FOLDER, RECORDS, MANIFEST = "parts", "records", "manifest.json"


@dataclass(frozen=True)
class PartRecord:
    """What a part must hold: its items, and the size and sha256 of its file."""

    items: int
    first: str
    last: str
    names_sha256: str
    size: int
    sha256: str

    @classmethod
    def of(cls, contents: bytes, names: Sequence[str]) -> PartRecord:
        """The record of a part with these contents, whose items have these names."""
        first, last = (names[0], names[-1]) if names else ("", "")
        return cls(len(names), first, last, _names_sha256(names), len(contents), hashlib.sha256(contents).hexdigest())

    def problem(self, contents: bytes, names: Sequence[str] | None = None) -> str:
        """What is wrong with the contents of the part, or with the names of its items; "" if nothing is."""
        if names is not None and self.items and self.names_sha256 != _names_sha256(names):
            return f"it was measured on other items ({self.first!r} to {self.last!r})"
        if not contents and self.size:
            return "the file is empty"
        if len(contents) != self.size:
            return f"the file has {len(contents)} bytes, and {self.size} were written"
        if hashlib.sha256(contents).hexdigest() != self.sha256:
            return "the file has other contents than were written (its sha256 differs)"
        return ""


@dataclass(frozen=True)
class PartWriter:
    """Writes parts and their records. Every process of a run has one; it is picklable.

    Attributes:
        place: The run folder, absolute if it is on this machine.
        suffix: The suffix of the files in parts/.
        run: The sha256 of the run's configuration, by which records of another run are told apart.
        token: The token of the lock. Nothing is written if another process holds the lock now.
    """

    place: str
    suffix: str
    run: str
    token: str

    def write(self, chunk: int, contents: bytes, names: Sequence[str] = ()) -> PartRecord:
        """Write the record of a part, then the part. `names` are those of its items."""
        record = PartRecord.of(contents, names)
        check_lock(self._store, self.token)
        self._store.write(f"{RECORDS}/{chunk:08d}.json", _encoded({"run": self.run, **asdict(record)}))
        self._store.write(part_name(chunk, self.suffix), contents)
        return record

    @cached_property
    def _store(self) -> Store:
        return Store(self.place)


def part_name(chunk: int, suffix: str) -> str:
    """The name of a chunk's file, relative to the run folder."""
    return f"{PARTS_FOLDER}/{chunk:08d}{suffix}"


def part_numbers(store: Store, folder: str, suffix: str) -> list[int]:
    """The numbers of the parts (or records) in a folder, in order. Files of other names are not ours."""
    return sorted(number for name in store.names(folder) if (number := number_of(name, suffix)) is not None)


def number_of(name: str, suffix: str) -> int | None:
    """The number of the chunk whose file has this name; None for any other file, such as `00000001 (copy).parquet`."""
    stem = name.removesuffix(suffix)
    number = int(stem) if name.endswith(suffix) and re.fullmatch("[0-9]{8,18}", stem) else None
    return number if number is not None and f"{number:08d}" == stem else None


def read_records(store: Store, run: str) -> dict[int, PartRecord]:
    """The records of a run that is not finished, or of one that is repaired: {chunk: record}.

    A record in records/ is newer than that of the manifest. Records that cannot be read count as missing.
    """
    found = read_manifest(store, run)
    known = dict(enumerate(found)) if isinstance(found, list) else {}
    return known | {number: record for number, of, record in _single_records(store) if of == run}


def records_of_others(store: Store, run: str) -> dict[int, PartRecord]:
    """The records that name another run than `run`: {chunk: record}."""
    found = parse_object(store.read(MANIFEST) or b"")
    known: dict[int, PartRecord] = {}
    if not isinstance(found, str) and not misfit(found, {"run": str, "parts": list}) and found["run"] != run:
        known = {number: record for number, one in enumerate(found["parts"]) if (record := _record(one))}
    return known | {number: record for number, of, record in _single_records(store) if of != run}


def _single_records(store: Store) -> Iterator[tuple[int, Any, PartRecord]]:
    """The records in records/: the number of the chunk, the run that is named, and the record."""
    for number in part_numbers(store, RECORDS, ".json"):
        one = parse_object(store.read(f"{RECORDS}/{number:08d}.json") or b"")
        if not isinstance(one, str) and (record := _record(one)) is not None:
            yield number, one.get("run"), record


def read_manifest(store: Store, run: str) -> list[PartRecord] | str | None:
    """The records of all parts of a finished run; None without a manifest of this run; else why it cannot be read."""
    contents = store.read(MANIFEST)
    if contents is None:
        return None
    found = parse_object(contents)
    if isinstance(found, str):
        return found
    if wrong := misfit(found, {"run": str, "parts": list}):
        return wrong
    if found["run"] != run:
        return None
    records = [_record(one) for one in found["parts"]]
    whole = [record for record in records if record is not None]
    return whole if len(whole) == len(records) else "a record of a part has the wrong form"


def write_manifest(store: Store, run: str, records: Iterable[PartRecord]) -> None:
    store.write(MANIFEST, _encoded({"run": run, "parts": [asdict(record) for record in records]}))


def _record(found: Any) -> PartRecord | None:
    shape = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(PartRecord)}
    if not isinstance(found, dict) or misfit(found, shape):
        return None
    return PartRecord(**{name: found[name] for name in shape})


def _names_sha256(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
