"""Draws docs/images/lattice.png: maps of a block of which the network reads only every second row and column.

Photos of an installed package, the original ResNet-50 with the weights in ../shared/weights (or GAMLENS_WEIGHTS), its
top class: the map of layer3 alone and GAM at n = 2, of all positions (lattice="keep") and of those that are read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import real

from gamlens.data.photos import photo
from gamlens.figures import save
from gamlens.figures.panels import SALIENCY_KEY, heat
from gamlens.figures.panels import photo as plain
from gamlens.lattice import READINGS
from gamlens.render import Grid, Panel, draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="*", default=["cheetah", "cat"], help="names of photos (gamlens.data.photos)")
    parser.add_argument("--out", type=Path, default=Path("docs/images/lattice.png"))
    parser.epilog = "example: python benchmarks/lattice_picture.py cheetah --out lattice.png"
    options = parser.parse_args()
    lens, rows, labels = real.resnet50(), [], []
    for name in options.photos:
        trace = lens.trace(photo(name), n=2)
        found = [trace.explain("gam", 2, lattice=reading) for reading in reversed(READINGS)]  # keep, then read
        row: list[Panel | None] = [plain(found[0])]
        row += [heat(result, block="layer3") for result in found] + [heat(result) for result in found]
        rows.append(tuple(row))
        labels.append(found[0].names[0])
    heads = ("", *("all positions (keep)", "those that are read") * 2)
    grid = Grid(
        tuple(rows), heads, tuple(labels), groups=(("photo", 1), ("layer3 alone", 2), ("GAM, n = 2", 2)),
        keys=(SALIENCY_KEY,),
    )  # fmt: skip
    save(draw(grid, cell=210), options.out, dpi=100, palette=True)
    print(f"{options.out}: {options.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
