"""The cases of `chaos.py` that need processes: kills, a full disk, a read-only folder, several commands at once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from chaos_forks import BIND, READ_ONLY, REMOUNT, Fork, Trap, Undisturbed, commands, in_namespace, mount
from chaos_oracle import REFUSED, RIGHT, CaseFailedError, check_foreign, judge, put_foreign
from chaos_room import Room


def kill_case(dice: random.Random, room: Room, here: Path) -> str:
    """A command that is killed one to three times, and then ends as if nothing had happened."""
    name = dice.choice(list(commands(room)))
    whole, out = Undisturbed.of(room, name), here / "out"
    out.mkdir()
    put_foreign(out)
    lines = commands(room)[name](out)
    if dice.random() < 0.2:
        whole.check(Fork(room, lines).wait(), out)  # now it is done a second time, and that is killed
    for _ in range(dice.choice((1, 1, 2, 3))):
        trap = Trap(out, dice.randint(1, whole.changes), dice.choice((0.0, dice.random() * 0.003 + 1e-6)))
        ended = Fork(room, lines, trap=trap).wait()
        if ended.code > 0:
            raise CaseFailedError(f"{name} ended with {ended.code} in place of being killed: {ended.err}")
        check_foreign(out)
    try:
        return whole.check(Fork(room, lines).wait(), out)
    except CaseFailedError as error:
        when = f"change {trap.at} of {whole.changes} and {trap.delay * 1000:.1f} ms"
        raise CaseFailedError(f"{name}, killed at {when}: {error}") from error


def disk_case(dice: random.Random, room: Room, here: Path) -> str:
    """A disk that becomes full: one error; then there is room, and the same command ends as if nothing had happened."""
    name = dice.choice(list(commands(room)))
    whole, out = Undisturbed.of(room, name), here / "out"
    size = sum(map(len, whole.tree.values()))
    out.mkdir()

    def inside() -> str:
        limit = None
        room_left = dice.randrange(size // 20, size)
        mounted = mount("tmpfs", out, f"size={room_left // 4096 * 4096 + 32768}")
        if not mounted:  # no file may be longer than this
            limit = dice.randrange(1, max(map(len, whole.tree.values())))
        put_foreign(out)
        lines = commands(room)[name](out)
        ended = Fork(room, lines, limit=limit).wait()
        check_foreign(out)
        if ended.code == 0:
            return whole.check(ended, out)
        judge(ended, lambda: False, some=name == "classify")
        if mounted:
            mount("tmpfs", out, "size=64m", REMOUNT)
        whole.check(Fork(room, lines).wait(), out)
        return REFUSED

    try:
        return in_namespace(inside)
    except CaseFailedError as error:
        raise CaseFailedError(f"{name} on a full disk: {error}") from error


def readonly_case(dice: random.Random, room: Room, here: Path) -> str:
    """A folder of results that nobody may write to: one error, and nothing changes."""
    name = dice.choice(list(commands(room)))
    out = here / "out"
    out.mkdir()
    put_foreign(out)

    def inside() -> str:
        if not (mount(str(out), out, "", BIND) and mount("", out, "", BIND | REMOUNT | READ_ONLY)):
            if os.geteuid() == 0:
                return "skipped"  # permissions do not bind root
            out.chmod(0o555)
        ended = Fork(room, commands(room)[name](out)).wait()
        check_foreign(out)
        if judge(ended, lambda: False, some=name == "classify") != REFUSED:
            raise CaseFailedError(f"it ended with {ended.code}")
        return REFUSED

    try:
        return in_namespace(inside)
    except CaseFailedError as error:
        raise CaseFailedError(f"{name} in a read-only folder: {error}") from error
    finally:
        out.chmod(0o755)


def together_case(dice: random.Random, room: Room, here: Path) -> str:
    """Two or three processes of one command on one folder: each is right or refused, and the folder is right."""
    name = dice.choice(list(commands(room)))
    whole, out = Undisturbed.of(room, name), here / "out"
    out.mkdir()
    put_foreign(out)
    lines = commands(room)[name](out)
    forks = []
    for _ in range(dice.choice((2, 2, 3))):
        forks.append(Fork(room, lines))
        time.sleep(dice.choice((0.0, dice.random() * 0.2)))
    ended = [fork.wait() for fork in forks]
    check_foreign(out)
    verdicts = [judge(one, lambda: True) for one in ended]
    if RIGHT not in verdicts:
        raise CaseFailedError(f"no process of {name} ended right: {[one.err for one in ended]}")
    try:
        whole.check(Fork(room, lines).wait() if name == "reproduce" else ended[verdicts.index(RIGHT)], out)
    except CaseFailedError as error:
        raise CaseFailedError(f"{len(forks)} processes of {name}: {error}") from error
    return RIGHT


KILLS: dict[str, Callable[[random.Random, Room, Path], str]] = {
    "kill": kill_case,
    "disk": disk_case,
    "readonly": readonly_case,
    "together": together_case,
}
