"""Measures the memory of a studio whose visitors all give the largest photos that it takes.

Each visitor gives three photos of 39 million pixels on both tabs, changes a control and saves a picture. There are
more visitors than the studio keeps, several at a time. The studio runs in this process with its default model.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from visitor import Visitor, values

from gamlens.studio import Studio, launch
from gamlens.studio.controls import Controls

USUAL, SIZE, MEGA = Controls(), (7200, 5400), 10**6


def resident() -> float:
    """The memory of this process in MB."""
    return float(psutil.Process().memory_info().rss) / MEGA


def make_photos(folder: Path, count: int) -> list[Path]:
    files = [folder / f"photo{number}.jpg" for number in range(count)]
    for number, file in enumerate(files):
        blocks = np.random.default_rng(number).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize(SIZE).save(file, quality=85)
    return files


def most_resident() -> float:
    """The most memory that this process ever had, in MB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGA


def visit(studio: Studio, number: int, files: list[Path]) -> None:
    """Do all of one visitor's actions."""
    visitor = Visitor(studio, f"visitor {number}")
    for file, turn in zip(files, range(3), strict=True):
        visitor.call("photo", [visitor.upload(file), *values(USUAL)], turn=turn)
    visitor.call("redraw", values(replace(USUAL, view="three")))
    visitor.call("download", values(USUAL))
    visitor.http.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=12, help="how many visitors the studio keeps in memory")
    parser.add_argument("--visitors", type=int, default=24, help="how many visitors come")
    parser.add_argument("--at-once", type=int, default=4, help="how many of them at a time")
    parser.epilog = "example: python benchmarks/studio_memory.py --visits 12"
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, launch(visits=options.visits) as studio:
        files = make_photos(Path(name), 3)
        gc.collect()
        before = resident()
        print("the studio runs; visitors come", file=sys.stderr)
        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(lambda number: visit(studio, number, files), range(options.visitors)))
        gc.collect()
        print(f"without visitors {before:.0f} MB, most {most_resident():.0f} MB, at the end {resident():.0f} MB")
        print(f"per visit kept {(resident() - before) / len(studio.actions.sessions):.0f} MB")
        studio.actions.sessions.clear()
        print(f"after all have left {resident():.0f} MB")


if __name__ == "__main__":
    main()
