"""Tables 1 and 2 of the paper from runs: n=1, n=2, the improvement, and the number of the paper next to ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from gamlens import metrics
from gamlens.evaluation.contests import Contest as Contest
from gamlens.evaluation.contests import contest_rows as contest_rows
from gamlens.evaluation.contests import contests as contests
from gamlens.evaluation.paper_numbers import PaperNumber, paper_of
from gamlens.evaluation.protocol import usual_truth
from gamlens.evaluation.results import Run
from gamlens.evaluation.row_titles import method_title
from gamlens.evaluation.run_scores import WHOLE_IMAGES, of_pairs, resampled, sharing_pairs
from gamlens.evaluation.run_scores import Score as Score
from gamlens.evaluation.run_scores import Setting as Setting
from gamlens.evaluation.run_scores import check_confidence as check_confidence
from gamlens.evaluation.run_scores import check_real as check_real
from gamlens.evaluation.run_scores import needed as needed
from gamlens.evaluation.run_scores import scores as scores
from gamlens.metrics import Better, Difference, Interval


@dataclass(frozen=True)
class Cell:
    """One number of a table: a metric of a method at n, its interval, and the paper's number where there is one.

    Attributes:
        setting: The setting of the run.
        metric: The title of the metric.
        method: The method, or the name of a control.
        n: The number of blocks; 0 for a control.
        value: The mean and its interval.
        threshold: The threshold at which maps were cut, if the metric has one.
        left_out: How many items the mean leaves out; `why` says the reason.
        paper: The paper's number; None if it has none, or only a bound.
        paper_model: What the paper measured it with: the model, and the method if that is another one.
        paper_shown: The paper's number as text, such as "<1" for a bound; "" if it has none.
        errors: How many items of the run failed.
        run: The description of the run as JSON, which tells runs apart.
        better: Whether higher ("up") or lower ("down") is better.
        why: Why items are left out; see `MetricValues`.
        clusters: How many images, pairs or groups of pairs (`unit`) the counted items belong to. Intervals resample
            these.
        unit: What intervals resample, a name of RESAMPLED.
        sharing: How many pairs of the run share an image with another pair.
        base: The smallest n of the same method in the run.
        gain: The paired difference to the number at n = `base`, with its sign turned so that plus is better.
    """

    setting: Setting
    metric: str
    method: str
    n: int
    value: Interval
    threshold: float | None = None
    left_out: int = 0
    paper: float | None = None
    paper_model: str = ""
    errors: int = 0
    run: str = ""
    better: Better = "up"
    why: str = ""
    clusters: int = 0
    unit: str = WHOLE_IMAGES
    sharing: int = 0
    base: int = 0
    gain: Difference | None = None
    paper_shown: str = ""


def cells(run: Run, *, confidence: str = "logit", linked: bool = False) -> list[Cell]:
    """The numbers of a run. A run with random weights is an error: it must not enter a table of results.

    With `linked`, intervals of pairs resample groups of pairs that share images; see `run_scores.clusters`.
    """
    check_real(run)
    setting, of_run = Setting.of(run.about), json.dumps(run.about, sort_keys=True)
    items = [item for columns in list(run.groups.values())[:1] for item in columns["item"]]
    sharing = sharing_pairs(items) if of_pairs(run.about) else 0
    unit = resampled(run.about, linked=linked)
    cell = partial(Cell, setting, errors=len(run.errors), run=of_run, unit=unit, sharing=sharing)
    measured = {
        key: {score.metric.title: score for score in scores(run, columns, confidence=confidence, linked=linked)}
        for key, columns in run.groups.items()
    }
    found = []
    for (method, n), mine in measured.items():
        base = min(other for name, other in measured if name == method)
        for title, score in mine.items():
            metric, own = score.metric, score.found
            where = (setting.task, setting.data, setting.subset, title, setting.model)
            known = paper_of(*where, method, n) if usual_truth(run.about) else None
            number = cell(title, method, n, score.interval, own.threshold, own.left_out)
            less = measured[method, base].get(title) if n > base else None
            gain = None if less is None else score.gain_over(less)
            number = replace(number, better=metric.better, why=own.why, clusters=score.independent)
            found.append(_with_paper(replace(number, base=base, gain=gain), known))
    return found


def _with_paper(cell: Cell, known: PaperNumber | None) -> Cell:
    """The cell with the paper's number; if it is another method's, that is said with its model."""
    if known is None:
        return cell
    other = "" if known.method == cell.method else f", {method_title(known.method)}"
    value = None if known.below else known.value
    return replace(cell, paper=value, paper_model=f"{known.model}{other}", paper_shown=str(known))


def rows_of(found: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Arrange numbers as in the paper's tables, as a header and lines: one line per task, data, model and metric.

    A line has, for each method, its numbers at each n, the improvement from n = 1 to 2, the gain of each n over the
    smallest with its paired interval (`table_notes`), and the numbers of the paper; then the controls.
    """
    methods = list(dict.fromkeys(cell.method for cell in found if cell.n > 0))
    ns = sorted({cell.n for cell in found if cell.n > 0})
    controls = list(dict.fromkeys(cell.method for cell in found if cell.n == 0))
    header = ["task", "data", "model", "metric", "items", "errors"]
    for method in methods:
        title = method_title(method)
        header += [f"{title} n={n}" for n in ns] + gain_heads(ns, f"{title} ") + ["paper"]
    lines = []
    for mine in _lines(found):
        one = next(iter(mine.values()))
        line = [*one.setting.columns(), one.metric, str(one.value.n), str(one.errors)]
        for method in methods:
            line += _method_cells(mine, method, ns)
        lines.append((*line, *(shown(mine.get((control, 0))) for control in controls)))
    return (*header, *controls), lines


