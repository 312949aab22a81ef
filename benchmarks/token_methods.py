"""Methods for transformers, measured on two trained ViTs, beside controls: one pools by class token, one by mean.

`--measure` writes one .npz file per run, with the value of every item: boxes (all pixels, and the largest region),
pointing, ADP, PIC, ADP of equal mass, insertion and deletion for classes; boxes, ADP and PIC for pairs of neighbours;
the same for crops of the images in which the object lies off the centre. `--show` reads these files and prints tables
with paired differences to the centre prior.

The data are 250 photos of ten classes (`real.DATA`). Thresholds of boxes are chosen on every tenth image, which is left
out of the boxes' numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import real
import torch
from more_blocks import read, save
from PIL import Image

from gamlens import METHODS, metrics
from gamlens.data import Box, Dataset, Sample, align, load
from gamlens.evaluation import results, run_scores
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.methods import names

NETWORKS = ("vit_class_token", "vit_mean")
LAYERS = 12
CURVES = {"curves": 7, "curve_background": "blur", "equal_mass": True}
CROP, STEP, VISIBLE, OFF_CENTRE = 160, 8, 0.5, 0.15
COLUMNS = ("IoU all", "IoU largest", "Pointing", "ADP", "PIC", "ADP (equal mass)", "Insertion", "Deletion")


@dataclass(frozen=True)
class Run:
    """Some rows of the tables: methods at n, refined or not, with these controls."""

    name: str
    methods: tuple[str, ...]
    n: tuple[int, ...]
    refine: int = 0
    controls: tuple[str, ...] = ()
    curves: bool = True


ATTENTION = names("attention")
RUNS = {
    run.name: run
    for run in (
        Run("default", ("attention_gam",), (LAYERS,), controls=("centre",)),
        Run("refined", ("attention_gam",), (LAYERS,), refine=2, controls=("centre",)),
        Run("attention", ATTENTION[1:], (LAYERS,)),
        Run("blocks", ("gam", "grad_cam"), (2,)),
        Run("depths", ("gam",), (1, 4), controls=("blank", "ones", "random"), curves=False),
        Run("layers", ("attention_gam",), (1, 2, 4, 8), curves=False),
    )
}
SHORT = ("default", "attention", "blocks")  # what is measured on crops and on pairs


@contextmanager
def only_controls(wanted: tuple[str, ...]) -> Iterator[None]:
    """Measure these controls alone; where maps are refined, the refined ones of them in their place."""
    kept = {name: metrics.CONTROLS[name] for name in wanted}
    refined = tuple(name for name in metrics.REFINED_CONTROLS if name in wanted)
    with mock.patch.dict(metrics.CONTROLS, kept, clear=True), mock.patch.object(metrics, "REFINED_CONTROLS", refined):
        yield


def off_centre(dataset: Dataset, folder: Path) -> Dataset:
    """Crops of the images, each with its largest object as far from the centre as it gets, saved below `folder`.

    A crop is CROP pixels wide and high, of 224, and shows at least half of the object. Images whose object cannot be
    moved by OFF_CENTRE of the side, because it fills the image, are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for sample in dataset.samples:
        image = Image.open(sample.image).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        height, width = sample.size or (224, 224)
        boxes = [
            Box(b.label, b.x0 * 224 / width, b.y0 * 224 / height, b.x1 * 224 / width, b.y1 * 224 / height)
            for b in sample.boxes
        ]
        found = max(_placements(boxes), default=None, key=lambda place: place[0])
        if found is None or found[0] < OFF_CENTRE:
            continue
        _, x, y, moved = found
        path = folder / f"{Path(sample.image).stem}.png"
        image.crop((x, y, x + CROP, y + CROP)).save(path)
        samples.append(Sample(sample.name, str(path), sample.labels, tuple(moved), (CROP, CROP)))
    return Dataset(dataset.name, str(folder), dataset.classes, tuple(samples))


def _placements(boxes: list[Box]) -> Iterator[tuple[float, int, int, list[Box]]]:
    """How far off the centre the largest object lies in a crop at (x, y), and the boxes there."""
    largest = max(boxes, key=lambda box: box.area)
    for y in range(0, 224 - CROP + 1, STEP):
        for x in range(0, 224 - CROP + 1, STEP):
            moved = [_moved(box, x, y) for box in boxes]
            own = _moved(largest, x, y)
            if own.area < VISIBLE * largest.area:
                continue
            across, down = (own.x0 + own.x1) / 2 / CROP - 0.5, (own.y0 + own.y1) / 2 / CROP - 0.5
            yield (across**2 + down**2) ** 0.5, x, y, [box for box in moved if box.area > 0]


def _moved(box: Box, x: int, y: int) -> Box:
    x0, x1 = (min(max(value - x, 0), CROP) for value in (box.x0, box.x1))
    y0, y1 = (min(max(value - y, 0), CROP) for value in (box.y0, box.y1))
    return Box(box.label, x0, y0, x1, y1)


