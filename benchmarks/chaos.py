"""Damages files, folders, names and disks at random, kills commands, and checks what gamlens makes of it.

Each case ends right (its result is that of an undisturbed run), refused (one error message), or failed; a failed case
prints how to run it alone. Nothing but loopback is used, and everything happens in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import torch
from chaos_cases import CASES, Case
from chaos_kills import KILLS
from chaos_oracle import MIB_PER_CASE, REFUSED, RIGHT, SECONDS_PER_CASE, CaseFailedError, OutOfTime, limits
from chaos_room import Room, dice_of

KINDS: dict[str, Case] = {**KILLS, **CASES}
PROCESS_SECONDS = 120.0  # the time of a case with several processes
LINES_SHOWN = 8  # of a failure, unless it is run alone
EXAMPLE = """examples:
  python benchmarks/chaos.py --cases 5000 --kills 100 --seed 3
  python benchmarks/chaos.py --only gallery --case 17 --seed 3      one case alone"""


@dataclass
class Tally:
    """How the cases of all kinds ended: {kind: how many ended right, refused, failed, skipped}."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, ended: str) -> None:
        self.counts.setdefault(kind, Counter())[ended] += 1

    def join(self, other: Tally) -> None:
        self.counts |= other.counts  # the two have no kind in common
        self.failures += other.failures

    def table(self) -> str:
        head = f"{'kind':12} {'cases':>6} {'right':>6} {'refused':>8} {'failed':>7} {'skipped':>8}"
        columns = (RIGHT, REFUSED, "failed", "skipped")
        lines = [(kind, count.total(), *(count[name] for name in columns)) for kind, count in self.counts.items()]
        total = ("all", *(sum(column) for column in zip(*(line[1:] for line in lines), strict=True)))
        return "\n".join([head, *("{:12} {:6} {:6} {:8} {:7} {:8}".format(*line) for line in (*lines, total))])


def plan(cases: int, kills: int, only: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Which cases run, as (kind, number).

    For every five kills there is one full disk, one read-only folder and one group of processes. The kinds of cases
    that run in one process take turns.
    """
    kinds = {kind: kills if kind == "kill" else -(-kills // 5) for kind in KILLS if not only or kind in only}
    found = [(kind, number) for kind, count in kinds.items() for number in range(count)]
    turns = cycle([kind for kind in CASES if not only or kind in only] or [""])
    numbers: Counter[str] = Counter()
    for kind, _ in zip(turns, range(cases), strict=False):
        if kind:
            found.append((kind, numbers[kind]))
            numbers[kind] += 1
    return found


def run(
    room: Room,
    cases: Sequence[tuple[str, int]],
    *,
    seed: int,
    seconds: float = 3600.0,
    say: Callable[[str], None] = print,
) -> Tally:
    """Run cases until all are done or the time is over."""
    tally, end = Tally(), time.monotonic() + seconds
    for done, (kind, number) in enumerate(cases):
        if time.monotonic() > end:
            say(f"stopped after {seconds:.0f} s: {done} of {len(cases)} cases ran")
            break
        try:
            bounds = limits(PROCESS_SECONDS if kind in KILLS else SECONDS_PER_CASE, MIB_PER_CASE)
            with warnings.catch_warnings(action="ignore"), room.fresh() as here, bounds:
                ended = KINDS[kind](dice_of(seed, kind, number), room, here)
        except (Exception, OutOfTime) as error:  # noqa: BLE001 - a fault of the case itself is shown as well
            ended = "failed"
            what = str(error) if isinstance(error, CaseFailedError | OutOfTime) else traceback.format_exc()
            tally.failures.append(f"{kind} {number}: {what}")
            last = what.strip().splitlines()
            short = last if len(cases) == 1 or len(last) <= LINES_SHOWN else [last[0], "...", *last[-LINES_SHOWN:]]
            say(f"FAILED  {kind} {number}: " + "\n        ".join(short))
            say(f"        alone: python benchmarks/chaos.py --seed {seed} --only {kind} --case {number}")
        tally.add(kind, ended)
    return tally


def run_all(place: Path, cases: Sequence[tuple[str, int]], *, seed: int, seconds: float) -> Tally:
    """Run cases that fork in a process of their own, which computes nothing itself, beside the others in this one."""
    forks = [case for case in cases if case[0] in KILLS]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(run(Room(place / "forks"), forks, seed=seed, seconds=seconds), pipe)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    tally = run(Room(place / "room"), [case for case in cases if case not in forks], seed=seed, seconds=seconds)
    with os.fdopen(read, "rb") as pipe:
        tally.join(pickle.load(pipe))
    os.waitpid(pid, 0)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=5000, help="cases in this process; default 5000")
    parser.add_argument("--kills", type=int, default=100, help="killed commands; default 100")
    parser.add_argument("--seconds", type=float, default=1800.0, help="stop after this time; default 1800")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is random; default 0")
    parser.add_argument("--only", choices=KINDS, action="append", default=[], help="only this kind; may be repeated")
    parser.add_argument("--case", type=int, help="run only the case of this number, of the kind given with --only")
    options = parser.parse_args()
    if options.case is not None and len(options.only) != 1:
        parser.error("--case needs one --only KIND")
    chosen = plan(options.cases, options.kills, options.only)
    if options.case is not None:
        chosen = [(options.only[0], options.case)]
    torch.set_num_threads(1)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gamlens-chaos-") as place:
        print(f"seed {options.seed}, {len(chosen)} cases in {place}", flush=True)
        tally = run_all(Path(place), chosen, seed=options.seed, seconds=options.seconds)
    print(tally.table())
    print(f"{time.perf_counter() - start:.0f} s")
    if tally.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
