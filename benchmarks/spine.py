"""Counts the Python calls of gamlens' own code in one warm classify and one warm compare.

A reader who follows a call meets every function on its way, and a caller on a small net pays for every call. Counted
are the 'call' events of `sys.setprofile` (Python 3.11: comprehensions and each step of a generator are calls, too; the
generated `__init__` of a dataclass is not, since it is in no file) in files below the package folder of the imported
gamlens, in the calling thread. A function is a file and a qualified name; a file change is two calls after one another
in different files.

The set-up: two convolutions with ReLU, a linear head on their pooled output, in eval mode, float32 on the CPU; two
images of 32 x 32 pixels as a tensor, one class for each, n=2. Each call has run twice before it is counted.

`--time` measures the same classify beside the sketch of GAM in `tools.py`, in turns, on one thread: what is left over
the sketch is what names, checks and records cost per call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image
from tools import sketch
from torch import Tensor, nn

import gamlens
from gamlens import Lens, Transform

PACKAGE = Path(gamlens.__file__).resolve().parent
SIDE = 32
TARGETS = [0, 1]
EXAMPLE = """examples:
  python benchmarks/spine.py
  python benchmarks/spine.py --calls "classify(tensor)"
  python benchmarks/spine.py --time
  PYTHONPATH=ANOTHER_TREE/src python benchmarks/spine.py      the same of another version of gamlens"""


@dataclass(frozen=True)
class Spine:
    """The calls of gamlens' own functions in the order in which they happened: (file, qualified name)."""

    way: tuple[tuple[str, str], ...]

    @property
    def calls(self) -> int:
        return len(self.way)

    @property
    def functions(self) -> int:
        """How many different functions were called."""
        return len(set(self.way))

    @property
    def files(self) -> int:
        """How many different files they are in."""
        return len({file for file, _ in self.way})

    @property
    def changes(self) -> int:
        """How often a call is in another file than the call before it."""
        return sum(one[0] != other[0] for one, other in zip(self.way, self.way[1:], strict=False))


def measure(call: Callable[[], Any]) -> Spine:
    """Record the calls of gamlens' own functions in one `call()`. Warm the call up before."""
    way: list[tuple[str, str]] = []
    below = f"{PACKAGE}/"

    def count(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(below):
            way.append((code.co_filename.removeprefix(below), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Spine(tuple(way))


def net() -> nn.Module:
    """Two convolutions with ReLU, each of which halves the resolution, and a head with two classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        ).eval()


def lens() -> Lens:
    """The lens that all measurements use."""
    return Lens(net(), transform=Transform((SIDE, SIDE)))


def images(seed: int = 0) -> Tensor:
    """Two images (2,3,32,32)."""
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def photo(folder: Path) -> Path:
    """Write a picture file of 48 x 40 pixels; returns its path."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    return folder / "photo.png"


def spines(folder: Path) -> dict[str, Spine]:
    """The calls of each measured case after warm-up. A picture file is written into `folder`."""
    look, path, x, y = lens(), photo(folder), images(), images(1)
    cases: dict[str, Callable[[], Any]] = {
        "classify(tensor)": lambda: look.classify(x, TARGETS, n=2),
        "classify(path)": lambda: look.classify(path, TARGETS[1], n=2),
        "compare(a, b)": lambda: look.compare(x, y, n=2),
    }
    for call in (*cases.values(), *cases.values()):
        call()
    return {name: measure(call) for name, call in cases.items()}


def times(repeats: int) -> list[tuple[int, str, float, float]]:
    """(n, statistic, microseconds of one classify, microseconds of one sketch) for n = 1 and 2, called in turns.

    The first tenth tells more than the median where other work shares the cores.
    """
    look, batch, rows = lens(), images(), []
    modules = dict(look.model.named_modules())
    for n in (1, 2):
        plain = sketch(look.model, [modules[name] for name in look.blocks[-n:]])
        runs = (lambda n=n: look.classify(batch, TARGETS, n=n), lambda plain=plain: plain(batch, TARGETS))
        taken: tuple[list[float], list[float]] = ([], [])
        for number in range(repeats + 20):
            for run, found in zip(runs, taken, strict=True):
                start = time.perf_counter()
                run()
                if number >= 20:
                    found.append(time.perf_counter() - start)
        ours, theirs = ([1e6 * value for value in found] for found in taken)
        rows.append((n, "median", statistics.median(ours), statistics.median(theirs)))
        rows.append((n, "first tenth", statistics.quantiles(ours, n=10)[0], statistics.quantiles(theirs, n=10)[0]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", metavar="CALL", help='list the calls of one case in order, e.g. "classify(tensor)"')
    parser.add_argument("--time", action="store_true", help="microseconds per call beside the sketch")
    parser.add_argument("--repeats", type=int, default=500, help="calls that --time takes the median of (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"gamlens {gamlens.__version__} in {PACKAGE}")
    with tempfile.TemporaryDirectory() as folder:
        found = spines(Path(folder))
    if args.calls and args.calls not in found:
        parser.error(f"--calls {args.calls!r}: give one of {', '.join(found)}")
    if args.calls:
        for number, (file, name) in enumerate(found[args.calls].way, 1):
            print(f"{number:4} {file}:{name}")
    print("\n| call | calls | functions | files | file changes |\n| --- | ---: | ---: | ---: | ---: |")
    for name, spine in found.items():
        print(f"| {name} | {spine.calls} | {spine.functions} | {spine.files} | {spine.changes} |")
    if args.time:
        print("\n| n | of the calls | classify, us | sketch, us | ratio | difference, us |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for n, which, ours, plain in times(args.repeats):
            print(f"| {n} | {which} | {ours:.0f} | {plain:.0f} | {ours / plain:.2f} | {ours - plain:.0f} |")


if __name__ == "__main__":
    main()
