"""Compares our results with reference numbers and the paper's: ResNet-50 on 1,000 ILSVRC images and 750 pairs.

Prints IoU, ADP and PIC for classification, cosine and dot, n = 1, 2, 3, and for averaged views. It takes about 50,000
forwards: minutes on a GPU, hours on two cores (use --limit). An independent implementation measured the reference
numbers on the same images and pairs (neighbours of a class by file name).
"""

# ruff: noqa: E501 - the reference numbers are written as one line per row

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import real
import torch

from gamlens import Lens
from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units

METHODS = ("gam", "grad_cam_pp", "grad_cam")
LITERAL = "grad_cam_pp_literal"
IOU: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("classification", "all"): {"gam": (55.88, 56.07, 56.10), "grad_cam_pp": (55.59, 51.84, 51.22), "grad_cam": (56.43, 51.00, 49.60)},
    ("classification", "25"): {"gam": (32.08, 33.16, 34.74), "grad_cam_pp": (33.43, 30.98, 28.57), "grad_cam": (33.11, 23.13, 21.03)},
    ("classification", "10"): {"gam": (21.60, 20.35, 24.89), "grad_cam_pp": (21.85, 20.61, 19.41), "grad_cam": (23.68, 15.32, 11.95)},
    ("cosine", "all"): {"gam": (53.24, 53.62, 53.64), "grad_cam_pp": (53.23, 51.64, 50.88), "grad_cam": (48.94, 48.03, 47.76)},
    ("dot", "all"): {"gam": (54.32, 54.38, 54.31), "grad_cam_pp": (54.28, 50.30, 50.12), "grad_cam": (54.32, 49.64, 49.37), LITERAL: (0.0,)},
}  # fmt: skip
OBJECTIVE: dict[tuple[str, str, str], dict[str, tuple[float, ...]]] = {
    ("classification", "black", "logit"): {"gam": (17.26, 24.6, 31.30, 12.9), "grad_cam_pp": (17.47, 24.9, 16.80, 22.0), "grad_cam": (17.17, 26.7, 17.48, 24.3), "centre": (20.73, 20.1)},
    ("classification", "mean", "logit"): {"gam": (13.57, 32.2, 24.02, 19.4), "grad_cam_pp": (13.75, 31.8, 12.04, 34.9), "grad_cam": (13.24, 34.4, 12.00, 36.6), "centre": (18.11, 24.4)},
    ("classification", "black", "probability"): {"gam": (25.49, 32.8, 42.74, 19.2), "grad_cam_pp": (25.84, 32.9, 24.06, 31.4), "grad_cam": (25.18, 34.3, 24.80, 31.8)},
    ("classification", "mean", "probability"): {"gam": (24.42, 34.2, 39.28, 23.6), "grad_cam_pp": (24.77, 34.2, 23.13, 33.5), "grad_cam": (22.49, 36.9, 23.73, 38.1)},
    ("cosine", "black", "similarity"): {"gam": (6.78, 29.7, 13.88, 15.7), "grad_cam_pp": (6.79, 29.7, 6.07, 30.7), "grad_cam": (10.49, 24.1, 11.43, 20.3), "centre": (9.47, 21.9)},
    ("dot", "black", "similarity"): {"gam": (9.38, 31.3, 16.33, 19.3), "grad_cam": (9.38, 31.3, 9.17, 29.5), LITERAL: (87.11, 0.0)},
}  # fmt: skip
LARGEST = (56.03, 55.59, 55.61)
VIEWS = (("flip 224, n=1", ("flip",), 1, 56.18), ("224, 320, 448 and mirrored, n=2", ("flip", 1.43, 2.0), 2, 59.11))


def run(lens: Lens, protocol: Protocol, *, limit: int | None, batch: int, data: str = "ILSVRC") -> results.Run:
    """Evaluate a protocol on a sample of ILSVRC in the shared data."""
    start, dataset = time.perf_counter(), load("ilsvrc", real.DATA / data)
    items = units(dataset, protocol)[:limit]
    rows = [row for part in evaluate(lens, items, protocol, batch=batch) for row in part]
    seconds = time.perf_counter() - start
    print(f"  {protocol.kind} {protocol.task} {protocol.subset}: {len(items)} items, {seconds:.0f} s", file=sys.stderr)
    return results.collect(results.describe(lens, dataset, protocol, len(items)), rows)


def localization(lens: Lens, options: Any) -> list[dict[str, Any]]:
    found = []
    for (task, subset), reference in IOU.items():
        protocol = Protocol(
            "localization", task, tuple(reference), (1, 2, 3), subset, pairs="neighbour", hold_out_by="maps"
        )
        made = run(lens, protocol, limit=options.limit, batch=options.batch)
        for cell in _boxes(tables.cells(made)):
            known = dict(enumerate(reference.get(cell.method, ()), start=1)).get(cell.n)
            found.append({**_line(cell, known, "box all"), "nearest": _nearest(made, cell, known)})
    largest = Protocol("localization", "classification", ("gam",), (1, 2, 3), box="largest")
    for cell in _boxes(tables.cells(run(lens, largest, limit=options.limit, batch=options.batch))):
        found.append(_line(cell, LARGEST[cell.n - 1] if cell.n else None, "box largest"))
    return found


