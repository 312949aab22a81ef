"""Measures how the cost of GAM grows with blocks, batch size, resolution and targets per image.

Costs are relative to a plain no-grad forward of the same batch and size in the same process: medians of the repeats
after warm-up, with calls taking turns in another order each round. The floor is computed from FLOPs at batch size 1:
the forward, and the backward of what follows the earliest block. Peak memory is counted beyond the model and its input,
as in cost.py. Weights are random. Rows are merged into one JSON file; `--plot` draws it and needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cost import hardware, peak_bytes
from gpu import about, clock, plain
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models

from gamlens import Lens
from gamlens.render import PALETTE

BATCHES = {"cuda": (1, 4, 16, 64, 256), "cpu": (1, 2, 4, 8)}
SIDES = {"cuda": (128, 224, 320, 448, 640), "cpu": (96, 160, 224, 320)}
TARGETS = (1, 2, 5, 10, 20)
USUAL = {"cuda": (64, 16), "cpu": (2, 1)}  # images per batch: for the axes blocks and resolution, and for targets
SIDE, NUMBERS = 224, (1, 2)
KEY = ("model", "kind", "axis", "x", "n")
AXES = {
    "n": "blocks read, n",
    "batch": "images in the batch",
    "side": "height and width of the input, pixels",
    "targets": "targets an image",
}
TITLES = {"ratio": "Time of GAM, a plain forward = 1", "peak_ratio": "Peak memory of GAM, a plain forward = 1"}
EXAMPLE = """examples:
  python benchmarks/growth.py --json growth.json
  python benchmarks/growth.py --device cpu --json growth.json --axes batch targets
  python benchmarks/growth.py --plot growth.json --out docs/images"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One step of one axis: the input, and the numbers of blocks that are timed with it."""

    axis: str
    batch: int
    side: int
    targets: int
    numbers: tuple[int, ...]

    @property
    def x(self) -> int:
        return int(getattr(self, self.axis))


def cases(axes: list[str], kind: str, blocks: int) -> Iterator[Case]:
    usual, few = USUAL[kind]
    numbers = tuple(n for n in NUMBERS if n <= blocks)
    for axis in axes:
        if axis == "n":
            yield Case("n", usual, SIDE, 1, tuple(range(1, blocks + 1)))
        elif axis == "batch":
            yield from (Case("batch", size, SIDE, 1, numbers) for size in BATCHES[kind])
        elif axis == "side":
            yield from (Case("side", usual, side, 1, numbers) for side in SIDES[kind])
        else:
            yield from (Case("targets", few, SIDE, count, numbers) for count in TARGETS)


def ours(lens: Lens, batch: Tensor, targets: int, n: int) -> Any:
    """The measured call. With one target, each image has a class of its own."""
    wanted: Any = [[(image + turn) % 1000 for turn in range(targets)] for image in range(len(batch))]
    return lens.classify(batch, wanted if targets > 1 else [several[0] for several in wanted], n=n)


