"""Compares runs with figures that an independent implementation measured on the same images, networks and pairs.

The runs are folders of `gamlens reproduce` (its folder, or runs in it) or of `gamlens evaluate`: the original ResNet-50
and EfficientNet-Lite0 on the 1,000 ILSVRC images of the shared data, with neighbour pairs and hold-out by maps for pairs.
`make reproduce` makes the runs and compares them. A run with other settings has no reference; its numbers are shown.
"""

# ruff: noqa: E501 - the reference numbers are written as one line per row

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.paper_table import cut
from gamlens.evaluation.protocol import UNSAID, Protocol, units
from gamlens.evaluation.table_files import markdown

LITERAL = "grad_cam_pp_literal"
RESNET50, LITE0 = "resnet50_imagenet1k_fp16.pth", "efficientnet_lite0"
# IoU in percent at n = 1, 2, 3 of the ResNet-50, by task and subset; every position of a block is used (lattice "keep").
IOU: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("classification", "all"): {"gam": (55.88, 56.07, 56.10), "grad_cam_pp": (55.59, 51.84, 51.22), "grad_cam": (56.43, 51.00, 49.60)},
    ("classification", "25"): {"gam": (32.08, 33.16, 34.74), "grad_cam_pp": (33.43, 30.98, 28.57), "grad_cam": (33.11, 23.13, 21.03)},
    ("classification", "10"): {"gam": (21.60, 20.35, 24.89), "grad_cam_pp": (21.85, 20.61, 19.41), "grad_cam": (23.68, 15.32, 11.95)},
    ("cosine", "all"): {"gam": (53.24, 53.62, 53.64), "grad_cam_pp": (53.23, 51.64, 50.88), "grad_cam": (48.94, 48.03, 47.76)},
    ("dot", "all"): {"gam": (54.32, 54.38, 54.31), "grad_cam_pp": (54.28, 50.30, 50.12), "grad_cam": (54.32, 49.64, 49.37), LITERAL: (0.0,)},
}  # fmt: skip
# The same where only the positions are used that the network reads (lattice "read"); n = 1 does not depend on it.
IOU_READ: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("classification", "all"): {"gam": (55.87, 56.59, 57.03)}
}
# ADP and PIC at n = 1, then at n = 2, by task, fill and confidence; lattice "keep".
OBJECTIVE: dict[tuple[str, str, str], dict[str, tuple[float, ...]]] = {
    ("classification", "black", "logit"): {"gam": (17.26, 24.6, 31.30, 12.9), "grad_cam_pp": (17.47, 24.9, 16.80, 22.0), "grad_cam": (17.17, 26.7, 17.48, 24.3), "centre": (20.73, 20.1)},
    ("classification", "mean", "logit"): {"gam": (13.57, 32.2, 24.02, 19.4), "grad_cam_pp": (13.75, 31.8, 12.04, 34.9), "grad_cam": (13.24, 34.4, 12.00, 36.6), "centre": (18.11, 24.4)},
    ("classification", "black", "probability"): {"gam": (25.49, 32.8, 42.74, 19.2), "grad_cam_pp": (25.84, 32.9, 24.06, 31.4), "grad_cam": (25.18, 34.3, 24.80, 31.8)},
    ("classification", "mean", "probability"): {"gam": (24.42, 34.2, 39.28, 23.6), "grad_cam_pp": (24.77, 34.2, 23.13, 33.5), "grad_cam": (22.49, 36.9, 23.73, 38.1)},
    ("cosine", "black", "logit"): {"gam": (6.78, 29.7, 13.88, 15.7), "grad_cam_pp": (6.79, 29.7, 6.07, 30.7), "grad_cam": (10.49, 24.1, 11.43, 20.3), "centre": (9.47, 21.9)},
    ("dot", "black", "logit"): {"gam": (9.38, 31.3, 16.33, 19.3), "grad_cam": (9.38, 31.3, 9.17, 29.5), LITERAL: (87.11, 0.0)},
}  # fmt: skip
# IoU of GAM on other boxes, views and input sizes: {(box, views, side of the input): {n: IoU}}.
VARIANTS: dict[tuple[str, tuple[Any, ...], int], dict[int, float]] = {
    ("largest", (), 224): {1: 56.03, 2: 55.59, 3: 55.61},
    ("all", ("flip",), 224): {1: 56.18},
    ("all", ("flip", 1.43, 2.0), 224): {2: 59.11},
    ("all", (), 448): {1: 58.17},
    ("largest", (), 448): {1: 60.08},
}
# EfficientNet-Lite0, of which every position is read: by metric and method at n = 1, 2, 3; ADP is of the logit, black.
LITE0_FIGURES: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("IoU", "gam"): (53.73, 55.99, 56.80),
    ("IoU", "grad_cam_pp"): (None, 49.12),
    ("IoU", "grad_cam"): (54.23,),
    ("ADP", "gam"): (9.72, 10.29, 10.97),
    ("Insertion", "gam"): (37.4, 40.2, 41.5),
    ("Deletion", "gam"): (10.4, 9.4, 9.1),
}