def measure(options: Any) -> None:
    for name in options.models:
        lens = real.lens(name).to(options.device)
        whole = align(load("ilsvrc", real.DATA / "imagenette"), lens.labels)
        for part in options.parts:
            dataset = off_centre(whole, options.measure / "crops") if part == "crops" else whole
            task = part if part in ("cosine", "dot") else "classification"
            for run in (RUNS[key] for key in options.runs):
                if part != "photos" and run.name not in SHORT:
                    continue
                for label, protocol in protocols(run, task, curves=part in ("photos", "crops")):
                    path = options.measure / f"{name}-{part}-{run.name}-{label}.npz"
                    if path.is_file():
                        continue
                    start, items = time.perf_counter(), units(dataset, protocol)[: options.limit]
                    with only_controls(run.controls):
                        rows = [row for rows in evaluate(lens, items, protocol, batch=options.batch) for row in rows]
                    save(results.collect(results.describe(lens, dataset, protocol, len(items)), rows), path)
                    print(f"{path.stem}: {len(items)} items, {time.perf_counter() - start:.0f} s", file=sys.stderr)


def protocols(run: Run, task: str, *, curves: bool) -> Iterator[tuple[str, Protocol]]:
    shared: dict[str, Any] = {"task": task, "methods": run.methods, "n": run.n, "refine": run.refine}
    shared |= {} if task == "classification" else {"pairs": "neighbour"}
    for box in ("all", "largest"):
        yield box, Protocol("localization", box=box, **shared)
    yield "objective", Protocol("objective", **shared, **(CURVES if run.curves and curves else {"equal_mass": True}))


Row = dict[str, run_scores.Score]


def table_rows(folder: Path, name: str, part: str) -> dict[str, Row]:
    """{title of a row: {column: score}}."""
    rows: dict[str, Row] = {}
    for run in RUNS.values():
        for label in ("all", "largest", "objective"):
            path = folder / f"{name}-{part}-{run.name}-{label}.npz"
            if not path.is_file():
                continue
            found = read(path)
            for (method, n), columns in found.groups.items():
                row = rows.setdefault(_title(method, n, run), {})
                for score in run_scores.scores(found, columns):
                    title = f"IoU {label}" if score.metric.title == "IoU" else score.metric.title
                    if title in COLUMNS and not (label == "largest" and title == "Pointing"):
                        row.setdefault(title, score)
    return rows


def _title(method: str, n: int, run: Run) -> str:
    if n == 0:
        control = method.removesuffix("_refined")
        title = {"blank": "blank map", "ones": "all ones", "centre": "centre prior", "random": "random 7 x 7"}[control]
        return f"{title}, refined" if control != method else title
    title = METHODS[method].title
    if METHODS[method].kind == "block" or n != LAYERS:
        title += f", n = {n}"
    return f"{title}, refined" if run.refine else title


def show(folder: Path) -> str:
    lines: list[str] = []
    for name in NETWORKS:
        for part in ("photos", "crops", "cosine", "dot"):
            rows = table_rows(folder, name, part)
            if not rows:
                continue
            columns = [column for column in COLUMNS if any(column in row for row in rows.values())]
            lines += ["", f"### {name}, {part}", "", "| | " + " | ".join(columns) + " |"]
            lines += ["| --- " * (len(columns) + 1) + "|"]
            for title, row in rows.items():
                values = (f"{row[column].interval.mean:.1f}" if column in row else "" for column in columns)
                lines.append(f"| {title} | " + " | ".join(values) + " |")
            lines += ["", "| minus the centre prior | " + " | ".join(columns) + " |"]
            lines += ["| --- " * (len(columns) + 1) + "|"]
            base = rows.get("centre prior", {})
            for title, row in rows.items():
                if title != "centre prior":
                    words = (_difference(row.get(column), base.get(column)) for column in columns)
                    lines.append(f"| {title} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def _difference(score: run_scores.Score | None, base: run_scores.Score | None) -> str:
    if score is None or base is None or len(score.counted) != len(base.counted):
        return ""
    found = score.minus(base)
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help="measure, and write the files of values below this folder")
    parser.add_argument("--show", type=Path, help="print tables of the files below this folder")
    parser.add_argument("--models", nargs="*", default=NETWORKS, choices=NETWORKS)
    parts = ("photos", "crops", "cosine", "dot")
    parser.add_argument("--parts", nargs="*", default=parts[:3], choices=parts)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=25)
    parser.epilog = "example: python benchmarks/token_methods.py --measure values --models vit_mean --limit 20"
    options = parser.parse_args()
    if options.measure:
        measure(options)
    if options.show:
        print(show(options.show))


if __name__ == "__main__":
    main()
