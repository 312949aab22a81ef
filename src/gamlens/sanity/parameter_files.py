"""What a sanity check leaves on disk: tables, curves, a strip of pictures an image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.evaluation.typeset import comma_separated, markdown
from gamlens.explanation import file_stem
from gamlens.metrics import SIMILARITIES
from gamlens.sanity.maps import title
from gamlens.sanity.parameters import Outcome, summary
from gamlens.sanity.randomise import MODES

Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]
THUMB = 224


def short(name: str) -> str:
    """The end of a block's name that tells it from the others.

    >>> short("features.denseblock3"), short("blocks.4")
    ('denseblock3', 'blocks.4')
    """
    *before, last = name.split(".")
    return ".".join([*before[-1:], last]) if last.isdigit() else last


def brief_table(outcome: Outcome) -> Cells:
    """One line a method for the terminal: what is left of the similarity, and the level it must not exceed."""
    lines = []
    for method in outcome.methods:
        mine = [verdict for verdict in outcome.verdicts if verdict.method == method]
        cells = (f"{v.left.mean:.2f} {'<=' if v.passes else '>'} {v.level:.2f}" for v in mine)
        lines.append((title(method), *cells, "passes" if outcome.passes(method) else "fails"))
    return ("method", *(entry.title for entry in SIMILARITIES.values()), "verdict"), lines


def verdict_table(outcome: Outcome) -> Cells:
    """One line a method: what is left in each measure, with its interval, beside other images' mean and 95 %."""
    header = ["method"]
    for entry in SIMILARITIES.values():
        header += [entry.title, "other images: mean / 95 %"]
    lines = []
    for method in outcome.methods:
        line = [title(method)]
        failed = []
        for verdict in (v for v in outcome.verdicts if v.method == method):
            left = verdict.left
            line += [
                f"{left.mean:.2f} [{left.low:.2f}, {left.high:.2f}]",
                f"{verdict.others:.2f} / {verdict.level:.2f}",
            ]
            failed += [] if verdict.passes else [SIMILARITIES[verdict.measure].title]
        lines.append((*line, f"fails: {', '.join(failed)}" if failed else "passes"))
    return (*header, "verdict"), lines


def curve_table(outcome: Outcome) -> Cells:
    """One line a method, mode and measure: the mean similarity to the original after each step."""
    lines = []
    for method in outcome.methods:
        for mode in MODES:
            for measure, entry in SIMILARITIES.items():
                values = (f"{value.mean:.3f}" for value in outcome.curve(method, mode, measure))
                lines.append((title(method), mode, entry.title, *values))
    return ("method", "randomised", "measure", *(part.name for part in outcome.parts)), lines


def curves(outcome: Outcome) -> Image.Image:
    """A plot a method and measure: similarity to the original against what is random, and the level to fall to."""
    steps = ("original", *(short(part.name) for part in outcome.parts))
    rows: list[tuple[render.Panel, ...]] = []
    lines: list[render.Series] = []
    for method in outcome.methods:
        panels = []
        for measure in SIMILARITIES:
            means = {mode: [1.0, *(v.mean for v in outcome.curve(method, mode, measure))] for mode in MODES}
            lines = [
                render.Series.over_names(mode, means[mode], "line" if tone == 1 else "dashed", tone=tone)
                for tone, mode in enumerate(MODES, start=1)
            ]
            level = next(v.level for v in outcome.verdicts if (v.method, v.measure) == (method, measure))
            lines.append(
                render.Series.over_names("level: 95 % of other images' maps lie below", [level], "level", tone=0)
            )
            low = min(0.0, *(value for line in lines for _, value in line.points))
            chart = render.Chart("", "", "", tuple(lines), names=steps, y_range=(low, 1.0))
            panels.append(render.Panel(render.draw_chart(chart)))
        rows.append(tuple(panels))
    titles = tuple(entry.title for entry in SIMILARITIES.values())
    labels = tuple(title(method) for method in outcome.methods)
    sheet = render.draw(render.Grid(tuple(rows), titles, labels), cell=360)
    return render.stacked([sheet, render.draw_legend(lines, width=sheet.width - 32)])


def strip(outcome: Outcome, row: int, image: Image.Image, *, mode: str = MODES[0]) -> Image.Image:
    """One item's maps: the original, then one column a step; one line a method."""
    steps = [("", 0), *((mode, step) for step in range(1, len(outcome.parts) + 1))]
    shown = image.resize((THUMB, THUMB))
    rows = tuple(
        (
            render.Panel(shown) if method == outcome.methods[0] else None,
            *(render.Panel(_picture(outcome.shown[step][method][row])) for step in steps),
        )
        for method in outcome.methods
    )
    heads = ("image", "original", *(f"+ {short(part.name)}" for part in outcome.parts))
    labels = tuple(title(method) for method in outcome.methods)
    name = f"{outcome.items[row]}: random weights, {mode} from the head down"
    return render.draw(render.Grid(rows, heads, labels, name), cell=152)


def write(outcome: Outcome, folder: Path, images: Sequence[Image.Image], about: Mapping[str, Any]) -> list[Path]:
    """sanity.json, table.md, table.csv, rows.csv, curves.png and strips/; returns the files. `images`: one an item."""
    try:
        (folder / "strips").mkdir(parents=True, exist_ok=True)
        files = {"sanity.json": json.dumps(summary(outcome, about), indent=2, ensure_ascii=False)}
        tables = [verdict_table(outcome), curve_table(outcome)]
        files["table.md"] = "\n".join(markdown(*table) for table in tables)
        files["table.csv"] = comma_separated(*tables[0])
        files["curves.csv"] = comma_separated(*tables[1])
        files["rows.csv"] = comma_separated(*_rows(outcome))
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        curves(outcome).save(folder / "curves.png")
        kept = len(next(iter(outcome.shown["", 0].values())))
        strips = [
            folder / "strips" / f"{row:02d}-{file_stem(Path(outcome.items[row]).stem)}.png" for row in range(kept)
        ]
        for row, place in enumerate(strips):
            strip(outcome, row, images[row]).save(place)
    except OSError as error:
        raise GamlensError(f"Cannot write to {str(folder)!r}: {error.strerror or error}.") from error
    return [*(folder / name for name in files), folder / "curves.png", *strips]


def _rows(outcome: Outcome) -> Cells:
    header = ("method", "randomised", "step", "part", "item", *SIMILARITIES, "flat")
    lines = [
        (row.method, row.mode, str(row.step), row.part, row.item, *(f"{row.values[m]:.6f}" for m in SIMILARITIES),
         str(int(row.flat)))
        for row in outcome.rows
    ]  # fmt: skip
    return header, lines


def _picture(values: Any) -> Image.Image:
    return Image.fromarray(render.colorize(values.numpy()))
