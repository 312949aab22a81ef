"""What the ablation leaves on disk: a table a measure, a plot, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.evaluation.ablation import CONTROL, MEASURES, Key, Plan
from gamlens.evaluation.tables import Cell
from gamlens.evaluation.typeset import comma_separated, markdown
from gamlens.methods import METHODS
from gamlens.sanity.parameter_files import Cells

Table = Mapping[Key, Mapping[str, Cell]]


def cells_of(found: Table, plan: Plan, measure: str) -> Cells:
    """One line a method and fusion, one column an n; the controls below."""
    numbers = sorted({n for _, n, name in found if name != CONTROL})
    lines = []
    for method in plan.methods:
        for name in plan.fusions:
            values = (_shown(found.get((method, n, name), {}).get(measure)) for n in numbers)
            lines.append((METHODS[method].title, name, *values))
    for (control, _, name), mine in found.items():
        if name == CONTROL:
            lines.append((control, CONTROL, _shown(mine.get(measure)), *("" for _ in numbers[1:])))
    return (f"{measure} %", "blocks joined by", *(f"n = {n}" for n in numbers)), lines


def curves(found: Table, plan: Plan) -> Image.Image:
    """A plot a measure and fusion: a line a method against n, the centre prior as a dashed level."""
    numbers = sorted({n for _, n, name in found if name != CONTROL})
    rows: list[tuple[render.Panel, ...]] = []
    lines: list[render.Series] = []
    for measure in MEASURES:
        values = [cells[measure].value.mean for (_, n, _), cells in found.items() if n > 0]
        prior = found["centre", 0, CONTROL][measure].value.mean
        panels = []
        for name in plan.fusions:
            lines = [
                render.Series.over_names(
                    METHODS[method].title, [found[method, n, name][measure].value.mean for n in numbers], tone=tone
                )
                for tone, method in enumerate(plan.methods, start=1)
            ]
            lines.append(render.Series.over_names("centre prior (control)", [prior], "level", tone=0))
            chart = render.Chart("", "", "", tuple(lines), names=tuple(f"n = {n}" for n in numbers),
                                 y_range=(min(*values, prior), max(*values, prior)))  # fmt: skip
            panels.append(render.Panel(render.draw_chart(chart)))
        rows.append(tuple(panels))
    better = {"IoU": "IoU %, higher is better", "ADP": "ADP %, lower is better", "PIC": "PIC %, higher is better"}
    grid = render.Grid(tuple(rows), plan.fusions, tuple(better[measure] for measure in MEASURES))
    sheet = render.draw(grid, cell=320)
    return render.stacked([sheet, render.draw_legend(lines, width=sheet.width - 32)])


def records(found: Table) -> list[dict[str, Any]]:
    """The cells as JSON."""
    return [
        {"method": method, "n": n, "fuse": name, "measure": measure, "mean": cell.value.mean, "low": cell.value.low,
         "high": cell.value.high, "items": cell.value.n, "threshold": cell.threshold, "left_out": cell.left_out}
        for (method, n, name), cells in found.items() for measure, cell in cells.items()
    ]  # fmt: skip


def write(found: Table, plan: Plan, folder: Path, about: Mapping[str, Any]) -> list[Path]:
    """ablation.json, table.md, one CSV a measure and ablation.png; returns the files."""
    tables = {measure: cells_of(found, plan, measure) for measure in MEASURES}
    texts = {f"{measure.lower()}.csv": comma_separated(*table) for measure, table in tables.items()}
    texts["table.md"] = "\n".join(markdown(*table) for table in tables.values())
    described = {**about, "plan": vars(plan), "cells": records(found)}
    texts["ablation.json"] = json.dumps(described, indent=1, ensure_ascii=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        curves(found, plan).save(folder / "ablation.png")
    except OSError as error:
        raise GamlensError(f"Cannot write to {str(folder)!r}: {error.strerror or error}.") from error
    return [*(folder / name for name in texts), folder / "ablation.png"]


def _shown(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.value.mean:.2f} [{cell.value.low:.1f}, {cell.value.high:.1f}]"