def tall(found: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Arrange the numbers of `rows_of` for a narrow screen: one line per metric and method."""
    ns = sorted({cell.n for cell in found if cell.n > 0})
    header = ("metric", "method", *(f"n={n}" for n in ns), *gain_heads(ns), "paper")
    lines = []
    for mine in _lines(found):
        metric = next(iter(mine.values())).metric
        for method, n in dict.fromkeys((method, min(n, 1)) for method, n in mine):
            if n:
                lines.append((metric, method_title(method), *_method_cells(mine, method, ns)))
            else:
                empty = [""] * (len(header) - 3)
                lines.append((metric, method_title(method), shown(mine[method, 0]), *empty))
    return header, lines


def gain_heads(ns: Sequence[int], method: str = "") -> list[str]:
    """The heads of the columns that compare the numbers of blocks, given in rising order."""
    return [*(["Impr."] if {1, 2} <= set(ns) else []), *(f"{method}n={n} vs n={ns[0]}" for n in ns[1:])]


def _lines(found: Sequence[Cell]) -> list[dict[tuple[str, int], Cell]]:
    """Group cells into lines of a table: {(method, n): cell} per line.

    Runs of the same setting share a line unless they have different numbers for the same method and n.
    """
    made: list[dict[tuple[str, int], Cell]] = []
    for key in dict.fromkeys((cell.setting, cell.metric) for cell in found):
        own = [cell for cell in found if (cell.setting, cell.metric) == key]
        lines: list[dict[tuple[str, int], Cell]] = []
        for run in dict.fromkeys(cell.run for cell in own):
            mine = {(cell.method, cell.n): cell for cell in own if cell.run == run}
            for line in lines:
                if all(line[at].value == mine[at].value for at in line.keys() & mine.keys()):
                    line |= {at: cell for at, cell in mine.items() if at not in line or cell.base < line[at].base}
                    break
            else:
                lines.append(mine)
        made += lines
    return made


def _method_cells(mine: dict[tuple[str, int], Cell], method: str, ns: list[int]) -> list[str]:
    line = [shown(mine.get((method, n))) for n in ns]
    if {1, 2} <= set(ns):
        one, two = mine.get((method, 1)), mine.get((method, 2))
        gain = metrics.improvement(one.value.mean, two.value.mean, one.better) if one and two else float("nan")
        line.append(f"{gain:+.1f} %" if gain == gain else "")
    line += [shown_gain(mine.get((method, n)), over=ns[0]) for n in ns[1:]]
    known = [mine[method, n] for n in (1, 2) if (method, n) in mine and mine[method, n].paper_shown]
    numbers = " / ".join(cell.paper_shown for cell in known)
    return [*line, f"{numbers} ({known[0].paper_model})" if known else ""]


def shown(cell: Cell | None) -> str:
    """A number with its interval; empty if there is no cell."""
    if cell is None:
        return ""
    return f"{cell.value.mean:.2f} [{cell.value.low:.1f}, {cell.value.high:.1f}]"


def shown_gain(cell: Cell | None, *, over: int | None = None) -> str:
    """The gain over the smallest n with its paired interval; empty if there is none, or if the smallest n is not `over`
    where that is given.
    """
    if cell is None or cell.gain is None or over not in (None, cell.base):
        return ""
    return f"{cell.gain.mean:+.2f} [{cell.gain.low:+.2f}, {cell.gain.high:+.2f}]"
