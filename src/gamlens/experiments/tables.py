"""Tables 1 and 2 of the paper from runs: n=1, n=2, Impr., the paper's number beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gamlens import metrics
from gamlens.errors import GamlensError
from gamlens.experiments.paper import paper
from gamlens.experiments.results import Run, groups
from gamlens.methods import METHODS
from gamlens.metrics import Better, Interval

BETTER: dict[str, Better] = {"ADP": "down", "PIC": "up", "IoU": "up", "MaxBoxAcc": "up", "Pointing": "up"}


@dataclass(frozen=True)
class Cell:
    """One number of a table: a metric of a method at n, its interval, and the paper's number where there is one."""

    task: str
    data: str
    subset: str
    model: str
    metric: str
    method: str
    n: int
    value: Interval
    threshold: float | None = None
    left_out: int = 0
    paper: float | None = None


def cells(run: Run, *, confidence: str = "logit") -> list[Cell]:
    """The numbers of a run. A run with random weights has none: it never enters a table of results."""
    if run.about["weights"] == "random":
        raise GamlensError(f"This run of {run.about['model']} was made with random weights: it is no result.")
    measure = _objective if run.about["protocol"]["kind"] == "objective" else _overlap
    found = []
    for (method, n), rows in groups(run):
        for metric, value, threshold, left_out in measure(rows, confidence):
            found.append(_cell(run, metric, method, n, value, threshold, left_out))
    return found


def _cell(run: Run, metric: str, method: str, n: int, value: Interval, threshold: float | None, left_out: int) -> Cell:
    about, protocol = run.about, run.about["protocol"]
    where = (protocol["task"], about["data"], protocol["subset"])
    known = paper(*where, metric, about["model"], method, n)
    return Cell(*where, about["model"], metric, method, n, value, threshold, left_out, known)


def _objective(rows: list[dict[str, Any]], confidence: str) -> list[tuple[str, Interval, float | None, int]]:
    name = "similarity" if rows[0].get("before_similarity") is not None else confidence
    before, after = (
        torch.tensor([row[f"{when}_{name}"] for row in rows], dtype=torch.float64) for when in ("before", "after")
    )
    drop = metrics.drop(before, after)
    left_out = int(drop.isnan().sum())
    increase = metrics.increase(before, after).double()
    return [
        ("ADP", metrics.bootstrap(100 * drop), None, left_out),
        ("PIC", metrics.bootstrap(100 * increase), None, 0),
    ]


def _overlap(rows: list[dict[str, Any]], confidence: str) -> list[tuple[str, Interval, float | None, int]]:
    """IoU at the threshold that is best on the held-out items, over the others."""
    grid = torch.tensor([row["iou"] for row in rows], dtype=torch.float64)
    held = torch.tensor([row["held_out"] for row in rows])
    rest = grid[~held] if bool(held.any()) else grid
    best = metrics.best_threshold(grid[held] if bool(held.any()) else grid)
    threshold = float(metrics.THRESHOLDS[best])
    found: list[tuple[str, Interval, float | None, int]] = [
        ("IoU", metrics.bootstrap(100 * rest[:, best]), threshold, int(held.sum()))
    ]
    if rows[0].get("pointing") is not None:
        hits = torch.tensor([row["pointing"] for row in rows], dtype=torch.float64)
        accuracy = metrics.max_box_acc(rest)
        share = metrics.box_hits(rest)[:, accuracy.index]
        found.append(("MaxBoxAcc", metrics.bootstrap(100 * share), None, int(held.sum())))
        found.append(("Pointing", metrics.bootstrap(100 * hits), None, 0))
    return found


def rows_of(found: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The paper's layout: one line a task, data, model and metric; for each method its n, Impr. and the paper's."""
    methods = list(dict.fromkeys(cell.method for cell in found if cell.n > 0))
    ns = sorted({cell.n for cell in found if cell.n > 0})
    controls = list(dict.fromkeys(cell.method for cell in found if cell.n == 0))
    header = ["task", "data", "model", "metric"]
    for method in methods:
        title = METHODS[method].title
        header += [f"{title} n={n}" for n in ns] + (["Impr."] if {1, 2} <= set(ns) else []) + ["paper"]
    lines = []
    for key in dict.fromkeys((c.task, c.data, c.subset, c.model, c.metric) for c in found):
        mine = {(c.method, c.n): c for c in found if (c.task, c.data, c.subset, c.model, c.metric) == key}
        data = key[1] if key[2] == "all" else f"{key[1]} ({key[2]} %)"
        line = [key[0], data, key[3], key[4]]
        for method in methods:
            line += _method_cells(mine, method, ns, key[4])
        lines.append((*line, *(_shown(mine.get((control, 0))) for control in controls)))
    return (*header, *controls), lines


def _method_cells(mine: dict[tuple[str, int], Cell], method: str, ns: list[int], metric: str) -> list[str]:
    line = [_shown(mine.get((method, n))) for n in ns]
    if {1, 2} <= set(ns):
        one, two = mine.get((method, 1)), mine.get((method, 2))
        gain = metrics.improvement(one.value.mean, two.value.mean, BETTER[metric]) if one and two else float("nan")
        line.append(f"{gain:+.1f} %" if gain == gain else "")
    known = [mine[method, n].paper for n in (1, 2) if (method, n) in mine]
    return [*line, " / ".join(f"{value:g}" for value in known if value is not None)]


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.value.mean:.2f} [{cell.value.low:.1f}, {cell.value.high:.1f}]"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = " | ".join("---" for _ in header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule.split(" | "), *lines)) + "\n"


def comma_separated(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([header, *lines])
    return out.getvalue()


def latex(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def line(parts: Sequence[str]) -> str:
        return " & ".join(part.replace("%", r"\%").replace("_", r"\_") for part in parts) + r" \\"

    body = "\n".join(line(parts) for parts in lines)
    columns = "llll" + "r" * (len(header) - 4)
    head = f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(header)}\n\\midrule\n"
    return f"{head}{body}\n\\bottomrule\n\\end{{tabular}}\n"
