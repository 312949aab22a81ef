"""The folder of a run: its configuration, the results of finished chunks, and a lock for the process that writes."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gamlens.engine import part_files
from gamlens.engine.folder_lock import LOCK, FolderLock, check_lock
from gamlens.engine.json_objects import parse_object
from gamlens.engine.part_files import MANIFEST, PARTS_FOLDER, RECORDS, PartRecord, PartWriter, number_of, part_name
from gamlens.engine.store import Store
from gamlens.errors import GamlensError

RUN, DONE = "run.json", "done.json"
FREE = ("command", "threads")  # keys of run.json that may differ when a run is continued
# Two more keys of run.json: where the images are, and a hash of them. The place may differ if the hashes are equal.
PLACE, CONTENTS = "root", "images_sha256"
VARIES = "that of each worker"  # the value of a key that is not the same in all processes of a run: it fits any other
AGAIN = "Give the command that made the run again: it measures what is missing or damaged, and keeps the rest"
AFRESH = "start over with --fresh, or delete that folder"

CheckPart = Callable[[int, bytes], str]  # (chunk, contents): what is wrong with a part, or ""


class RunFolder:
    """A run folder with run.json (the configuration), parts/ (one file per finished chunk) and done.json (the summary).

    Beside them, `part_files` keeps records of the parts, so that a part that is missing, damaged or replaced is found.
    Other files in the folder and in parts/ are ignored and never deleted.

    At the end of a run, manifest.json is written first; then records/ is deleted; done.json comes last. `drop`
    deletes done.json first, then damaged parts. So a run that has a done.json was finished, and a process that is
    killed at any moment leaves a folder in which the same command continues.

    As a context manager it locks the folder, so that one process at a time works in it. Entering a folder whose parts
    were made with another configuration is an error.

    Args:
        place: A folder, or a URI such as s3://bucket/run.
        about: The configuration of the run, which must be JSON. Its entry "chunks" is the number of parts.
        suffix: The suffix of the files in parts/.
        fresh: Whether to delete the run that the folder holds.
        unsaid: What an entry means that run.json does not have, because an earlier version wrote it: the entries of
            `about` that are newer, with the values that were fixed before. Such a run can be continued.
    """

    def __init__(
        self,
        place: str | Path,
        about: Mapping[str, Any],
        *,
        suffix: str,
        fresh: bool = False,
        unsaid: Mapping[str, Any] | None = None,
    ) -> None:
        self.store, self.about, self.suffix = Store(place), dict(about), suffix
        self._unsaid = unsaid or {}
        self._fresh = fresh
        self._lock = FolderLock(self.store)
        self._records: dict[int, PartRecord] = {}
        self._others: dict[int, PartRecord] = {}  # records that name another run
        self._run = _identity(self.about)

    @classmethod
    def finished(cls, place: str | Path, *, suffix: str, make: str) -> RunFolder:
        """Open a finished run for reading. `make` is the command that makes such a run, for the error message.

        A run that is not finished, or a part that is missing, is an error; damaged parts are found by `parts`.
        """
        store = Store(place)
        about = _json(store, RUN, f"restore it, or {AFRESH}")
        if about is None:
            raise GamlensError(f"{str(place)!r} is not a run: {RUN} is missing. Make one: {make}.")
        folder = cls(place, about, suffix=suffix)
        parts = folder.written()
        if _json(store, DONE, AGAIN.lower()) is None:
            raise GamlensError(
                f"The run in {str(place)!r} is not finished: {len(parts)} of {about.get('chunks', '?')} parts are "
                "there. Run the command that made it again: it continues where it stopped."
            )
        records = part_files.read_manifest(store, folder._run)
        if isinstance(records, str):
            raise GamlensError(f"{MANIFEST!r} in {store.place!r} cannot be read: {records}. {AGAIN}.")
        folder._records = dict(enumerate(records or ()))
        folder._others = {} if records else part_files.records_of_others(store, folder._run)
        expected = len(records or ()) if folder.chunks is None else folder.chunks
        if records is not None and len(records) != expected:
            raise GamlensError(f"{MANIFEST!r} in {store.place!r} has {len(records)} parts of {expected}. {AGAIN}.")
        folder._check_missing(expected)
        return folder

    @property
    def chunks(self) -> int | None:
        """How many parts the whole run has, by its configuration; None if that does not say."""
        found = self.about.get("chunks")
        return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None

    @property
    def has_records(self) -> bool:
        """Whether there are records of the parts. Runs of early versions have none."""
        return bool(self._records)

    def __enter__(self) -> RunFolder:
        self._lock.take()
        try:
            if self._fresh:
                self.clear()
            for folder in ("", PARTS_FOLDER, RECORDS):
                self.store.sweep(folder, self._is_ours)
            if differing := self.other_settings():
                raise GamlensError(
                    f"{self.store.place!r} holds another run: {differing}. Nothing was changed: "
                    "choose another folder, or replace that run with --fresh."
                )
            known = _json(self.store, RUN, f"restore it, or {AFRESH}")
            if known is None:
                if self.written():
                    raise GamlensError(f"{self.store.place!r} has parts of a run but no {RUN}: {AFRESH}.")
                self._describe(self.about)
            elif _differences(_said(known, self._unsaid), self.about):
                # Another configuration, but nothing was measured with it yet: replace it.
                self.store.remove(DONE)
                self._describe(self.about)
            elif known.get(PLACE) != self.about.get(PLACE):
                # The same run, whose images were moved.
                self._describe({**known, PLACE: self.about[PLACE]})
            else:
                self._run = _identity(known)
            self._records = part_files.read_records(self.store, self._run)
            self._others = part_files.records_of_others(self.store, self._run)
            self._writer = self.writer()
        except BaseException:
            self._lock.free()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.free()

    def other_settings(self) -> str:
        """The settings in which the run that the folder holds differs from this one, which then cannot continue it.

        It is "" if there is none, if it is the same one, or if nothing was measured with the other settings yet.
        """
        known = _json(self.store, RUN, f"restore it, or {AFRESH}")
        if known is None:
            return ""
        said = _said(known, self._unsaid)
        replaceable = said.keys() == self.about.keys() and not self.written()
        return "" if replaceable else _differences(said, self.about)

    def written(self) -> set[int]:
        """The numbers of the finished chunks."""
        found = part_files.part_numbers(self.store, PARTS_FOLDER, self.suffix)
        return {number for number in found if self.chunks is None or number < self.chunks}

    def writer(self) -> PartWriter:
        """The writer of this run's parts, for any process on any machine that can write to the folder."""
        local = self.store.local
        place = self.store.place if local is None else str(local.absolute())  # workers start in other directories
        return PartWriter(place, self.suffix, self._run, self._lock.token)

    def write(self, chunk: int, contents: bytes, names: Sequence[str] = ()) -> None:
        """Write the part of a chunk; `names` are those of its items."""
        self._records[chunk] = self._writer.write(chunk, contents, names)

    def part(self, chunk: int) -> bytes:
        """The contents of one finished chunk."""
        contents = self.store.read(part_name(chunk, self.suffix))
        if contents is None:
            raise self.damaged(chunk, "the file is missing")
        if (record := self._records.get(chunk)) is not None and (problem := record.problem(contents)):
            raise self.damaged(chunk, problem)
        self._check_settings(chunk, contents)
        return contents

    def parts(self) -> Iterator[bytes]:
        """The contents of the finished chunks, in order. A damaged one is an error."""
        written = sorted(self.written())
        self._learn(written)
        return (self.part(chunk) for chunk in written)

    def find_damaged(
        self, check: CheckPart = lambda chunk, contents: "", *, names: Sequence[Sequence[str]] | None = None
    ) -> dict[int, str]:
        """Find the parts that are damaged: {chunk: what is wrong}. In a finished run, a missing part is one of them.

        A part of a run with other settings is an error, because nothing is wrong with it: it is not deleted.

        Args:
            check: Checks the contents of every part that has the size and sha256 of its record, or has no record.
            names: The names of the items of each chunk. Parts without a record are given one with these names.
        """
        found: dict[int, str] = {}
        unknown: dict[int, PartRecord] = {}
        written = self.written()
        for chunk in sorted(written):
            contents = self.store.read(part_name(chunk, self.suffix)) or b""
            own = names[chunk] if names is not None and chunk < len(names) else None
            record = self._records.get(chunk)
            self._check_settings(chunk, contents)
            if problem := (record.problem(contents, own) if record else "") or check(chunk, contents):
                found[chunk] = problem
            elif record is None:
                unknown[chunk] = PartRecord.of(contents, own or ())
        if self.store.read(DONE) is not None:
            found |= {chunk: "the file is missing" for chunk in range(self.chunks or 0) if chunk not in written}
        self._records |= unknown
        return found

    def drop(self, chunks: Collection[int]) -> None:
        """Delete parts, so that they are measured again. The run is no longer finished then."""
        if chunks:
            check_lock(self.store, self._lock.token)
            self.store.remove(DONE)
        for chunk in chunks:
            self.store.remove(part_name(chunk, self.suffix))
            self._records.pop(chunk, None)

    def damaged(self, chunk: int, problem: str) -> GamlensError:
        """The error about a part of this run that cannot be used."""
        record, name = self._records.get(chunk), part_name(chunk, self.suffix)
        items = f", items {record.first!r} to {record.last!r}" if record is not None and record.items else ""
        return GamlensError(f"Part {chunk} of the run in {self.store.place!r} ({name}{items}): {problem}. {AGAIN}.")

    def summary(self) -> dict[str, Any] | None:
        """The summary that `finish` wrote, or None if the run is not finished or the summary cannot be read."""
        found = parse_object(self.store.read(DONE) or b"")
        return None if isinstance(found, str) else found

    def sealed(self) -> bool:
        """Whether the folder has a manifest of all parts. A finished run of an early version has none."""
        found = part_files.read_manifest(self.store, self._run)
        return isinstance(found, list) and self.chunks in (None, len(found))

    def recorded(self, key: str) -> Any:
        """The value of a key of run.json as the run was started, or None if it is missing."""
        return (_json(self.store, RUN, f"restore it, or {AFRESH}") or {}).get(key)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the manifest and the summary. Every part must be there.

        The summary comes last: if the process is killed before, the next one does all of this again.
        """
        written = self.written()
        count = max(written, default=-1) + 1 if self.chunks is None else self.chunks
        self._check_missing(count)
        self._learn(range(count))
        records = [self._records.get(chunk) or PartRecord.of(self.part(chunk), ()) for chunk in range(count)]
        check_lock(self.store, self._lock.token)
        part_files.write_manifest(self.store, self._run, records)
        self._remove(RECORDS, ".json")
        self.store.write(DONE, json.dumps(dict(summary), indent=2).encode())

    def beat(self) -> None:
        """Raise a GamlensError if another process holds the lock now. A run that writes elsewhere calls it often."""
        check_lock(self.store, self._lock.token)

    def _check_settings(self, chunk: int, contents: bytes) -> None:
        """Raise a GamlensError if a part has no record of this run, and is exactly the part of another run."""
        other = self._others.get(chunk) if chunk not in self._records else None
        if other is not None and not other.problem(contents):
            raise GamlensError(
                f"Part {chunk} of the run in {self.store.place!r} was measured with other settings than {RUN} says: "
                f"that file, or the records of the parts, were replaced or edited. Nothing was changed: restore {RUN}, "
                f"or {AFRESH}."
            )

    def _check_missing(self, count: int) -> None:
        """Raise a GamlensError that names the first part that is missing, if there are fewer than `count`."""
        written = self.written()
        if len(written) < count:
            raise self.damaged(
                next(chunk for chunk in itertools.count() if chunk not in written), "the file is missing"
            )

    def _learn(self, chunks: Iterable[int]) -> None:
        """Read the records of parts that other processes of the run wrote."""
        if self._lock.taken and any(chunk not in self._records for chunk in chunks):
            self._records = part_files.read_records(self.store, self._run) | self._records

    def _describe(self, about: Mapping[str, Any]) -> None:
        self._run = _identity(about)
        self.store.write(RUN, json.dumps(about, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))

    def clear(self) -> None:
        """Delete the run, and no other file. run.json goes last, because parts without it have no meaning."""
        self.store.remove(DONE)
        self._remove(PARTS_FOLDER, self.suffix)
        self._remove(RECORDS, ".json")
        self.store.remove(MANIFEST)
        self.store.remove(RUN)

    def _remove(self, folder: str, suffix: str) -> None:
        numbers = part_files.part_numbers(self.store, folder, suffix)
        self.store.remove_all(folder, (f"{number:08d}{suffix}" for number in numbers))

    def _is_ours(self, name: str) -> bool:
        known = any(number_of(name, suffix) is not None for suffix in (self.suffix, ".json"))
        return known or name in (RUN, DONE, MANIFEST, LOCK)


def _identity(about: Mapping[str, Any]) -> str:
    """The sha256 of a configuration, without what may change while the run is continued."""
    own = {name: value for name, value in about.items() if name not in (*FREE, PLACE)}
    return hashlib.sha256(json.dumps(json.loads(json.dumps(own)), sort_keys=True).encode()).hexdigest()


def _json(store: Store, name: str, todo: str) -> dict[str, Any] | None:
    """The object in a JSON file of a run; None without the file. `todo` says what to do if it cannot be read."""
    contents = store.read(name)
    if contents is None:
        return None
    found = parse_object(contents)
    if isinstance(found, str):
        raise GamlensError(f"{name!r} in {store.place!r} cannot be read: {found}. {todo[0].upper()}{todo[1:]}.")
    return found


def _said(known: Mapping[str, Any], unsaid: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration `known` with the entries of `unsaid` that it does not have, also inside its objects."""
    found = {**unsaid, **known}
    for name, value in unsaid.items():
        if isinstance(value, Mapping) and isinstance(own := known.get(name), Mapping):
            found[name] = _said(own, value)
    return found


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> str:
    """The settings that differ, such as `protocol.n: [1] there, [1, 2] now`; "" if none does."""
    found = []
    # If both runs have the hash of their images, it is compared in place of PLACE; otherwise PLACE is compared.
    free = (*FREE, PLACE if CONTENTS in old and CONTENTS in new else CONTENTS)
    for key in dict.fromkeys(key for key in (*old, *new) if key not in free):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found.append(_differences(a, b, f"{path}{key}."))
        elif a != b and VARIES not in (a, b):
            found.append(f"{path}{key}: {a!r:.60} there, {b!r:.60} now")
    return "; ".join(text for text in found if text)