def densenet(options: Any) -> list[dict[str, Any]]:
    """Measure DenseNet-201 on ten classes, for every table of the paper. These images have no reference numbers."""
    lens = real.lens("densenet201").to(options.device)
    found = []
    for kind in ("localization", "objective"):
        for task, subset in (
            *((("classification", s)) for s in ("all", "25", "10")),
            ("cosine", "all"),
            ("dot", "all"),
        ):
            if kind == "localization" or subset == "all":
                protocol = Protocol(kind, task, METHODS, (1, 2, 3), subset)
                made = run(lens, protocol, limit=options.limit, batch=options.batch, data="imagenette")
                name = "box all" if kind == "localization" else "logit, black"
                wanted = ("IoU", "ADP", "PIC")
                found += [_line(cell, None, name) for cell in tables.cells(made) if cell.metric in wanted]
    return found


def _boxes(cells: list[tables.Cell]) -> list[tables.Cell]:
    return [cell for cell in cells if cell.metric == "IoU"]


def _nearest(made: results.Run, cell: tables.Cell, known: float | None) -> float | None:
    """Our IoU closest to the reference, at the best threshold of the hold-out or one next to it."""
    if known is None:
        return None
    columns = made.groups[cell.method, cell.n]
    held, grid = columns["held_out"], 100 * columns["iou"].astype(float)
    best = np.nanmean(grid[held], axis=0).argsort()[-2:]
    return float(min((np.nanmean(grid[~held][:, at]) for at in best), key=lambda value: abs(value - known)))


def objective(lens: Lens, options: Any) -> list[dict[str, Any]]:
    found = []
    for task, fill in dict.fromkeys((task, fill) for task, fill, _ in OBJECTIVE):
        methods = (*METHODS, LITERAL) if task == "dot" else METHODS
        protocol = Protocol("objective", task, methods, (1, 2), fill=fill, pairs="neighbour")
        made = run(lens, protocol, limit=options.limit, batch=options.batch)
        for confidence in ("logit", "probability") if task == "classification" else ("similarity",):
            reference = OBJECTIVE.get((task, fill, confidence), {})
            for cell in tables.cells(made, confidence=confidence):
                known = reference.get(cell.method, ())
                place = 2 * max(cell.n - 1, 0) + (cell.metric == "PIC")
                found.append(_line(cell, dict(enumerate(known)).get(place), f"{confidence}, {fill}"))
    return found


def views(options: Any) -> list[dict[str, Any]]:
    found = []
    lens = real.lens("resnet50").to(options.device)
    for name, looks, n, reference in VIEWS:
        protocol = Protocol("localization", "classification", ("gam",), (n,), views=looks)
        for cell in tables.cells(run(lens, protocol, limit=options.limit, batch=options.batch)):
            if cell.metric == "IoU" and cell.n:
                found.append(_line(cell, reference, name))
    lens.transform = lens.transform.scaled(2.0)
    for box, reference in (("all", 58.17), ("largest", 60.08)):
        protocol = Protocol("localization", "classification", ("gam",), (1,), box=box)
        for cell in tables.cells(run(lens, protocol, limit=options.limit, batch=max(1, options.batch // 2))):
            if cell.metric == "IoU" and cell.n:
                found.append(_line(cell, reference, f"448 px, n=1, box {box}"))
    return found


def _line(cell: tables.Cell, reference: float | None, protocol: str) -> dict[str, Any]:
    return {
        "task": cell.setting.task, "subset": cell.setting.subset, "protocol": protocol, "metric": cell.metric, "method": cell.method,
        "n": cell.n, "ours": round(cell.value.mean, 2), "low": round(cell.value.low, 2), "high": round(cell.value.high, 2),
        "threshold": cell.threshold, "reference": reference, "paper": cell.paper, "items": cell.value.n,
    }  # fmt: skip


def show(lines: list[dict[str, Any]]) -> str:
    """A Markdown table with the difference to the reference in the last column."""
    text = "| task | subset | protocol | metric | method | n | ours | 95 % | t | reference | difference | at its t | paper |\n"
    text += "| --- " * 13 + "|\n"
    for line in lines:
        known = line["reference"]
        difference = "" if known is None else f"{line['ours'] - known:+.2f}"
        near = line.get("nearest")
        closest = "" if known is None or near is None else f"{near - known:+.2f}"
        threshold = "" if line["threshold"] is None else f"{line['threshold']:.2f}"
        text += (
            f"| {line['task']} | {line['subset']} | {line['protocol']} | {line['metric']} | {line['method']} | "
            f"{line['n'] or ''} | {line['ours']:.2f} | {line['low']:.1f} to {line['high']:.1f} | {threshold} | "
            f"{'' if known is None else known} | {difference} | {closest} | {line['paper'] or ''} |\n"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=["localization", "objective", "views", "densenet"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the lines to this file")
    parser.epilog = "example: python benchmarks/reproduce.py --parts localization --limit 100"
    options = parser.parse_args()
    lens = real.lens("resnet50").to(options.device)
    lines: list[dict[str, Any]] = []
    for part in options.parts:
        lines += {"localization": lambda: localization(lens, options), "objective": lambda: objective(lens, options),
                  "views": lambda: views(options), "densenet": lambda: densenet(options)}[part]()  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(lines, indent=1))
    print(show(lines))


if __name__ == "__main__":
    main()
