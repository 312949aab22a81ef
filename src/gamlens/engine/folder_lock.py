"""The lock of a run folder: one process at a time works in it.

On this machine the kernel holds the lock (flock) and frees it when the process ends, however it ends. A remote file
system has no such lock. There, the lock is a file that its owner rewrites every STALE / 5 seconds, and it expires when
it was not rewritten for STALE seconds:

- Two processes that take it at once both write the file. Each then waits SETTLE seconds and reads who wrote last.
- How old the lock is, is read from the clock of the file system: clocks of machines differ.
- The lock of a process of this machine that no longer lives is taken at once.
- Before every part, the owner reads the file. If another process took the lock (because this machine slept, or the
  network was away), it stops and writes nothing more.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from gamlens.engine.json_objects import parse_object
from gamlens.engine.store import Store
from gamlens.errors import GamlensError
from gamlens.files import no_folder

LOCK = ".lock"
STALE = 300.0  # seconds after which the lock of a remote folder expires
SETTLE = 0.3  # seconds between writing the lock of a remote folder and reading who wrote last


class FolderLock:
    """The lock of the folder of a store. `token` identifies the owner, also to the other processes of its run."""

    def __init__(self, store: Store) -> None:
        self.store, self.token = store, uuid.uuid4().hex
        self._file: IO[str] | None = None
        self._since = 0.0
        self._ended, self._writing = threading.Event(), threading.Lock()
        self.taken = False

    def take(self) -> None:
        """Take the lock, or raise a GamlensError that says who holds it."""
        self._since, self._ended = time.time(), threading.Event()
        if self.store.local is None:
            self._take_remote()
        else:
            self._take_local(self.store.local)
        self.taken = True

    def free(self) -> None:
        """Free the lock. The lock of another process, which took it over, is left alone."""
        self.taken = False
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(0)
            self._file.close()
            self._file = None
        elif self.store.local is None:
            with self._writing:  # the thread that renews the lock must not write it again
                self._ended.set()
                if held_token(self.store) == self.token:
                    self.store.remove(LOCK)

    def _take_local(self, folder: Path) -> None:
        import fcntl

        while self._file is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - stays open during the run
            except OSError as error:
                raise self._unwritable(folder, error) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _same(file, folder / LOCK):  # the owner deleted the folder after `open`: open it again
                    file.close()
                    continue
                file.truncate(0)
                file.write(self._contents())
                file.flush()
            except OSError as error:
                held = _held(self.store)
                with suppress(OSError):
                    file.close()
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise GamlensError(f"Cannot lock {self.store.place!r}: {error.strerror or error}.") from error
                raise GamlensError(f"{_busy(self.store.place, held or {})}.") from error
            self._file = file

    def _unwritable(self, folder: Path, error: OSError) -> GamlensError:
        if not folder.is_dir():
            return no_folder(folder, error)
        return GamlensError(
            f"Cannot write in the run folder {self.store.place!r}: {error.strerror or error}. Give a folder that can "
            "be written to; to read the results of a finished run, use gamlens table or gamlens report."
        )

    def _take_remote(self) -> None:
        begin = time.monotonic()
        held = _held(self.store)
        if held is not None and not _is_gone(held):
            age = self.store.age(LOCK)
            left = STALE - (time.time() - _number(held, "at") if age is None else max(0.0, age))
            if left > 0:
                raise GamlensError(
                    f"{_busy(self.store.place, held)}. If that process was killed, the folder is free in "
                    f"{left:.0f} s, at {_clock(time.time() + left)}."
                )
        self._renew()
        time.sleep(max(SETTLE, 2 * (time.monotonic() - begin)))
        if held_token(self.store) != self.token:
            raise GamlensError(f"{_busy(self.store.place, _held(self.store) or {})}.")
        threading.Thread(target=self._keep, args=(self._ended,), daemon=True, name="lock of a run folder").start()

    def _keep(self, ended: threading.Event) -> None:
        """Rewrite the lock until it is freed. A failure is tried again later; `check_lock` finds that it was lost."""
        while not ended.wait(STALE / 5):
            with self._writing, suppress(GamlensError):
                if ended.is_set() or held_token(self.store) != self.token:
                    return
                self._renew()

    def _renew(self) -> None:
        self.store.write(LOCK, self._contents().encode())

    def _contents(self) -> str:
        return json.dumps({**_self(), "token": self.token, "since": self._since, "at": time.time()})


def check_lock(store: Store, token: str) -> None:
    """Raise a GamlensError if the lock of a folder is no longer that of `token`: what is not ours is not written to."""
    held = _held(store)
    if held is None:
        raise GamlensError(
            f"The lock of the run folder {store.place!r} is gone: the folder was deleted, or this machine does not "
            "share it. Nothing more is written; give the same command again to continue."
        )
    if held.get("token") != token:
        raise GamlensError(
            f"This process lost its lock. {_busy(store.place, held)}. Nothing more is written here; finished parts are "
            "kept."
        )


def held_token(store: Store) -> str | None:
    """The token of the process that holds the lock of a folder."""
    token = (_held(store) or {}).get("token")
    return token if isinstance(token, str) else None


def _held(store: Store) -> dict[str, Any] | None:
    """What the lock says about its owner; {} if it cannot be understood, None if there is no lock."""
    contents = store.read(LOCK)
    if contents is None:
        return None
    found = parse_object(contents)
    return {} if isinstance(found, str) else found


def _self() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "machine": _machine(), "started": _started(pid)}


def _machine() -> str:
    """The start of this machine and the space in which process ids are unique; "" if it does not tell (not Linux).

    Containers of one machine share its start, but not the space of process ids.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process of this machine started, in ticks since the machine did; "" if it does not live."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else others[18]


def _is_gone(held: Mapping[str, Any]) -> bool:
    """Whether the owner of a lock is a process of this machine that no longer lives. False if that cannot be known."""
    host, machine, pid, started = (held.get(name) for name in ("host", "machine", "pid", "started"))
    ours = host == socket.gethostname() and machine == _machine() != ""
    return ours and isinstance(pid, int) and bool(started) and _started(pid) != started


def _busy(place: str, held: Mapping[str, Any]) -> str:
    since = f", since {_clock(_number(held, 'since'))}" if _number(held, "since") else ""
    who = f" (process {held['pid']} on {held['host']}{since})" if "pid" in held and "host" in held else ""
    return f"Another process{who} is working in {place!r}: wait for it to end, or choose another folder"


def _number(held: Mapping[str, Any], name: str) -> float:
    value = held.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e11 else 0.0


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _same(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
