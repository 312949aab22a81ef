"""Commands in forks of this process, which can be killed at a chosen change of a file, or have mounts of their own.

This process has imported everything and computed nothing: torch's autograd cannot be used in a fork of a process that
used it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
from chaos_oracle import (
    REFUSED,
    RIGHT,
    SECONDS_PER_CASE,
    CaseFailedError,
    Ended,
    difference,
    judge,
    put_foreign,
    result_tree,
)
from chaos_room import Room

from gamlens.cli import app

WRITES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
    "shutil.copyfile",
    "os.link",
}
NEW_NAMESPACE, PRIVATE, BIND, REMOUNT, READ_ONLY = 0x20000, 0x44000, 0x1000, 0x20, 0x1
Words = list[str]


def commands(room: Room) -> dict[str, Callable[[Path], list[Words]]]:
    """Every long command, by name: a function of the folder of its results that gives one or more commands."""
    table = ["--data", "table", "--root", str(room.table), *room.model]
    runs = {kind: lambda out, kind=kind: room.evaluate(out / kind, kind) for kind in ("localization", "objective")}
    return {
        "classify": lambda out: [["classify", str(room.photos), *room.model, "--out", str(out)]],
        "evaluate": lambda out: [room.evaluate(out)],
        "sanity": lambda out: [
            ["sanity", "parameters", str(room.photos), *room.model, "--methods", "gam", "--n", "1", "--out", str(out)]
        ],
        "ablate": lambda out: [["ablate", *table, "--methods", "gam", "--fusions", "mean", "--out", str(out)]],
        "search": lambda out: [
            ["search", room.photo, "--in", str(room.photos), *room.model, "--maps", "--top", "2",
             "--save-gallery", str(out / "gallery.npz"), "--out", str(out)]
        ],
        "compare": lambda out: [
            ["compare", room.photo, str(room.photos / "01.png"), *room.model, "--out", str(out)]
        ],
        "figure": lambda out: [
            ["figure", "cosine", room.photo, str(room.photos / "01.png"), *room.model, "--out", str(out / "figure.png")]
        ],
        "subset": lambda out: [["subset", "pairs", *table[:4], "--out", str(out / "pairs.json")]],
        "reproduce": lambda out: [
            *(run(out) for run in runs.values()),
            ["table", *(str(out / kind) for kind in runs), "--out", str(out / "tables")],
            ["report", *(str(out / kind) for kind in runs), "--out", str(out / "report.html")],
        ],
    }  # fmt: skip


class Trap:
    """Kills its process at the n-th change that it makes below a folder, or a moment after it; counts changes else."""

    def __init__(self, folder: Path, at: int, delay: float) -> None:
        self.folder, self.at, self.delay, self.seen = os.fsdecode(folder), at, delay, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            writes = isinstance(arguments[1], str) and not {*arguments[1]}.isdisjoint("wax+")
        else:
            writes = event in WRITES
        if not writes or not any(str(one).startswith(self.folder) for one in arguments if isinstance(one, str | Path)):
            return
        self.seen += 1
        if self.seen == self.at:
            if self.delay:
                signal.setitimer(signal.ITIMER_REAL, self.delay)  # nobody handles SIGALRM, which ends the process then
            else:
                os.kill(os.getpid(), signal.SIGKILL)


class Fork:
    """Commands that run in a fork of this process, one after another."""

    def __init__(
        self, room: Room, lines: Sequence[Words], *, trap: Trap | None = None, limit: int | None = None
    ) -> None:
        room.forks += 1
        self.files = [room.place / f"fork-{room.forks}.{kind}" for kind in ("out", "err", "seen")]
        self.pid = os.fork()
        if self.pid == 0:
            self._run(lines, trap, limit)

    def _run(self, lines: Sequence[Words], trap: Trap | None, limit: int | None) -> NoReturn:
        code = 70
        try:
            for number, file in enumerate(self.files[:2], start=1):
                os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            torch.set_num_threads(1)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            if trap is not None:
                sys.addaudithook(trap)
            code = _codes(lines)
            if trap is not None:
                self.files[2].write_text(json.dumps([trap.seen, *sys.modules]))
        except BaseException:  # noqa: BLE001 - the parent reads what was printed
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 3 * SECONDS_PER_CASE) -> Ended:
        """Wait for the end; after `seconds` the process is killed, and the case failed."""
        end = time.monotonic() + seconds
        while (done := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise CaseFailedError(
                    f"a command did not end within {seconds:.0f} s: {self.files[1].read_text()[-500:]}"
                )
            time.sleep(0.002)
        out, err = (file.read_text(errors="backslashreplace") if file.exists() else "" for file in self.files[:2])
        return Ended(os.waitstatus_to_exitcode(done[1]), out, err)


def _codes(lines: Sequence[Words]) -> int:
    """Run commands; returns the exit code of the first that fails, or 0."""
    for words in lines:
        try:
            app(words)
        except SystemExit as end:
            if end.code:
                return int(end.code)
    return 0


class Undisturbed:
    """What commands do if nobody disturbs them: what they print and write, and how many changes they make."""

    def __init__(self, room: Room, name: str) -> None:
        out = room.place / f"whole-{name}" / "out"
        out.mkdir(parents=True)
        put_foreign(out)
        fork = Fork(room, commands(room)[name](out), trap=Trap(out, 0, 0))
        self.ended = fork.wait()
        if self.ended.code:
            raise CaseFailedError(f"an undisturbed {name} ended with {self.ended.code}: {self.ended.err}")
        self.changes, *modules = json.loads(fork.files[2].read_text())
        for module in modules:  # what this fork had to import, later ones need not
            with suppress(Exception):
                import_module(module)
        self.text, self.tree = self.ended.out.replace(str(out), "OUT"), result_tree(out)

    @classmethod
    def of(cls, room: Room, name: str) -> Undisturbed:
        """The undisturbed commands of this name, which run once per room."""
        if name not in room.undisturbed:
            room.undisturbed[name] = cls(room, name)
        return room.undisturbed[name]

    def check(self, ended: Ended, out: Path) -> str:
        """Check that commands ended right, with the same files and the same text."""
        ended = Ended(ended.code, ended.out.replace(str(out), "OUT"), ended.err)
        if judge(ended, lambda: True) == REFUSED:
            raise CaseFailedError(f"it was refused: {ended.err}")
        if said := difference(self.tree, result_tree(out)):
            raise CaseFailedError(said)
        if ended.out != self.text:
            raise CaseFailedError(f"it printed\n{ended.out}\nin place of\n{self.text}")
        return RIGHT


def in_namespace(function: Callable[[], str]) -> str:
    """Call a function in a fork with mounts of its own, where the system allows that; they are gone afterwards."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(NEW_NAMESPACE) == 0:
                libc.mount(b"none", b"/", None, PRIVATE, None)
            said = {"ended": function()}
        except CaseFailedError as error:
            said = {"failed": str(error)}
        except BaseException:  # noqa: BLE001 - the parent raises it
            said = {"failed": traceback.format_exc()}
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = json.loads(pipe.read() or '{"failed": "the process of the case died"}')
    os.waitpid(pid, 0)
    if "failed" in said:
        raise CaseFailedError(said["failed"])
    return str(said["ended"])


def mount(source: str, place: Path, options: str, flags: int = 0) -> bool:
    """Mount a file system in a namespace of our own; whether it was allowed."""
    kind = None if flags & BIND else b"tmpfs"
    return ctypes.CDLL(None).mount(source.encode(), os.fsencode(place), kind, flags, options.encode() or None) == 0
