"""How the outcome of a case of `chaos.py` is judged.

A case is right if its result equals that of an undisturbed run, and refused if it ends with one error message. Anything
else (another exception, a wrong result, text of a file printed raw, lost files of the user, too much time or memory)
raises CaseFailedError.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from gamlens import Explanation, GamlensError
from gamlens.cli import app

SECONDS_PER_CASE, MIB_PER_CASE = 10.0, 400
MIB = 1 << 20
RIGHT, REFUSED = "right", "refused"
SUMMARIES = ("could not be measured", "could not be explained", "could not be read")


class CaseFailedError(Exception):
    """A case that ended neither right nor refused; the message says how."""


class OutOfTime(BaseException):
    """A case took too long."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: killed by that signal) and what it printed."""

    code: int
    out: str
    err: str


def invoke(*words: str | Path) -> Ended:
    """Run a command in this process. An exception other than an exit is a failed case."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise CaseFailedError(f"gamlens {words[0]} raised:\n{''.join(traceback.format_exception(result.exception))}")
    return Ended(result.exit_code, result.stdout, result.stderr)


def judge(ended: Ended, is_right: Callable[[], bool], *, some: bool = False) -> str:
    """Whether a command ended right or refused.

    Args:
        ended: How it ended.
        is_right: Called if it ended with exit code 0: whether its result is that of an undisturbed run.
        some: Whether exit code 1 with several errors is right as well, because some of its files are bad.
    """
    text = ended.out + ended.err
    if raw := {char for char in text if not char.isprintable() and char != "\n"}:
        raise CaseFailedError(f"it printed control characters {raw!r}: {text[-500:]!r}")
    if "Traceback" in text:
        raise CaseFailedError(f"it printed a traceback:\n{text[-3000:]}")
    errors = [line for line in ended.err.splitlines() if line.startswith("error")]
    if ended.code == 0 or (ended.code == 1 and some and any(end in ended.err for end in SUMMARIES)):
        if ended.code == 0 and errors:
            raise CaseFailedError(f"it ended with exit code 0 and printed an error: {errors[0]}")
        if is_right():
            return RIGHT
        raise CaseFailedError(f"it ended with exit code {ended.code}, and its result is wrong:\n{text[-2000:]}")
    if ended.code != 1:
        raise CaseFailedError(f"it ended with exit code {ended.code}:\n{text[-2000:]}")
    if len(errors) != 1 and not any(end in ended.err for end in SUMMARIES):
        raise CaseFailedError(f"it printed {len(errors)} errors in place of one:\n{ended.err[-2000:]}")
    return REFUSED


def call(function: Callable[[], Any], is_right: Callable[[Any], bool] = lambda result: True) -> str:
    """Whether a call of the library returned a right result, or raised a GamlensError."""
    try:
        found = function()
    except GamlensError as error:
        if not str(error).strip():
            raise CaseFailedError("the error has no message") from error
        return REFUSED
    except Exception as error:
        raise CaseFailedError(f"it raised:\n{traceback.format_exc()}") from error
    if not is_right(found):
        raise CaseFailedError("it returned a wrong result")
    return RIGHT


def is_map(found: Explanation) -> bool:
    """Whether all maps are finite and in [0,1]."""
    return bool(torch.isfinite(found.maps).all() and (found.maps >= 0).all() and (found.maps <= 1).all())


def tree(folder: Path) -> dict[str, bytes]:
    """What is below a folder: {path: contents}; of links their target, of folders nothing."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = os.fsencode(path.relative_to(folder)).decode("latin1")
        if path.is_symlink():
            found[name] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file():
            found[name] = path.read_bytes()
        elif path.is_dir():
            found[name + "/"] = b""
    return found


def result_tree(folder: Path) -> dict[str, bytes]:
    """`tree` without what may differ between two runs that did the same: the folder's name, and where a run resumed."""
    found = {name: data.replace(os.fsencode(folder), b"OUT") for name, data in tree(folder).items()}
    for name in found:
        if Path(name).name == "done.json":
            found[name] = json.dumps({**json.loads(found[name]), "resumed_at": 0}).encode()
        elif Path(name).name == ".lock":
            found[name] = b""
    return found


def difference(a: dict[str, bytes], b: dict[str, bytes]) -> str:
    """Which files differ between two trees, in words; "" if none does."""
    said = [f"{name!r} is missing" for name in a if name not in b]
    said += [f"{name!r} is there and should not be" for name in b if name not in a]
    said += [f"{name!r} differs" for name in a if name in b and a[name] != b[name]]
    return ", ".join(said[:6]) + (f" and {len(said) - 6} more" if len(said) > 6 else "")


FOREIGN = {"notes.txt": b"mine\n", ".hidden": b"\x00\x01", "mine/photo.png": b"no photo", "maps.npz.bak": b"old"}


def put_foreign(folder: Path) -> dict[str, bytes]:
    """Write files that gamlens did not make into a folder; returns {path: contents}."""
    for name, contents in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return FOREIGN


def check_foreign(folder: Path) -> None:
    for name, contents in FOREIGN.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != contents:
            raise CaseFailedError(f"the user's file {name} is lost or changed")


@contextmanager
def limits(seconds: float = SECONDS_PER_CASE, mib: float = MIB_PER_CASE) -> Iterator[None]:
    """Fail if the block takes longer than `seconds`, or needs `mib` more MiB of memory than there were before.

    A block that does not react to its alarm within three times its time ends the process, and prints where it hangs.
    """

    def late(*_: Any) -> None:
        raise OutOfTime(f"it did not end within {seconds:.0f} s:\n{''.join(traceback.format_stack(limit=8))}")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True, file=sys.__stderr__)
    hard = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)}
    for kind, most in zip(hard, (_status("VmSize") + 8 * mib, mib), strict=True):  # a bomb must not hurt the machine
        resource.setrlimit(kind, (int(most * MIB), hard[kind][1]))
    before, began = _start_peak(), time.perf_counter()
    try:
        yield
    finally:
        for kind, limit in hard.items():
            resource.setrlimit(kind, limit)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, old)
    if (grown := _peak() - before) > mib:
        raise CaseFailedError(f"it needed {grown:.0f} MiB of memory, more than {mib:.0f}")
    if time.perf_counter() - began > seconds:
        raise CaseFailedError(f"it took {time.perf_counter() - began:.0f} s")


def _start_peak() -> float:
    """Start to measure the peak memory where the system can, and return the memory in use now, in MiB."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
