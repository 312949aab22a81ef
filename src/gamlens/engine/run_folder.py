"""The folder of a run: its configuration, the results of finished chunks, and a lock for the process that writes."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from gamlens.engine.store import Store
from gamlens.errors import GamlensError
from gamlens.files import no_folder

RUN, DONE, PARTS_FOLDER, LOCK = "run.json", "done.json", "parts", ".lock"
STALE = 300.0  # seconds after which the lock of a remote folder expires
FREE = ("command",)  # keys of run.json that may differ when a run is continued
# Two more keys of run.json: where the images are, and a hash of them. The place may differ if the hashes are equal.
PLACE, CONTENTS = "root", "images_sha256"


class RunFolder:
    """A run folder with run.json (the configuration), parts/ (one file per finished chunk) and done.json (the summary).

    As a context manager it locks the folder, so that one process at a time works in it. Entering a folder whose parts
    were made with another configuration is an error.

    Args:
        place: A folder, or a URI such as s3://bucket/run.
        about: The configuration of the run, which must be JSON.
        suffix: The suffix of the files in parts/.
        fresh: Whether to delete the run that the folder holds.
    """

    def __init__(self, place: str | Path, about: Mapping[str, Any], *, suffix: str, fresh: bool = False) -> None:
        self.store, self.about, self.suffix = Store(place), dict(about), suffix
        self._fresh = fresh
        self._lock: IO[str] | None = None
        self._beat = 0.0

    @classmethod
    def finished(cls, place: str | Path, *, make: str) -> RunFolder:
        """Open a finished run for reading. `make` is the command that makes such a run, for the error message."""
        store = Store(place)
        about, parts = _json(store, RUN), store.names(PARTS_FOLDER)
        if about is None:
            raise GamlensError(f"{str(place)!r} is not a run: {RUN} is missing. Make one: {make}.")
        if _json(store, DONE) is None:
            raise GamlensError(
                f"The run in {str(place)!r} is not finished: {len(parts)} of {about.get('chunks', '?')} parts are "
                "there. Run the command that made it again: it continues where it stopped."
            )
        return cls(place, about, suffix=Path(parts[0]).suffix if parts else "")

    def __enter__(self) -> RunFolder:
        self._take_lock()
        try:
            if self._fresh:
                self._clear()
            known, parts = _json(self.store, RUN), self.store.names(PARTS_FOLDER)
            if known is None:
                if parts:
                    raise GamlensError(
                        f"{self.store.place!r} has parts of a run but no {RUN}: start over with --fresh."
                    )
                self._describe(self.about)
            elif (differing := _differences(known, self.about)) and known.keys() == self.about.keys() and not parts:
                # Another configuration, but nothing was measured with it yet: replace it.
                self.store.remove(DONE)
                self._describe(self.about)
            elif not differing and known.get(PLACE) != self.about.get(PLACE):
                # The same run, whose images were moved.
                self._describe({**known, PLACE: self.about[PLACE]})
            elif differing:
                raise GamlensError(
                    f"{self.store.place!r} holds another run: {differing}. Nothing was changed: "
                    "choose another folder, or replace that run with --fresh."
                )
            self.store.sweep(PARTS_FOLDER)
        except BaseException:
            self._free_lock()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._free_lock()

    def written(self) -> set[int]:
        """The numbers of the finished chunks."""
        return {int(Path(name).stem) for name in self.store.names(PARTS_FOLDER) if Path(name).stem.isdigit()}

    def write(self, chunk: int, contents: bytes) -> None:
        self.store.write(part_name(chunk, self.suffix), contents)
        self.beat()

    def part(self, chunk: int) -> bytes:
        """The contents of one finished chunk."""
        contents = self.store.read(part_name(chunk, self.suffix))
        if contents is None:
            raise GamlensError(f"Part {chunk} of {self.store.place!r} is missing: run the command again with --fresh.")
        return contents

    def parts(self) -> Iterator[bytes]:
        """The contents of the finished chunks, in order."""
        for name in self.store.names(PARTS_FOLDER):
            contents = self.store.read(f"{PARTS_FOLDER}/{name}")
            if contents is not None:
                yield contents

    def summary(self) -> dict[str, Any] | None:
        """The summary that `finish` wrote, or None if the run is not finished."""
        return _json(self.store, DONE)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.store.write(DONE, json.dumps(dict(summary), indent=2).encode())

    def beat(self) -> None:
        """Renew the lock of a remote folder, which expires after STALE seconds. Local locks do not expire."""
        if self.store.local is None and time.time() - self._beat > STALE / 5:
            self._beat = time.time()
            self.store.write(LOCK, json.dumps({**_self(), "at": self._beat}).encode())

    def _describe(self, about: Mapping[str, Any]) -> None:
        self.store.write(RUN, json.dumps(about, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))

    def _clear(self) -> None:
        for name in (DONE, RUN, *(f"{PARTS_FOLDER}/{part}" for part in self.store.names(PARTS_FOLDER))):
            self.store.remove(name)

    def _take_lock(self) -> None:
        if self.store.local is None:
            held = _json(self.store, LOCK)
            if held and held.get("at", 0) > time.time() - STALE:
                raise GamlensError(_busy(self.store.place, held))
            self.beat()
            return
        import fcntl

        try:
            self.store.local.mkdir(parents=True, exist_ok=True)
            file = open(self.store.local / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - stays open during the run
        except OSError as error:
            raise no_folder(Path(self.store.place), error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                file.close()
                raise GamlensError(f"Cannot lock {self.store.place!r}: {error.strerror or error}.") from error
            file.seek(0)
            held = _parsed(file.read())
            file.close()
            raise GamlensError(_busy(self.store.place, held or {})) from error
        file.truncate(0)
        file.write(json.dumps(_self()))
        file.flush()
        self._lock = file

    def _free_lock(self) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None
        elif self.store.local is None:
            self.store.remove(LOCK)


def part_name(chunk: int, suffix: str) -> str:
    """The name of a chunk's file, relative to the run folder."""
    return f"{PARTS_FOLDER}/{chunk:08d}{suffix}"


def _self() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}


def _busy(place: str, held: Mapping[str, Any]) -> str:
    who = f" (process {held['pid']} on {held['host']})" if "pid" in held and "host" in held else ""
    return f"Another process{who} is working in {place!r}: wait for it to end, or choose another folder."


def _json(store: Store, name: str) -> dict[str, Any] | None:
    contents = store.read(name)
    if contents is None:
        return None
    found = _parsed(contents.decode("utf-8", errors="replace"))
    if found is None:
        raise GamlensError(f"{name!r} in {store.place!r} cannot be read: it is not JSON. Start over with --fresh.")
    return found


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> str:
    """The settings that differ, such as `protocol.n: [1] there, [1, 2] now`; "" if none does."""
    found = []
    # If both runs have the hash of their images, it is compared in place of PLACE; otherwise PLACE is compared.
    free = (*FREE, PLACE if CONTENTS in old and CONTENTS in new else CONTENTS)
    for key in dict.fromkeys(key for key in (*old, *new) if key not in free):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found.append(_differences(a, b, f"{path}{key}."))
        elif a != b:
            found.append(f"{path}{key}: {a!r:.60} there, {b!r:.60} now")
    return "; ".join(text for text in found if text)
