"""Makes the pictures of docs/pair_benchmark.md.

Cases of the tests of pairs are drawn from photos of installed packages, with boxes by hand, and explained by
EfficientNet-Lite0. With `--run FOLDER`, a finished `gamlens evaluate pairs`, the chart of its hits is drawn, too.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

from figures import BOXES, CLASSES, MASKS, write_boxes
from PIL import Image

from gamlens import Lens
from gamlens.data import load
from gamlens.data.photos import PHOTOS, photo
from gamlens.evaluation.pair_tests.pair_cases import PairCase, pair_cases
from gamlens.evaluation.pair_tests.pair_explainers import PairExplainers
from gamlens.evaluation.pair_tests.pair_pictures import case_pictures
from gamlens.evaluation.pair_tests.pair_plan import PATCHES, PHOTO_PAIRS, SCENES, PairPlan
from gamlens.evaluation.pair_tests.pair_runs import read_rows, run_pair_tests
from gamlens.figures import save
from gamlens.render import Chart, Grid, Panel, Series, draw, draw_chart

METHODS = ("gam", "grad_cam", "vdsn", "occlusion", "interactions")
SHOWN = {"GAM": 1, "Grad-CAM": 2, "Occlusion": 3, "Interactions": 4}  # explainers of the chart, with their colours
DRAWN = 60  # cases from which those with the shown classes are taken
# Two photos show a cheetah, two a bell cote; the others are alone in their classes.
WANTED = {SCENES: "cheetah", PATCHES: "cheetah", PHOTO_PAIRS: "cheetah"}
DPI = 110


def write_photos(folder: Path) -> Path:
    """Save the photos, each with a box around its object, and return their table."""
    known = {name: box for name, _, box in BOXES}
    rows = []
    for name in PHOTOS:
        picture = photo(name)
        picture.save(folder / f"{name}.jpg", quality=95)
        across, down = zip(*MASKS.get(name, ((0, 0), picture.size)), strict=True)
        around = (min(across), min(down), max(across), max(down))
        label = "bell cote" if name == "pagoda" else CLASSES[name]
        rows.append((f"{name}.jpg", label, known.get(name, around)))
    write_boxes(folder / "photos.csv", rows)
    return folder / "photos.csv"


def chosen(cases: list[PairCase], classes: tuple[str, ...]) -> list[PairCase]:
    """The first case of every kind that shows the wanted class; of scenes the first with three objects."""
    found = []
    for kind, name in WANTED.items():
        for case in cases:
            labels = [case.scenes[0][case.shared[0]].label] if case.scenes else list(case.labels[:1])
            if case.kind == kind and classes[labels[0]] == name and case.objects in (0, 3):
                found.append(case)
                break
    return found


def cases_of_photos(out: Path) -> None:
    plan = PairPlan(methods=METHODS, tests=("objects", "patch", "partner"), limit=DRAWN)
    lens = Lens("efficientnet_lite0")
    with tempfile.TemporaryDirectory() as made:
        data = load("table", write_photos(Path(made)))
        cases = chosen(pair_cases(data, plan), data.classes)
        run_pair_tests(lens, data, cases, plan, Path(made) / "run")
        _, rows = read_rows(Path(made) / "run")
        samples = {sample.name: sample for sample in data}
        pictures = case_pictures(PairExplainers(lens, plan), samples, cases, rows, data.classes)
    for test, blocks in pictures.blocks.items():
        for block in blocks:
            if isinstance(block, Grid):
                write(draw(block, cell=330), out / f"pair_{test}.png")
            elif isinstance(block, Panel):
                write(block.image, out / "pair_links.png")


def chart_of_hits(run: Path) -> Image.Image:
    """Hits and link hits of a run by the number of objects, with chance and the network itself."""
    with open(run / "pairs.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["group"].startswith("k = ")]
    panels, keys = [], []
    for measure, title in (("object_hit", "Hit"), ("link_hit", "Link hit")):
        own = [line for line in lines if line["measure"] == measure and line["group"] != "k = 1"]
        names = tuple(dict.fromkeys(line["group"] for line in own))
        first = [line for line in own if line["title"] == "GAM"]
        series = [
            Series.over_names("by chance", [float(line["chance"]) for line in first], "dashed", tone=0),
            Series.over_names("the network itself", [float(line["exact"]) for line in first], "dashed", tone=5),
        ]
        for name, tone in SHOWN.items():
            values = [float(line["mean"]) for line in own if line["title"] == name]
            series.append(Series.over_names(name, values, tone=tone))
        chart = Chart(title, "objects per scene", "%", tuple(series), names=names, y_range=(0, 100))
        panels.append(Panel(draw_chart(chart), f"{title}, %"))
        keys = series
    return draw(Grid((tuple(panels),), keys=tuple(keys)), cell=420)


def write(picture: Image.Image, file: Path) -> None:
    save(picture, file, dpi=DPI, palette=True)
    print(f"{file}: {picture.width} x {picture.height}, {file.stat().st_size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="the folder (default docs/images)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a finished run of `gamlens evaluate pairs`")
    args = parser.parse_args()
    if args.run:
        write(chart_of_hits(args.run), args.out / "pair_hits.png")
    cases_of_photos(args.out)


if __name__ == "__main__":
    main()
