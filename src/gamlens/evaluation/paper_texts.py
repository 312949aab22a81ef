"""The texts of a filled table, for Markdown and LaTeX alike: numbers, improvements, notes, and the appendix."""

import math
from dataclasses import dataclass

from gamlens import metrics
from gamlens.evaluation.paper_layout import paper_networks
from gamlens.evaluation.paper_numbers import PaperNumber
from gamlens.evaluation.paper_table import FilledLine, FilledTable
from gamlens.evaluation.table_files import TextTable
from gamlens.evaluation.table_notes import sharing_notes
from gamlens.evaluation.tables import Cell
from gamlens.methods import METHODS
from gamlens.metrics import Better

NOTHING = "–"  # stands where there is no number
ARROWS = {"up": "↑", "down": "↓"}
APPENDIX_NAMES = ("Task", "Data", "Model", "Metric", "Items")
APPENDIX_NOTE = (
    "Means with 95 % intervals that resample whole images and whole pairs; @ is the threshold. It is the best one for "
    "the held-out items; where none are held out, and always for MaxBoxAcc, it is the best one for the counted items. "
    "Gain is n=2 over n=1 on the same maps, in points, with its paired interval; plus is better. Items are the values "
    "that are counted and, after a plus, those that are left out, such as the hold-out. Controls are maps without a "
    "model."
)
BORROWED_MARK = "†"  # beside a number of the paper that was measured with another method


@dataclass(frozen=True)
class NumberPair:
    """What stands in one place of a table: our number, whether it is the best of its line, and the paper's number."""

    ours: str
    best: bool
    paper: str


def heads(filled: FilledTable) -> list[str]:
    """The heads of the columns of one method: n=1, n=2, Impr."""
    return [f"n={n}" for n in filled.n] + (["Impr."] if filled.has_gain else [])


def second_column(filled: FilledTable, line: FilledLine) -> NumberPair:
    """What the second column says of a line: its metric with an arrow, or our model and that of the paper."""
    if filled.table.column == "metric":
        return NumberPair(f"{line.line.metric} ({ARROWS[line.better]})", False, "")
    return NumberPair(line.model or NOTHING, False, line.line.network.title)


def pairs_of(filled: FilledTable, line: FilledLine) -> list[NumberPair]:
    """Our numbers and the paper's for the columns of a line: for each method its n, then its improvement."""
    digits, found = filled.table.digits, []
    best = line.best(digits)
    for method in filled.methods:
        for n in filled.n:
            cell, known = line.cells.get((method, n)), line.paper.get((method, n))
            mark = BORROWED_MARK if filled.is_borrowed(known, method) else ""
            ours = number_text(cell.value.mean, digits) if cell else NOTHING
            found.append(NumberPair(ours, (method, n) in best, paper_text(known, digits) + mark))
        if filled.has_gain:
            found.append(NumberPair(our_gain(line, method), False, paper_gain(line, method)))
    return found


def printed_sections(filled: FilledTable) -> dict[str, TextTable]:
    """The measured lines by section, for a terminal: our numbers at each n per method, the paper's below them."""
    ns, each = len(filled.n), len(heads(filled))
    header = ("data", filled.table.column, *(METHODS[method].title for method in filled.methods))
    found: dict[str, TextTable] = {}
    for line in filled.lines:
        pairs = pairs_of(filled, line)
        parts = [pairs[start : start + ns] for start in range(0, len(pairs), each)]
        cells = [("/".join(p.ours for p in part), "/".join(p.paper for p in part if p.paper)) for part in parts]
        shown = [f"{ours}\n({paper})" if paper else ours for ours, paper in cells]
        if line.model:
            row = (line.line.data, second_column(filled, line).ours, *shown)
            found.setdefault(line.line.section.title, (header, []))[1].append(row)
    return found


def number_text(value: float, digits: int) -> str:
    """A number with so many digits after the point; a dash where there is none."""
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}"


def paper_text(number: PaperNumber | None, digits: int) -> str:
    """A number of the paper; "" if there is none."""
    if number is None:
        return ""
    return f"< {number.value:g}" if number.below else number_text(number.value, digits)


def gain_of(one: float, two: float, better: Better) -> str:
    """The improvement from `one` to `two` in percent, such as +1.4 %; a dash where it is not defined."""
    gain = metrics.improvement(one, two, better)
    return NOTHING if math.isnan(gain) else f"{round(gain, 1) + 0.0:+.1f} %"  # + 0.0: never -0.0