@dataclass(frozen=True)
class Compared:
    """One number of a run beside the reference, if there is one; `nearest` is ours at a threshold next to the best."""

    setting: str
    metric: str
    method: str
    n: int
    ours: float
    reference: float | None
    nearest: float | None = None


def reference(about: Mapping[str, Any], subset: str, confidence: str, cell: tables.Cell) -> float | None:
    """The independent figure for a number of a run; None if there is none for these settings."""
    chosen = {**UNSAID, **about["protocol"]}
    same_pairs = chosen["pairs"] == "neighbour" and chosen["masked"] == "one"
    same_hold_out = chosen["kind"] == "objective" or chosen["hold_out_by"] == "maps"
    same_items = chosen["task"] == "classification" or (same_pairs and same_hold_out)
    if about["data"] != "ilsvrc" or chosen["input"] != "squash" or not same_items:
        return None
    place = max(cell.n - 1, 0)
    if about["model"] == LITE0:
        usual = subset == "all" and chosen["task"] == "classification" and confidence == "logit"
        return _at(LITE0_FIGURES.get((cell.metric, cell.method), ()) if usual and cell.n else (), place)
    if not about["weights"].endswith(RESNET50):
        return None
    read = chosen["lattice"] == "read" and cell.n > 1
    if chosen["kind"] == "objective":
        known = OBJECTIVE.get((chosen["task"], chosen["fill"], confidence), {}).get(cell.method, ())
        usable = subset == "all" and not read and cell.metric in ("ADP", "PIC")
        return _at(known, 2 * place + (cell.metric == "PIC")) if usable else None
    side = 448 if "448" in about["transform"] else 224
    if cell.metric != "IoU" or not cell.n:
        return None
    if (variant := (chosen["box"], tuple(chosen["views"]), side)) != ("all", (), 224):
        usable = subset == "all" and chosen["task"] == "classification" and cell.method == "gam" and not read
        return VARIANTS.get(variant, {}).get(cell.n) if usable else None
    return _at((IOU_READ if read else IOU).get((chosen["task"], subset), {}).get(cell.method, ()), place)


def _at(known: tuple[float | None, ...], place: int) -> float | None:
    return known[place] if place < len(known) else None


def compare(folder: Path, *, confidences: tuple[str, ...] = ("logit", "probability")) -> Iterator[Compared]:
    """The numbers of a run beside the reference, for all items and for small objects where the run has them."""
    run = results.read(folder, only=(*tables.needed(), "item", "image", "label", "side"))
    chosen, dataset = Protocol.from_record(run.about["protocol"]), load(run.about["data"], run.about["root"])
    scores = confidences if (chosen.kind, chosen.task) == ("objective", "classification") else confidences[:1]
    for subset, count in run.about.get("subsets", {chosen.subset: run.about["items"]}).items():
        items = units(dataset, Protocol.from_record({**run.about["protocol"], "subset": subset}))
        part = cut(run, items[:count], subset)
        for confidence in scores:
            for cell in tables.cells(part, confidence=confidence):
                known = reference(run.about, subset, confidence, cell)
                setting = f"{folder.name}, {subset}" + (f", {confidence}" if len(scores) > 1 else "")
                near = None if known is None or cell.metric != "IoU" else _nearest(part, cell, known)
                yield Compared(setting, cell.metric, cell.method, cell.n, cell.value.mean, known, near)


def _nearest(run: results.Run, cell: tables.Cell, known: float) -> float:
    """Our IoU closest to the reference, at the best threshold of the hold-out or the second best."""
    columns = run.groups[cell.method, cell.n]
    held, grid = columns["held_out"], 100 * columns["iou"].astype(float)
    best = np.nanmean(grid[held], axis=0).argsort()[-2:]
    return float(min((np.nanmean(grid[~held][:, at]) for at in best), key=lambda value: abs(value - known)))


def run_folders(place: Path) -> list[Path]:
    """The run folders below a folder, or the folder itself."""
    return [place] if (place / "run.json").exists() else sorted(path.parent for path in place.rglob("run.json"))


def show(found: list[Compared]) -> str:
    """A Markdown table of the numbers that have a reference, with the difference."""
    header = ("run", "metric", "method", "n", "ours", "reference", "difference", "at its threshold")
    lines = []
    for one in found:
        if one.reference is not None:
            near = "" if one.nearest is None else f"{one.nearest - one.reference:+.2f}"
            numbers = (f"{one.ours:.2f}", f"{one.reference:g}", f"{one.ours - one.reference:+.2f}", near)
            lines.append((one.setting, one.metric, one.method, str(one.n or ""), *numbers))
    return markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders that hold them")
    parser.add_argument("--json", type=Path, help="write all numbers to this file, with and without a reference")
    parser.epilog = "example: python benchmarks/reference_figures.py bench/reproduce"
    options = parser.parse_args()
    found = [one for place in options.folders for folder in run_folders(place) for one in compare(folder)]
    print(show(found))
    if options.json:
        options.json.write_text(json.dumps([vars(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
