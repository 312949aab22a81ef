"""The options of `gamlens compare --links`, and how links and the parts of a score are printed and given as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from typer import Option

from gamlens import GamlensError
from gamlens.cli.terminal import say, say_rows
from gamlens.files import StagedFiles
from gamlens.inputs.images import upright
from gamlens.methods import METHODS
from gamlens.pairs.embedding_parts import AUTO_BASELINE, BASELINES, MOST_INTEGRAL_STEPS
from gamlens.pairs.interactions import ELSEWHERE, Interactions, Link, RegionParts
from gamlens.pairs.pair_trace import MOST_CELLS, USUAL_STEPS
from gamlens.render import BoxCorners, is_marked_png, write_png
from gamlens.scores import PAIR_SCORES

LINKS_FILE = "links.png"
SMALL_BOX = 5  # pixels

LinksFlag = Annotated[
    bool,
    Option(
        "--links",
        help=f"Also split the score over pairs of places, one in each image: write the strongest links between both "
        f"images to {LINKS_FILE}, and print them with what remains of the score, and how it is split between regions.",
    ),
]
StepCount = Annotated[
    int | None,
    Option(
        "--steps",
        min=1,
        max=MOST_INTEGRAL_STEPS,
        help="With --links: the number of steps of the integral, for embeddings that are no average over places. More "
        f"steps make the gap smaller and take longer. By default {USUAL_STEPS}.",
        show_default=False,
    ),
]
CellCount = Annotated[
    int | None,
    Option(
        "--cells",
        min=0,
        help="With --links: neighbouring places are taken together, so that there are at most this many rows and "
        f"columns of them; 0 takes every place by itself. By default {MOST_CELLS}.",
        show_default=False,
    ),
]
BaselineName = Annotated[
    str | None,
    Option(
        "--baseline",
        help="With --links: what places are compared with: average (what both images have on average; links then say "
        "what is special about two places, and mostly name the right object more often where there are several), zeros "
        "(activations of 0), blank (an image of the mean colour), or auto: zeros where the integral works from there, "
        f"and else blank: {', '.join(BASELINES)}. By default {AUTO_BASELINE}.",
        show_default=False,
    ),
]


def _box_help(which: str) -> str:
    return (
        f"With --links: a region of the {which} image to split the score by, NAME=x0,y0,x1,y1 in its pixels; repeat "
        "the option for several. By default regions are found where places raise the score most."
    )


XBoxes = Annotated[list[str] | None, Option("--x-box", help=_box_help("first"))]
YBoxes = Annotated[list[str] | None, Option("--y-box", help=_box_help("second"))]


@dataclass(frozen=True)
class LinkOptions:
    """What --links asks for: the options of `PairTrace.interactions`, and boxes by name; none: regions are found."""

    steps: int = USUAL_STEPS
    baseline: str = AUTO_BASELINE
    cells: int | None = MOST_CELLS
    x_boxes: Mapping[str, BoxCorners] = field(default_factory=dict)
    y_boxes: Mapping[str, BoxCorners] = field(default_factory=dict)


def chosen_links(
    *,
    links: bool,
    score: str,
    method: str,
    steps: int | None,
    cells: int | None,
    baseline: str | None,
    x_box: Sequence[str] | None,
    y_box: Sequence[str] | None,
    files: tuple[str, str | None],
) -> LinkOptions | None:
    """What --links and the options that belong to it ask for; None without --links. No model is needed to tell.

    Args:
        links: Whether --links was given.
        score: The name of the pair score.
        method: The name of the method of the maps.
        steps, cells, baseline, x_box, y_box: The other options; None if they were not given.
        files: Both image files, in which boxes must lie.
    """
    given = {"--steps": steps, "--cells": cells, "--baseline": baseline, "--x-box": x_box, "--y-box": y_box}
    if not links:
        if alone := [name for name, value in given.items() if value not in (None, [])]:
            raise GamlensError(f"{alone[0]} belongs to --links: give --links, too, or leave {alone[0]} out.")
        return None
    if files[1] is None:
        raise GamlensError("--links needs two images, not a caption: leave out --links, or give two images.")
    if not PAIR_SCORES[score].sums_over_positions:
        sums = ", ".join(name for name, entry in PAIR_SCORES.items() if entry.sums_over_positions)
        raise GamlensError(f"--links: the score {score} is no sum over pairs of places: give --score one of {sums}.")
    if method in METHODS and METHODS[method].kind == "input":
        raise GamlensError(
            f"--links: {method} explains pixels, and links are made from blocks: give another --method, or leave out "
            "--links."
        )
    if baseline is not None and baseline not in BASELINES:
        raise GamlensError(f"--baseline {baseline}: give one of {', '.join(BASELINES)}.")
    return LinkOptions(
        steps=USUAL_STEPS if steps is None else steps,
        baseline=baseline or AUTO_BASELINE,
        cells=MOST_CELLS if cells is None else cells or None,
        x_boxes=_boxes("--x-box", x_box or (), files[0]),
        y_boxes=_boxes("--y-box", y_box or (), files[1]),
    )


def _boxes(option: str, texts: Sequence[str], file: str) -> dict[str, BoxCorners]:
    """The boxes of an option by name; each must lie in the photo."""
    found: dict[str, BoxCorners] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        name = name.strip()
        try:
            x0, y0, x1, y1 = map(float, numbers.split(","))
        except ValueError:
            name = ""
        if not name:
            raise GamlensError(
                f"{option} {text!r}: give NAME=x0,y0,x1,y1 in pixels of the image, such as {option} dog=40,60,200,220."
            )
        if name in found or name == ELSEWHERE:
            why = "is given twice" if name in found else "stands for all that lies outside of boxes"
            raise GamlensError(f"{option}: the name {name!r} {why}: give every box a name of its own.")
        width, height = upright(file).size
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise GamlensError(
                f"{option} {text}: the box does not lie in {file}, which is {width} x {height} pixels: give x0 < x1 "
                f"between 0 and {width}, and y0 < y1 between 0 and {height}."
            )
        found[name] = (x0, y0, x1, y1)
    return found


class SplitScore:
    """A score that is split over links and regions: its picture, JSON record and text.

    Args:
        found: What every place of x and every place of y add to the score.
        how: The options of --links.
    """

    def __init__(self, found: Interactions, how: LinkOptions) -> None:
        self.found, self.links = found, found.links()
        x: Mapping[str, Any] = how.x_boxes or found.regions("x")
        y: Mapping[str, Any] = how.y_boxes or found.regions("y")
        self.regions: tuple[Mapping[str, Any], Mapping[str, Any]] = (x, y)
        self.parts: RegionParts = found.between(x, y)

    def check_place(self, folder: Path) -> None:
        """Raise a GamlensError if a file that is not ours lies where the picture goes."""
        file = folder / LINKS_FILE
        if (file.exists() or file.is_symlink()) and not is_marked_png(file):
            raise GamlensError(
                f"Cannot write {str(file)!r}: a file of that name is there that gamlens did not write, or that was "
                "changed since. Nothing was written: move it away or delete it, or give another --out."
            )

    def save(self, folder: Path) -> str:
        """Draw the strongest links into a picture of this folder; returns its path."""
        file = folder / LINKS_FILE
        with StagedFiles() as staged:
            staged.write(file, partial(write_png, self.found.overlay(len(self.links) or 1)))
        return str(file)

    @property
    def record(self) -> dict[str, Any]:
        """All numbers for JSON: score = parts + aside + remainder + gap; parts is the sum over pairs of places."""
        found = self.found
        return {
            "parts": float(found.matrix.double().sum()),
            "aside": found.aside,
            "remainder": found.remainder,
            "gap": found.gap,
            "exact": found.exact,
            "steps": found.steps,
            "baseline": found.baseline,
            "forwards": found.forwards,
            "cells": list(found.matrix.shape),
            "links": [link._asdict() for link in self.links],
            "regions": {
                "x": {name: box_of(region) for name, region in self.regions[0].items()},
                "y": {name: box_of(region) for name, region in self.regions[1].items()},
                "x_names": list(self.parts.x_names),
                "y_names": list(self.parts.y_names),
                "values": self.parts.values.tolist(),
                "shares": self.parts.shares.tolist(),
                "sentences": self.parts.sentences(),
            },
        }

    def say(self, x: str, y: str) -> None:
        """Print how the score is made up, the strongest links and the split between regions, for photos x and y."""
        found, (rows, columns, down, across) = self.found, self.found.matrix.shape
        lines = [("parts", f"{float(found.matrix.double().sum()):.4f}", _places(rows * columns, down * across))]
        if found.aside:
            lines.append(("aside", f"{found.aside:.4f}", "what class and register tokens add"))
        how = "exact" if found.exact else f"what {found.steps} steps miss; the network ran {found.forwards} times"
        lines += [
            ("remainder", f"{found.remainder:.4f}", f"what belongs to no pair of places; baseline {found.baseline}"),
            ("gap", f"{found.gap:.1e}", how),
        ]
        say_rows(("", f"{found.name} {found.score:.4f}", ""), lines)
        header = ("the strongest links", "share", f"in {x}", f"in {y}")
        say_rows(header, [_line(link) for link in self.links])
        for name, region in (*self.regions[0].items(), *self.regions[1].items()):
            if isinstance(region, Tensor):
                say(f"{name} is where places raise the score most, in the box {_numbers(box_of(region))}")
        for sentence in self.parts.sentences():
            say(sentence)


def _places(x: int, y: int) -> str:
    return f"the sum over {x} x {y} pairs of places"


def _line(link: Link) -> tuple[str, ...]:
    return f"{link.value:+.4f}", f"{100 * link.share:.0f} %", _numbers(link.x_box), _numbers(link.y_box)


def _numbers(box: Sequence[float]) -> str:
    """A box as --x-box and --y-box take it: whole pixels, or decimals where that would leave less than a few pixels."""
    small = min(box[2] - box[0], box[3] - box[1]) < SMALL_BOX
    return ",".join(f"{value:.2f}" if small else f"{value:.0f}" for value in box)


def box_of(region: Any) -> list[float]:
    """The box x0,y0,x1,y1 of a region: its own numbers, or what encloses a mask (height,width)."""
    if not isinstance(region, Tensor):
        return [float(value) for value in region]
    rows, columns = (region.any(dim=axis).nonzero().flatten() for axis in (1, 0))
    return [float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)]
