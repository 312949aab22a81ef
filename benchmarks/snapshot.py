"""Checks whether two versions of gamlens give the same results: stores those of one, compares those of the other.

Results are those of `snapshot_cases.py` and `snapshot_files.py`: maps, raw maps, scores, boxes, sums, evidence,
matches, galleries, streams, files and evaluation rows of real weights on real photos, on the CPU with one thread, where
they are the same to the last bit in every run. Every difference is printed with its size (relative to the largest value
of a tensor where that is above 1); the exit code is 1 if one is larger than allowed. Zeros of either sign are the same.
`gpu` needs neither weights nor photos: both versions run on random weights, each in a process of its own.

The version that is measured is the one that Python imports: set PYTHONPATH to its `src`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from snapshot_cases import Case, leaves, random_cases, real_cases
from snapshot_files import commands, files
from torch import Tensor

import gamlens

Leaves = dict[str, Any]
HERE = Path(__file__).resolve()
EXAMPLE = """examples:
  PYTHONPATH=OLD/src python benchmarks/snapshot.py store old.pt
  PYTHONPATH=src python benchmarks/snapshot.py compare old.pt
  PYTHONPATH=src python benchmarks/snapshot.py compare old.pt --only 'resnet50/(classify|trace)'
  python benchmarks/snapshot.py compare old.pt new.pt          two stored files, nothing is computed
  python benchmarks/snapshot.py gpu --old OLD                  OLD/src against this tree's src on CUDA, at most 1e-6"""


@dataclass(frozen=True)
class Accepted:
    """A difference that is accepted in the cases whose name matches, up to `limit`, and the reason."""

    pattern: str
    limit: float
    reason: str


ACCEPTED = (
    Accepted(
        r"^densenet201/.*n=[2-4]",
        1e-6,
        "DenseNet-201's gradients at n >= 2 are summed in another order since a joining path of its own was removed",
    ),
)


@dataclass(frozen=True)
class Difference:
    """One value that is not the same.

    `size` is the largest difference, divided by the largest old value where that is above 1; infinite where the
    difference is not one of numbers.
    """

    case: str
    leaf: str
    size: float
    text: str


# Computing


def computed(cases: Iterator[Case], only: str, *, stop: bool) -> dict[str, Leaves]:
    """Compute the cases whose name matches the pattern `only`: {case: {leaf: value}}.

    The number of GamlensWarnings is part of a result. A case that raises a GamlensError has that as its result. Any
    other exception ends the run with `stop`; otherwise it is the result of its case.
    """
    found: dict[str, Leaves] = {}
    for name, call in cases:
        if not re.search(only, name):
            continue
        if name in found:
            raise ValueError(f"There are two cases {name!r}.")
        start = time.perf_counter()
        found[name] = run(call, stop=stop)
        print(f"{time.perf_counter() - start:6.1f} s  {name}", file=sys.stderr, flush=True)
    return found


def run(call: Callable[[], Any], *, stop: bool) -> Leaves:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            result: Any = dict(leaves(call()))
        except gamlens.GamlensError:
            result = {"error": "GamlensError"}
        except Exception as error:
            if stop:
                raise
            result = {"error": f"{type(error).__name__}: {error}"}
    result["warnings"] = sum(issubclass(one.category, gamlens.GamlensWarning) for one in said)
    return result


def cases_of(args: argparse.Namespace) -> Iterator[Case]:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    return random_cases(args.device) if args.device else itertools.chain(real_cases(), files(), commands())


# Comparing


def differences(old: dict[str, Leaves], new: dict[str, Leaves]) -> Iterator[Difference]:
    """All values that differ, in the order of the cases."""
    for case in dict.fromkeys((*old, *new)):
        if case not in old or case not in new:
            yield Difference(case, "", math.inf, f"only in the {'old' if case in old else 'new'} results")
            continue
        for leaf in dict.fromkeys((*old[case], *new[case])):
            if leaf not in old[case] or leaf not in new[case]:
                where = "old" if leaf in old[case] else "new"
                yield Difference(
                    case,
                    leaf,
                    math.inf,
                    f"only in the {where} results: {old[case].get(leaf, new[case].get(leaf))!r:.120}",
                )
            elif (size := distance(old[case][leaf], new[case][leaf])) is not None:
                yield Difference(case, leaf, *size)


