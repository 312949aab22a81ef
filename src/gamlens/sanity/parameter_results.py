"""The files that parameter randomisation writes: tables, curves, and one strip of pictures per image."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from gamlens import render
from gamlens.evaluation.table_files import TextTable, comma_separated, draw_charts, write_files
from gamlens.explanation import file_stem
from gamlens.metrics import SIMILARITIES
from gamlens.sanity.compared_maps import title
from gamlens.sanity.data_randomisation import LabelComparison
from gamlens.sanity.parameter_randomisation import Outcome, Verdict, summary
from gamlens.sanity.randomise import MODES

IMAGE_SIDE = 224
LINE_KINDS: tuple[Literal["line", "dashed"], ...] = ("line", "dashed")  # one per mode of MODES
LEVEL_NAME = "level: 95 % of other images' maps lie below"


def short(name: str) -> str:
    """The last part of a block's name, or the last two if the last is a number.

    >>> short("features.denseblock3"), short("blocks.4")
    ('denseblock3', 'blocks.4')
    """
    *before, last = name.split(".")
    return ".".join([*before[-1:], last]) if last.isdigit() else last


def brief_table(outcome: Outcome) -> TextTable:
    """One line per method, for the terminal: the similarity with all weights random, and the level not to exceed."""
    lines = []
    for method in outcome.methods:
        mine = [verdict for verdict in outcome.verdicts if verdict.method == method]
        cells = (f"{v.left.mean:.2f} {'<=' if v.passes else '>'} {v.level:.2f}" for v in mine)
        lines.append((title(method), *cells, "passes" if outcome.passes(method) else "fails"))
    return ("method", *(entry.title for entry in SIMILARITIES.values()), "verdict"), lines


def verdict_table(outcome: Outcome) -> TextTable:
    """One line per method. For each measure it has two cells.

    The first is the similarity with all weights random and its interval. The second has the mean and the 95th
    percentile of the similarities between maps of different images.
    """
    header = ["method"]
    for entry in SIMILARITIES.values():
        header += [entry.title, "other images: mean / 95 %"]
    lines = []
    for method in outcome.methods:
        line, mine = [title(method)], [verdict for verdict in outcome.verdicts if verdict.method == method]
        for verdict in mine:
            left = verdict.left
            line += [
                f"{left.mean:.2f} [{left.low:.2f}, {left.high:.2f}]",
                f"{verdict.others:.2f} / {verdict.level:.2f}",
            ]
        lines.append((*line, in_words(mine)))
    return (*header, "verdict"), lines


def curve_table(outcome: Outcome) -> TextTable:
    """One line per method, mode and measure: the mean similarity to the original maps after each step."""
    lines = []
    for method in outcome.methods:
        for mode in MODES:
            for measure, entry in SIMILARITIES.items():
                values = (f"{value:.3f}" for value in outcome.curve(method, mode, measure))
                lines.append((title(method), mode, entry.title, *values))
    return ("method", "randomised", "measure", *(part.name for part in outcome.parts)), lines


def curves(outcome: Outcome) -> Image.Image:
    """One plot per method and measure: similarity to the original maps after each step, and the verdict's level."""
    steps = ("original", *(short(part.name) for part in outcome.parts))
    rows: dict[str, list[render.Chart]] = {}
    for verdict in outcome.verdicts:
        method, measure = verdict.method, verdict.measure
        lines = [
            render.Series.over_names(mode, [1.0, *outcome.curve(method, mode, measure)], kind, tone=tone)
            for tone, (mode, kind) in enumerate(zip(MODES, LINE_KINDS, strict=True), start=1)
        ]
        lines.append(render.Series.over_names(LEVEL_NAME, [verdict.level], "level", tone=0))
        low = min(0.0, *(value for line in lines for _, value in line.points))
        chart = render.Chart("", "", "", tuple(lines), names=steps, y_range=(low, 1.0))
        rows.setdefault(title(method), []).append(chart)
    return draw_charts(rows, [entry.title for entry in SIMILARITIES.values()], cell=360)


def strip(outcome: Outcome, row: int, image: Image.Image, *, mode: str = MODES[0]) -> Image.Image:
    """A picture of one item's maps: one row per method; the original map, then one column per step of `mode`."""
    steps = [("", 0), *((mode, step) for step in range(1, len(outcome.parts) + 1))]
    shown = image.resize((IMAGE_SIDE, IMAGE_SIDE))
    rows: list[tuple[render.Panel | None, ...]] = []
    for method in outcome.methods:
        maps = (render.colorize(outcome.shown[step][method][row].numpy()) for step in steps)
        pictures = (render.Panel(Image.fromarray(values)) for values in maps)
        rows.append((None if rows else render.Panel(shown), *pictures))
    heads = ("image", "original", *(f"+ {short(part.name)}" for part in outcome.parts))
    labels = tuple(title(method) for method in outcome.methods)
    name = f"{outcome.items[row]}: random weights, {mode} from the head down"
    return render.draw(render.Grid(tuple(rows), heads, labels, name), cell=152)


def write(outcome: Outcome, folder: Path, images: Sequence[Image.Image], about: Mapping[str, Any]) -> list[Path]:
    """Write sanity.json, table.md, table.csv, curves.csv, rows.csv, curves.png and strips/ into `folder`.

    Args:
        outcome: The results.
        folder: Where the files go.
        images: One image per item.
        about: What was run, added to sanity.json.

    Returns:
        The files that were written.
    """
    texts = {
        "sanity.json": json.dumps(summary(outcome, about), indent=2, ensure_ascii=False),
        "rows.csv": comma_separated(*_rows(outcome)),
    }
    tables = {"table.csv": verdict_table(outcome), "curves.csv": curve_table(outcome)}
    pictures = {"curves.png": curves(outcome)}
    for row in range(len(next(iter(outcome.shown["", 0].values())))):
        name = f"strips/{row:02d}-{file_stem(Path(outcome.items[row]).stem)}.png"
        pictures[name] = strip(outcome, row, images[row])
    return write_files(folder, texts, pictures, tables)


def _rows(outcome: Outcome) -> TextTable:
    header = ("method", "randomised", "step", "part", "item", *SIMILARITIES, "flat")
    lines = [
        (row.method, row.mode, str(row.step), row.part, row.item, *(f"{row.values[m]:.6f}" for m in SIMILARITIES),
         str(int(row.flat)))
        for row in outcome.rows
    ]  # fmt: skip
    return header, lines


def in_words(found: Sequence[Verdict | LabelComparison]) -> str:
    """`passes`, or `fails:` with the measures in which a method fails."""
    failed = [SIMILARITIES[one.measure].title for one in found if not one.passes]
    return f"fails: {', '.join(failed)}" if failed else "passes"
