"""Measures how long the studio takes for the first answer to a photo, and for a change of a control.

The studio runs in this process with its default model, as `gamlens studio` starts it. A simulated visitor sends the
requests of the page over HTTP on loopback. Times run from the request to the complete answer and include upload,
forward, backward, map and picture.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from visitor import Visitor, values

from gamlens.data.photos import PHOTOS, photo
from gamlens.methods import METHODS
from gamlens.render import COLORMAPS
from gamlens.studio import Studio, launch
from gamlens.studio.controls import Controls

USUAL = Controls()


def timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def first_answers(studio: Studio, folder: Path, repeats: int) -> list[float]:
    """Time the first answers to `repeats` new visitors, each with an example photo at its original size."""
    files = []
    for name in PHOTOS:
        files.append(folder / f"{name}.jpg")
        photo(name).save(files[-1], quality=95)

    def visit(number: int) -> None:
        visitor = Visitor(studio, f"first {number}")
        visitor.call("photo", [visitor.upload(files[number % len(files)]), *values(USUAL)])
        studio.actions.sessions.end(f"first {number}")

    visit(0)
    return [timed(lambda number=number: visit(number)) for number in range(repeats)]


def control_changes(studio: Studio, folder: Path, count: int) -> list[float]:
    """Time `count` changes by one visitor, to method, number of blocks, colours, opacity and outline in turn."""
    names = [name for name, method in METHODS.items() if method.kind == "block"]
    colours = list(COLORMAPS)
    turned = [
        lambda i: replace(USUAL, method=names[i % len(names)]),
        lambda i: replace(USUAL, n=1 + i % 4),
        lambda i: replace(USUAL, cmap=colours[i % len(colours)]),
        lambda i: replace(USUAL, opacity=(i % 10) / 10),
        lambda i: replace(USUAL, outline=("box", "mask"), threshold=0.05 + (i % 18) / 20),
    ]
    visitor = Visitor(studio, "turner")
    visitor.call("photo", [visitor.upload(folder / "cheetah.jpg"), *values(USUAL)])
    visitor.call("redraw", values(USUAL))
    return [timed(lambda i=i: visitor.call("redraw", values(turned[i % len(turned)](i)))) for i in range(count)]


def line(what: str, times: list[float]) -> str:
    ms = sorted(1000 * value for value in times)
    return f"{what}: median {statistics.median(ms):.0f} ms, {ms[0]:.0f} to {ms[-1]:.0f} ms, {len(ms)} of them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=12, help="how many first answers")
    parser.add_argument("--changes", type=int, default=50, help="how many changes of a control")
    parser.epilog = "example: python benchmarks/studio.py --changes 50"
    options = parser.parse_args()
    print("starting the studio", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name, launch() as studio:
        folder = Path(name)
        first = first_answers(studio, folder, options.photos)
        changes = control_changes(studio, folder, options.changes)
    lens = studio.actions.models.first
    print(f"{lens}, CPU, torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores")
    print(line("first answer to a photo", first))
    print(line("control change", changes))


if __name__ == "__main__":
    main()