def distance(a: Any, b: Any) -> tuple[float, str] | None:
    """The size of the difference of two values and its description; None if they are the same."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return math.inf, f"{a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
        other = ~((a == b) | ((a != a) & (b != b)))
        if not bool(other.any()):
            return None
        gap, largest = float((a.double() - b.double()).abs()[other].max()), float(a.double().abs().max())
        text = f"{int(other.sum())} of {a.numel()} values by at most {gap:.3g}, the largest is {largest:.3g}"
        return (gap / max(1.0, largest) if math.isfinite(gap) and math.isfinite(largest) else math.inf), text
    if type(a) is type(b) and (a == b or (a != a and b != b)):
        return None
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(1.0, abs(a)), f"{a!r} became {b!r}"
    return math.inf, f"{a!r:.200} became {b!r:.200}"


def report(old: dict[str, Leaves], new: dict[str, Leaves], atol: float) -> bool:
    """Print all differences. Returns whether none is larger than allowed."""
    found, used, wrong = list(differences(old, new)), set(), 0
    for one in found:
        known = next((item for item in ACCEPTED if re.search(item.pattern, one.case) and one.size <= item.limit), None)
        fine = one.size <= atol or known is not None
        used |= {known} if known is not None and one.size > atol else set()
        wrong += not fine
        print(f"{'accepted' if fine else 'DIFFERS '} {one.size:9.3g}  {one.case}  {one.leaf}: {one.text}")
    for item in used:
        print(f"accepted up to {item.limit:g}: {item.reason}")
    values = sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for case in old.values() for leaf in case.values())
    largest = max((one.size for one in found), default=0.0)
    print(
        f"{len(old)} cases, {sum(map(len, old.values()))} entries, {values} values: {len(found)} entries differ, the "
        f"largest difference is {largest:.3g}, {wrong} are larger than allowed"
    )
    return not wrong


# Commands


def store(args: argparse.Namespace) -> bool:
    started = time.perf_counter()
    found = computed(cases_of(args), args.only, stop=True)
    torch.save(found, args.file)
    size = os.path.getsize(args.file) / 2**20
    print(f"{args.file}: {len(found)} cases of {source()}, {size:.0f} MiB, {time.perf_counter() - started:.0f} s")
    return True


def compare(args: argparse.Namespace) -> bool:
    started = time.perf_counter()
    old = torch.load(args.file, weights_only=True)
    if args.other:
        new, name = torch.load(args.other, weights_only=True), args.other
    else:
        new, name = computed(cases_of(args), args.only, stop=False), source()
    old, new = ({case: item for case, item in both.items() if re.search(args.only, case)} for both in (old, new))
    fine = report(old, new, args.atol)
    print(f"{args.file} and {name}: {time.perf_counter() - started:.0f} s")
    return fine


def gpu(args: argparse.Namespace) -> bool:
    """Let both versions store the random cases, each in its own process, and compare the results."""
    sources = {"old": source_folder(args.old), "new": source_folder(args.new)}
    with tempfile.TemporaryDirectory() as folder:
        for name, place in sources.items():
            command = [
                sys.executable,
                str(HERE),
                "store",
                f"{folder}/{name}.pt",
                "--device",
                args.device,
                "--only",
                args.only,
            ]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(place)})
        old, new = (torch.load(f"{folder}/{name}.pt", weights_only=True) for name in sources)
    return report(old, new, args.atol)


def source() -> str:
    return str(Path(gamlens.__file__).resolve().parent)


def source_folder(tree: str) -> Path:
    """The folder that PYTHONPATH must name: TREE/src, or TREE itself."""
    for place in (Path(tree) / "src", Path(tree)):
        if (place / "gamlens").is_dir():
            return place.resolve()
    raise SystemExit(f"There is no gamlens in {tree} or {tree}/src.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    storing = parts.add_parser("store", help="compute everything and store it in FILE")
    storing.add_argument("file", metavar="FILE")
    storing.set_defaults(run=store)
    comparing = parts.add_parser("compare", help="compute everything and compare it with FILE")
    comparing.add_argument("file", metavar="FILE")
    comparing.add_argument("other", metavar="OTHER", nargs="?", help="compare with this file; compute nothing")
    comparing.add_argument("--atol", type=float, default=0.0, help="largest difference allowed (%(default)g)")
    comparing.set_defaults(run=compare)
    on_gpu = parts.add_parser("gpu", help="two versions on random weights on CUDA")
    on_gpu.add_argument("--old", required=True, help="the old tree, which holds src/gamlens")
    on_gpu.add_argument("--new", default=str(HERE.parents[1]), help="the new tree (this one)")
    on_gpu.add_argument("--atol", type=float, default=1e-6, help="largest difference allowed (%(default)g)")
    on_gpu.set_defaults(run=gpu)
    for each in (storing, comparing, on_gpu):
        each.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches")
        on = "cuda" if each is on_gpu else None
        each.add_argument(
            "--device", default=on, help="random weights on this device, in place of real ones on the CPU"
        )
    args = parser.parse_args()
    sys.exit(0 if args.run(args) else 1)


if __name__ == "__main__":
    main()
