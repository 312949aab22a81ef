"""Measures what an evaluation costs, compared with its floor: the same number of plain no-grad forwards.

Localization (box `all`, n = 1, 2, three methods and the controls) and the objective evaluation (ADP and PIC) of real
images; then the peak memory of whole runs of 200 and 1,000 images, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import real
import torch
from torch import Tensor

from gamlens import Lens
from gamlens.data import load
from gamlens.engine import Job, RunFolder, run_local
from gamlens.evaluation import results
from gamlens.evaluation.masked import IMAGES_AT_ONCE
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.evaluation.runs import evaluate_run, make_measurer

METHODS, N = ("gam", "grad_cam_pp", "grad_cam"), (1, 2)


def evaluated(lens: Lens, items: list[Unit], protocol: Protocol, batch: int, place: Path) -> float:
    """The seconds that a run of these items takes, including decoding and writing."""
    job = Job(lambda: make_measurer(lambda: lens, protocol), results.encode, 4 * batch, batch)
    start = time.perf_counter()
    with RunFolder(place, {"what": protocol.kind}, suffix=".parquet", fresh=True) as folder:
        list(run_local(job, items, folder))
    return time.perf_counter() - start


def floor(lens: Lens, items: int, protocol: Protocol, batch: int) -> tuple[float, int]:
    """Seconds and number of plain forwards: one per image, and one more per masked copy that the run evaluates."""
    masked = len(METHODS) * len(N) + 2 if protocol.kind == "objective" else 0
    seconds, images = 0.0, 0
    with torch.no_grad():
        for start in range(0, items, batch):
            size = min(batch, items - start)
            sizes = [size]
            together = max(1, IMAGES_AT_ONCE // size)
            sizes += [size * min(together, masked - at) for at in range(0, masked, together)]
            for one in sizes:
                data: Tensor = torch.randn(one, 3, 224, 224, device=next(lens.model.parameters()).device)
                begin = time.perf_counter()
                lens.model(data)
                if data.is_cuda:
                    torch.cuda.synchronize()
                seconds += time.perf_counter() - begin
                images += one
    return seconds, images


def speed(options: argparse.Namespace) -> list[str]:
    lens = real.lens(options.model).to(options.device)
    lens.model.eval()
    lines = ["| evaluation | items per second | floor, items per second | forwards | time over floor |"]
    lines.append("| --- " * 5 + "|")
    for kind in ("localization", "objective"):
        protocol = Protocol(kind, methods=METHODS, n=N)
        items = units(load("ilsvrc", real.DATA / "ILSVRC"), protocol)[: options.items]
        ratios, rates, floors, images = [], [], [], 0
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as place:
                plain, images = floor(lens, len(items), protocol, options.batch)
                ours = evaluated(lens, items, protocol, options.batch, Path(place))
            ratios.append(ours / plain)
            rates.append(len(items) / ours)
            floors.append(len(items) / plain)
        middle: Callable[[list[float]], float] = statistics.median
        lines.append(
            f"| {kind} | {middle(rates):.2f} | {middle(floors):.2f} | {images} | {middle(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def whole(model: str, items: int) -> None:
    """Run an evaluation of `items` images and print the process's peak memory in MiB."""
    lens = Lens(model)
    protocol = Protocol("localization", methods=METHODS, n=N)
    dataset = load("ilsvrc", real.DATA / "ILSVRC")
    with tempfile.TemporaryDirectory() as place:
        chosen = units(dataset, protocol)[:items]
        evaluate_run(lambda: lens, dataset, chosen, protocol, Path(place))
    print(json.dumps({"items": items, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def memory(options: argparse.Namespace) -> list[str]:
    lines = ["| images | peak memory, MiB |", "| --- | --- |"]
    for items in (200, 1000):
        command = [sys.executable, __file__, "--whole", str(items), "--small", options.small]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        lines.append(f"| {items} | {found['peak']:.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a model of benchmarks/real.py (default resnet50)")
    parser.add_argument("--small", default="efficientnet_lite0", help="the model of the memory runs")
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", nargs="*", default=["speed", "memory"], choices=["speed", "memory"])
    parser.add_argument("--whole", type=int, help=argparse.SUPPRESS)
    parser.epilog = "example: python benchmarks/evaluate.py --items 64 --parts speed"
    options = parser.parse_args()
    if options.whole:
        whole(options.small, options.whole)
        return
    for part in options.parts:
        print("\n".join({"speed": speed, "memory": memory}[part](options)) + "\n")


if __name__ == "__main__":
    main()