def our_gain(line: FilledLine, method: str) -> str:
    """The improvement of a method from n = 1 to n = 2 in a line; a dash where it was not measured."""
    one, two = line.cells.get((method, 1)), line.cells.get((method, 2))
    return gain_of(one.value.mean, two.value.mean, line.better) if one and two else NOTHING


def paper_gain(line: FilledLine, method: str) -> str:
    """The improvement by the paper's numbers, computed like ours; "" where it has none, or only bounds."""
    one, two = line.paper.get((method, 1)), line.paper.get((method, 2))
    if one is None or two is None:
        return ""
    return NOTHING if one.below or two.below else gain_of(one.value, two.value, line.better)


def notes(filled: FilledTable) -> list[str]:
    """What a reader of the table must know, in sentences."""
    table = filled.table
    arrows = ", ".join(f"{metric} {ARROWS[_better_of(filled, metric)]}" for metric in table.metrics)
    networks = paper_networks()
    measured = {line.line.network.name: line.model for line in filled.lines if line.model}
    used = "; ".join(
        f"{model} for {networks[name].title} on {networks[name].short}" for name, model in measured.items()
    )
    found = [
        f"{arrows}, in percent; an arrow says whether higher or lower is better. The best of each line is bold. The "
        "number in brackets is the paper's (Barkan et al., CIKM 2021).",
        f"Measured networks: {used or 'none'}. The paper's numbers are those of its own networks.",
    ]
    if filled.has_gain:
        found.append(
            "Impr. is 100 (v2 - v1) / v1 with the sign turned so that plus is better. The one in brackets is computed "
            "in the same way from the paper's numbers, since the paper's own column does not always agree with them."
        )
    found += filter(None, [limit_note(filled)])
    if filled.protocol:
        found.append(f"Protocol: {filled.protocol}.")
    if filled.borrowed:
        found.append(f"{BORROWED_MARK} The paper ran the literal form of this method, with exp(s) in float32.")
    failed = {(line.line.network, line.line.section): line.errors for line in filled.lines if line.line.subset == "all"}
    errors = sum(failed.values())
    if errors:
        found.append(f"Items that could not be measured and are left out: {errors}.")
    found += sharing_notes([cell for line in filled.appendix for cell in line.cells.values()])
    return found + [f"Not measured: {missing.what}. {missing.why}" for missing in filled.missing]


def limit_note(filled: FilledTable) -> str:
    """That a table is of a part of the items; "" if it is of all."""
    return f"At most {filled.limit} items per line (--limit): not the paper's data." if filled.limit else ""


def _better_of(filled: FilledTable, metric: str) -> str:
    return next(line.better for line in filled.lines if line.line.metric == metric)


@dataclass(frozen=True)
class AppendixLine:
    """A line of the appendix: its names and counts, and its numbers, each with what stands below it."""

    names: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...]


def appendix_heads(filled: FilledTable) -> list[str]:
    """The heads of the columns of one method in the appendix."""
    return [f"n={n}" for n in filled.n] + (["gain"] if filled.has_gain else [])


def appendix_lines(filled: FilledTable) -> list[AppendixLine]:
    """The appendix: one line per line of the table and metric, with intervals, gains and controls."""
    found = []
    for line in filled.appendix:
        where, numbers = line.line, []
        for method in filled.methods:
            numbers += [_with_interval(line.cells.get((method, n))) for n in filled.n]
            if filled.has_gain:
                gain = line.gain(method)
                shown = (f"{gain.mean:+.2f}", f"[{gain.low:+.2f}, {gain.high:+.2f}]") if gain else (NOTHING, "")
                numbers.append(shown)
        controls = (line.cells.get((name, 0)) for name in filled.controls)
        numbers += [(number_text(cell.value.mean, 2) if cell else NOTHING, "") for cell in controls]
        names = (where.section.title, where.data, line.model, f"{where.metric} {ARROWS[line.better]}", _counts(line))
        found.append(AppendixLine(names, tuple(numbers)))
    return found


def _counts(line: FilledLine) -> str:
    """How many values the line's means are of, and how many are left out."""
    cells = [cell for (_, n), cell in line.cells.items() if n]
    left, counted = max(cell.left_out for cell in cells), max(cell.value.n for cell in cells)
    return f"{counted} (+{left})" if left else str(counted)


def _with_interval(cell: Cell | None) -> tuple[str, str]:
    """A number with its threshold, and its interval."""
    if cell is None or not cell.value.n:
        return NOTHING, ""
    threshold = "" if cell.threshold is None else f" @{cell.threshold:.2f}"
    return f"{cell.value.mean:.2f}{threshold}", f"[{cell.value.low:.1f}, {cell.value.high:.1f}]"
