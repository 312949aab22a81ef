"""The sections of a report that are tables and charts."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch

from gamlens import metrics
from gamlens.evaluation import tables
from gamlens.evaluation.metric_columns import left_out_note
from gamlens.evaluation.results import Run
from gamlens.evaluation.row_titles import method_title
from gamlens.evaluation.table_notes import table_notes
from gamlens.render import Block, Chart, Charts, Series, Table, TableCell, Text
from gamlens.report.paired_values import Column, ItemKey, aligned, difference, gains

POINTS, BINS, ERRORS = 800, 5, 200  # points in a scatter plot at most, groups by object size, errors listed at most
SMALL = 20  # how many items of known object size are needed to show gains by size


def numbers(run: Run, *, confidence: str) -> list[Block]:
    """A table with one line per method and n, controls included, and one column per metric with its interval."""
    found = tables.cells(run, confidence=confidence)
    heads = {cell.metric: f"{cell.metric} {'↓' if cell.better == 'down' else '↑'}" for cell in found}
    lead = next(iter(heads))
    papers = " / ".join(dict.fromkeys(cell.metric for cell in found if cell.paper_shown))
    cut = any(cell.threshold is not None for cell in found if cell.metric == lead)
    gained = [name for name in heads if any(cell.gain is not None for cell in found if cell.metric == name)]
    header = ["method", "n", *heads.values(), *(f"{name}: gain over smallest n" for name in gained)]
    header += [*([f"{lead}'s threshold"] if cut else []), "items"]
    header += [f"the paper's {papers}"] if papers else []
    lines: list[tuple[TableCell, ...]] = []
    for method, n in dict.fromkeys((cell.method, cell.n) for cell in found):
        mine = {cell.metric: cell for cell in found if (cell.method, cell.n) == (method, n)}
        first = mine[lead]
        at = ["" if first.threshold is None else f"{first.threshold:.2f}"] if cut else []
        known = [cell for cell in mine.values() if cell.paper_shown]
        paper = " / ".join(cell.paper_shown for cell in known) + (f" ({known[0].paper_model})" if known else "")
        title = method_title(method)
        values = [tables.shown(mine.get(name)) for name in heads]
        values += [tables.shown_gain(mine.get(name)) for name in gained]
        lines.append((title, str(n) if n else "", *values, *at, first.value.n, *([paper] if papers else [])))
    said = [*table_notes(found), left_out_note(run.about), "Click a column head to sort."]
    return [Table(tuple(header), tuple(lines)), *map(Text, filter(None, said))]


def thresholds(found: Sequence[Column]) -> list[Block]:
    """A chart of the mean against the threshold; empty if the metric has no thresholds.

    Each method has a colour, and its line is dashed for n = 1; controls are grey.
    """
    tones = {name: number for number, name in enumerate(dict.fromkeys(c.method for c in found if c.n), start=1)}
    lines = []
    for column in found:
        if column.grid is None:
            return []
        grid = column.grid[column.used]
        means = grid[~grid.isnan().any(dim=1)].mean(dim=0).tolist()
        plain = column.method in ("blank", "ones")
        kind: Literal["line", "dashed", "dotted"] = "dotted" if plain else "dashed" if column.n < 2 else "line"
        ring = metrics.THRESHOLDS.index(column.threshold) if column.threshold in metrics.THRESHOLDS else None
        points = tuple(zip(metrics.THRESHOLDS, means, strict=True))
        lines.append(Series(column.name, points, kind, tones.get(column.method, 0), ring=ring if column.n else None))
    caption = "A ring marks the threshold that the table uses: the best on the held-out items."
    label = f"mean {found[0].metric.title}, %"
    return [Chart("", "threshold", label, tuple(lines), caption, x_range=(0.0, 1.0))]


def scatter(base: Column, others: Sequence[Column]) -> list[Block]:
    """The reference against each of the others, item by item, and a table of the paired differences."""
    charts, lines = [], []
    for number, other in enumerate(others, start=2):
        _, mine, theirs = aligned(base, other)
        chosen = sorted(random.Random(0).sample(range(len(mine)), min(POINTS, len(mine))))
        points = tuple((float(theirs[place]), float(mine[place])) for place in chosen)
        gap = difference(base, other)
        drawn = f"{len(points)} of {len(mine)} items drawn, the same for every chart" if len(points) < len(mine) else ""
        ends = _ends([*mine.tolist(), *theirs.tolist()])
        series = (Series(base.name, points, "dots", number),)
        charts.append(Chart(f"{base.name} against {other.name}", other.name, base.name, series, drawn,
                            x_range=ends, y_range=ends, diagonal=True))  # fmt: skip
        lines.append((other.name, _signed(gap), gap.wins, gap.losses, gap.ties, f"{gap.p:.2g}"))
    if not charts:
        return [Text("There is no other method or n to compare with.")]
    side = "above" if base.sign > 0 else "below"
    header = ("against", f"{base.name}: gain", "better", "worse", "equal", "p (sign test)")
    note = f"Each point is one item by its {base.item_title} in %; {base.name} is better on those {side} the line."
    counted = (
        "Gains are paired, in points, with 95 % intervals. Intervals and the counts of better, worse and equal are by "
        "whole images (all labels of an image together) or whole pairs (both maps of a pair together)."
    )
    return [Text(note), Charts(tuple(charts)), Table(header, tuple(lines)), Text(counted)]


def sizes(base: Column, others: Sequence[Column], areas: Mapping[ItemKey, float]) -> list[Block]:
    """The gain of the reference over each of the others, for five equal groups of items by object size."""
    known = sorted((areas[key], key) for key in base.keys if key in areas)
    if len(known) < SMALL:
        return [Text(f"{len(known)} items have an object of known size: {SMALL} are needed to show gains by size.")]
    edges = [round(place * len(known) / BINS) for place in range(BINS + 1)]
    parts = [known[start:end] for start, end in pairwise(edges)]
    names = tuple(f"{100 * part[0][0]:.0f}-{100 * part[-1][0]:.0f} %" for part in parts)
    series, cells = [], []
    for number, other in enumerate(others, start=2):
        gain, own = gains(base, other), base.cluster_of
        found = [_mean_gain({key: gain[key] for _, key in part if key in gain}, own) for part in parts]
        shift = min(0.12, 0.8 / len(others)) * (number - 2 - (len(others) - 1) / 2)  # marks stay at their group's name
        points = tuple((place + shift, one.mean) for place, one in enumerate(found))
        spread = tuple((one.low, one.high) for one in found)
        series.append(Series(f"over {other.name}", points, "marks", number, spread))
        cells.append(list(map(_signed, found)))
    lines: list[tuple[TableCell, ...]] = [
        (name, len(part), *gained) for name, part, *gained in zip(names, parts, *cells, strict=True)
    ]
    header = ("object, share of the image", "items", *(f"gain {one.name}" for one in series))
    chart = Chart(
        "", "object's share of the image", f"gain of {base.name}, points", tuple(series), names=names, zero=True
    )
    return [chart, Table(header, tuple(lines))]


def _mean_gain(gain: Mapping[ItemKey, float], clusters: Mapping[ItemKey, str]) -> metrics.Interval:
    """The mean gain and its interval, for which whole clusters are resampled."""
    values = torch.tensor(list(gain.values()), dtype=torch.float64)
    return metrics.bootstrap(values, clusters=[clusters[key] for key in gain])


def errors(run: Run) -> list[Block]:
    """The items that could not be measured, and why."""
    found = run.errors
    if not found:
        return [Text("None: every item was read and measured.")]
    lines = tuple((str(row["item"]), str(row["error"])) for row in found[:ERRORS])
    more = f" The first {ERRORS} of {len(found)} are shown." if len(found) > ERRORS else ""
    return [
        Text(f"**{len(found)}** items could not be measured; they count nowhere.{more}"),
        Table(("item", "why"), lines),
    ]


def protocol(run: Run) -> list[Block]:
    """A table of everything that was chosen: model, data, protocol and versions; and the command."""
    about = dict(run.about)
    command = str(about.pop("command", "") or "")
    parts = {"": about, "protocol: ": about.pop("protocol", {}), "version of ": about.pop("versions", {})}
    lines = [(kind + name, _plain(value)) for kind, part in parts.items() for name, value in part.items()]
    said = f"`{command}`" if command else "The command was not recorded with this run."
    return [Text(said), Table(("what", "value"), tuple(lines))]


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None else str(value)


def _signed(found: metrics.Interval | metrics.Difference) -> str:
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The range of both axes: 0 to 100, or up to the 98th percentile of the values if that is above 100."""
    if max(values, default=100.0) <= 100:
        return 0.0, 100.0
    return 0.0, max(100.0, sorted(values)[int(0.98 * (len(values) - 1))])