def operations(call: Callable[[], Any]) -> int:
    """The FLOPs of a call. Fused attention is switched off, because torch does not count it in inference."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter:
            call()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return int(counter.get_total_flops())


def measure(lens: Lens, case: Case, repeats: int, device: torch.device) -> Iterator[Row]:
    batch = torch.randn(case.batch, 3, case.side, case.side, device=device)
    base = plain(lens.model, batch, None)
    calls = {0: base, **{n: partial(ours, lens, batch, case.targets, n) for n in case.numbers}}
    times = turns(calls, repeats, str(device))
    one = operations(plain(lens.model, batch[:1], None))
    held = peak_bytes(base, device)
    middle = statistics.median(times[0])
    for n in case.numbers:
        taken = [value / middle for value in times[n]]
        low, _, high = statistics.quantiles(taken, n=4)
        yield {
            "axis": case.axis, "x": n if case.axis == "n" else case.x, "n": n, "batch": case.batch, "side": case.side,
            "targets": case.targets, "ratio": statistics.median(taken), "low": low, "high": high, "repeats": repeats,
            "plain_ms": 1000 * middle, "flops": operations(partial(ours, lens, batch[:1], case.targets, n)) / one,
            "peak_ratio": peak_bytes(calls[n], device) / held,
        }  # fmt: skip


def turns(calls: dict[int, Callable[[], Any]], repeats: int, device: str) -> dict[int, list[float]]:
    """Time each call in `repeats` rounds after two rounds of warm-up; every round has another order."""
    times: dict[int, list[float]] = {number: [] for number in calls}
    order = random.Random(0)
    for turn in range(-2, repeats):
        for number in order.sample(list(calls), len(calls)):
            taken = clock(calls[number], device)
            times[number] += [taken] if turn >= 0 else []
    return times


def run(name: str, options: argparse.Namespace, rows: list[Row], until: float) -> list[Row]:
    """Measure one model. Each case is merged into `rows` and written to the file as soon as it is done."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    lens = Lens(models.get_model(name).eval().to(device))
    fixed = {"model": name, "kind": device.type, "device": about(options.device), "hardware": hardware(options.device)}
    fixed["threads"] = torch.get_num_threads()
    for case in cases(options.axes, device.type, len(lens.blocks)):
        if time.perf_counter() > until:
            print(f"  no time left for {name}, {case}: run it again with --axes {case.axis}", file=sys.stderr)
            continue
        try:
            made = [fixed | row for row in measure(lens, case, options.repeats, device)]
        except (RuntimeError, AssertionError, ValueError) as error:
            print(f"  {name}, {case} left out: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        keys = {tuple(row[key] for key in KEY) for row in made}
        rows = [row for row in rows if tuple(row[key] for key in KEY) not in keys] + made
        for row in made:
            spread = f"{row['low']:.2f} to {row['high']:.2f}"
            print(f"  {name} {case.axis} {row['x']}, n={row['n']}: {row['ratio']:.2f} ({spread}), "
                  f"floor {row['flops']:.3f}, memory {row['peak_ratio']:.2f}", flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Draw one picture per model, device and measure, with one panel per axis."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for model, kind in dict.fromkeys((row["model"], row["kind"]) for row in rows):
        mine = [row for row in rows if (row["model"], row["kind"]) == (model, kind)]
        for measured, word in (("ratio", "time"), ("peak_ratio", "memory")):
            files.append(folder / f"growth-{word}-{model}-{kind}.png")
            picture(mine, measured, files[-1])
    return files


def picture(rows: list[Row], measured: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 11, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False}
    )
    axes = [axis for axis in AXES if any(row["axis"] == axis for row in rows)]
    sheet, places = pyplot.subplots(2, 2, figsize=(9, 7), squeeze=False)
    for axis, place in zip(axes, places.flat, strict=False):
        panel(place, [row for row in rows if row["axis"] == axis], axis, measured)
    for place in list(places.flat)[len(axes) :]:
        place.set_visible(False)
    found = {}
    for place in places.flat:
        found |= dict(zip(*reversed(place.get_legend_handles_labels()), strict=True))
    order = sorted(found, key=lambda label: (not label.startswith("n ="), label))
    head = f"{TITLES[measured]}\n{rows[0]['model']}, {rows[0]['hardware']}"
    if rows[0]["kind"] == "cpu":
        head += f", {rows[0]['threads']} threads"
    sheet.suptitle(head, fontsize=12)
    sheet.legend([found[label] for label in order], order, loc="lower center", ncols=3, frameon=False)
    sheet.tight_layout(rect=(0, 0.02 + 0.03 * -(-len(order) // 3), 1, 1))
    sheet.savefig(file, dpi=180)
    pyplot.close(sheet)


def panel(place: Any, rows: list[Row], axis: str, measured: str) -> None:
    """Draw one axis: a line with quartiles for every n, and the floor as a dashed line."""
    steps = sorted({row["x"] for row in rows})
    top = 1.0
    for number, n in enumerate(NUMBERS if axis != "n" else (0,)):
        line = sorted((row for row in rows if axis == "n" or row["n"] == n), key=lambda row: row["x"])
        if not line:
            continue
        color = "#44444c" if axis == "n" else "#{:02x}{:02x}{:02x}".format(*PALETTE[1 + number])
        xs, values = [row["x"] for row in line], [row[measured] for row in line]
        width = 3.2 if n == 1 else 1.8  # so that both lines are visible where they meet
        label = "n as on the axis" if axis == "n" else f"n = {n}"
        place.plot(xs, values, color=color, marker="o", markersize=3 + width, linewidth=width, label=label, zorder=3)
        top = max(top, *values)
        if measured == "ratio":
            floor = [row["flops"] for row in line]
            top = max(top, *floor)
            place.plot(xs, floor, color=color, linestyle=(0, (4, 3)), linewidth=1.5, zorder=2)
            ends = [row["low"] for row in line], [row["high"] for row in line]
            place.fill_between(xs, *ends, color=color, alpha=0.15, linewidth=0)
    if measured == "ratio":
        place.plot([], [], color="#77777f", linestyle=(0, (4, 3)), linewidth=1.5, label="floor, by FLOPs")
        place.fill_between([], [], [], color="#77777f", alpha=0.25, linewidth=0, label="quartiles of the repeats")
    if axis == "batch":
        place.set_xscale("log", base=2)
    place.set_xticks(steps, [str(step) for step in steps])
    place.minorticks_off()
    place.set_ylim(0, 1.12 * top)
    place.grid(axis="y", color="#e2e2e6", linewidth=0.8)
    place.set_axisbelow(True)
    place.set_xlabel(AXES[axis])
    place.set_ylabel("x plain forward")
    place.set_title(held(rows[0], axis), loc="left", color="#54545c")


def held(row: Row, axis: str) -> str:
    """The settings that are constant along an axis, as text."""
    words = {"batch": f"batch {row['batch']}", "side": f"{row['side']} px", "targets": "1 target an image"}
    return ", ".join(word for name, word in words.items() if name != axis)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["resnet50"], help="torchvision names (default resnet50)")
    parser.add_argument("--axes", nargs="+", default=list(AXES), choices=list(AXES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="rows are merged into this file")
    parser.add_argument("--seconds", type=float, default=540, help="start no further case after this many seconds")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows of this file instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where pictures go (default docs/images)")
    options = parser.parse_args()
    if options.plot:
        print(*draw(json.loads(options.plot.read_text()), options.out), sep="\n")
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    rows: list[Row] = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    until = time.perf_counter() + options.seconds
    for name in options.models:
        rows = run(name, options, rows, until)


if __name__ == "__main__":
    main()
