"""Draws docs/images/tokens.png: methods on two trained ViTs, side by side, for the class that each finds.

Photos of installed packages, and the ViTs with the weights in ../shared/weights (or GAMLENS_WEIGHTS). They know ten
classes; of these the photos show a church, at best.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import real

from gamlens import METHODS, GamlensWarning
from gamlens.data.photos import photo
from gamlens.figures import save
from gamlens.figures.panels import SALIENCY_KEY, heat
from gamlens.figures.panels import photo as plain
from gamlens.render import Grid, Panel, draw

SHOWN = ("gam", "grad_cam", "attention_gam", "legrad", "chefer", "grad_eclip", "attention_rollout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="*", default=["tower", "pagoda"], help="names of photos (gamlens.data.photos)")
    parser.add_argument("--target", default="church", help="the class that is explained")
    parser.add_argument("--out", type=Path, default=Path("docs/images/tokens.png"))
    parser.epilog = "example: python benchmarks/token_picture.py tower --out tokens.png"
    options = parser.parse_args()
    rows, labels = [], []
    for title, lens in (("class token", real.vit_class_token()), ("mean", real.vit_mean())):
        for name in options.photos:
            with warnings.catch_warnings(action="ignore", category=GamlensWarning):
                trace = lens.trace(photo(name), options.target)
                found = [trace.explain(method) for method in SHOWN]
            row: list[Panel | None] = [plain(found[0]), *(heat(result) for result in found)]
            rows.append(tuple(row))
            chance = next(guess for guess in trace.top(10)[0] if guess.name == options.target).probability
            labels.append(f"{title}, {options.target} {100 * chance:.0f} %")
    heads = ("photo", *(METHODS[method].title for method in SHOWN))
    grid = Grid(tuple(rows), heads, tuple(labels), keys=(SALIENCY_KEY,))
    save(draw(grid, cell=150), options.out, dpi=100, palette=True)
    print(f"{options.out}: {options.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
