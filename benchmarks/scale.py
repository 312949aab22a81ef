"""Measures items per second and peak memory of runs of 500, 1,000 and 2,000 items, in one process and on Ray.

Every run has a process of its own. The photos are real; if there are too few, they are listed again under other names.
The rate is measured from the first finished chunk to the last, so that it does not include starting Python, the model
and the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial

import psutil
import real

from gamlens import Lens
from gamlens.data import Dataset, load
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import Engine, evaluate_run

SIZES = (500, 1000, 2000)
ENGINES = (("local", 0), ("ray", 1), ("ray", 2))
PROTOCOL = Protocol("localization", methods=("gam", "grad_cam"), n=(1, 2))


def make(model: str, threads: int) -> Lens:
    import torch

    torch.set_num_threads(threads)
    return Lens(model, weights="random")


def listed(count: int) -> Dataset:
    """The ILSVRC sample of the shared data, repeated up to `count` items."""
    dataset = load("ilsvrc", real.DATA / "ILSVRC")
    samples = [
        replace(dataset[at % len(dataset)], name=f"{at // len(dataset)}-{dataset[at % len(dataset)].name}")
        for at in range(count)
    ]
    return replace(dataset, samples=tuple(samples))


def watch(stop: threading.Event, peak: list[float]) -> None:
    """Track the peak memory of this process and its children in MiB, with shared pages counted once (PSS)."""
    own = psutil.Process()
    while not stop.wait(0.5):
        total = 0.0
        for process in (own, *own.children(recursive=True)):
            try:
                total += process.memory_full_info().pss / 2**20
            except psutil.Error:
                continue
        peak[0] = max(peak[0], total)


def one(items: int, engine: str, workers: int, model: str) -> None:
    """Do one run in this process and print its numbers as JSON."""
    dataset = listed(items)
    chosen = units(dataset, PROTOCOL)
    stamps: list[tuple[float, int]] = []
    peak, stop = [0.0], threading.Event()
    watcher = threading.Thread(target=watch, args=(stop, peak), daemon=True)
    watcher.start()
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        evaluate_run(
            partial(make, model, threads), dataset, chosen, PROTOCOL, place, batch=10, chunk=50,
            engine=Engine(engine, workers or None), status=lambda seen, _: stamps.append((time.perf_counter(), seen)),
        )  # fmt: skip
    whole = time.perf_counter() - start
    stop.set()
    watcher.join()
    first, last = stamps[1], stamps[-1]
    rate = (last[1] - first[1]) / (last[0] - first[0])
    print(json.dumps({"rate": rate, "seconds": whole, "start": first[0] - start - first[1] / rate, "peak": peak[0]}))


def table(options: argparse.Namespace) -> list[str]:
    lines = [
        "| engine | items | items per second | seconds per 1,000 items | start, s | whole run, s | peak memory, MiB |"
    ]
    lines.append("| --- " * 7 + "|")
    for engine, workers in ENGINES:
        for items in options.sizes:
            words = ["--one", str(items), engine, str(workers), "--model", options.model]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            ran = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, env=environment)
            if ran.returncode:
                raise SystemExit(ran.stderr)
            found = json.loads(ran.stdout.splitlines()[-1])
            name = engine if engine == "local" else f"ray, {workers} workers"
            lines.append(
                f"| {name} | {items} | {found['rate']:.1f} | {1000 / found['rate']:.0f} | {found['start']:.0f} | "
                f"{found['seconds']:.0f} | {found['peak']:.0f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--model", default="mobilenet_v3_small", help="a torchvision model, with random weights")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.epilog = "example: python benchmarks/scale.py --sizes 500 1000 2000"
    options = parser.parse_args()
    if options.one:
        one(int(options.one[0]), options.one[1], int(options.one[2]), options.model)
        return
    print("\n".join(table(options)))


if __name__ == "__main__":
    main()
