"""Tables 1 and 2 of the paper from runs: n=1, n=2, the improvement, and the number of the paper next to ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.errors import GamlensError
from gamlens.evaluation.metric_columns import metrics_of, needs_positive, table_columns
from gamlens.evaluation.paper_numbers import PaperNumber, paper_of
from gamlens.evaluation.protocol import usual_truth, variant
from gamlens.evaluation.results import Columns, Run
from gamlens.methods import METHODS
from gamlens.metrics import Better, Difference, Interval, Metric, MetricValues, StoredColumns

CONFIDENCE_KINDS = ("logit", "probability")


@dataclass(frozen=True)
class Setting:
    """The setting of a run: task, data and model; `variant` names the choices that are not the defaults."""

    task: str
    data: str
    subset: str
    model: str
    variant: str

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Setting:
        """The setting of a run, from its description."""
        protocol = about["protocol"]
        return cls(protocol["task"], about["data"], protocol["subset"], about["model"], variant(about))

    def columns(self) -> tuple[str, str, str]:
        """The task; the data with its subset and variant, such as `ilsvrc (25 %), views=flip`; the model."""
        data = self.data if self.subset == "all" else f"{self.data} ({self.subset} %)"
        return self.task, f"{data}, {self.variant}" if self.variant else data, self.model


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
    paper_shown: str = ""


@dataclass(frozen=True, eq=False)
class Score:
    """A metric of one method and n: its values in percent for every item."""

    metric: Metric
    found: MetricValues

    @property
    def counted(self) -> Tensor:
        """The values of the items that the table counts: (M,)."""
        return self.found.values if self.found.counted is None else self.found.values[self.found.counted]


def needed() -> tuple[str, ...]:
    """The columns that tables are made from, for `results.read`."""
    return ("held_out", *table_columns())


def cells(run: Run, *, confidence: str = "logit") -> list[Cell]:
    """The numbers of a run. A run with random weights is an error: it must not enter a table of results."""
    check_real(run)
    setting = Setting.of(run.about)
    cell = partial(Cell, setting, errors=len(run.errors), run=json.dumps(run.about, sort_keys=True))
    found = []
    for (method, n), columns in run.groups.items():
        for score in scores(run, columns, confidence=confidence):
            metric, own = score.metric, score.found
            where = (setting.task, setting.data, setting.subset, metric.title, setting.model)
            known = paper_of(*where, method, n) if usual_truth(run.about) else None
            number = cell(metric.title, method, n, metrics.bootstrap(score.counted), own.threshold, own.left_out)
            number = replace(number, better=metric.better, why=own.why)
            found.append(number if known is None else _with_paper(number, known))
    return found


def _with_paper(cell: Cell, known: PaperNumber) -> Cell:
    """The cell with the paper's number; if it is another method's, that is said with its model."""
    other = "" if known.method == cell.method else f", {METHODS[known.method].title}"
    value = None if known.below else known.value
    return replace(cell, paper=value, paper_model=f"{known.model}{other}", paper_shown=str(known))


def check_confidence(name: str) -> None:
    if name not in CONFIDENCE_KINDS:
        raise GamlensError(f"The confidence is {' or '.join(CONFIDENCE_KINDS)}, not {name!r}.")


def check_real(run: Run) -> None:
    if run.about["weights"] == "random":
        raise GamlensError(f"This run of {run.about['model']} was made with random weights, so it has no results.")


def scores(run: Run, columns: Columns, *, confidence: str = "logit") -> list[Score]:
    """Every metric of the run's kind, item by item, in percent.

    A metric of which the run has no column is left out: it was not asked for, or came after the run was made. So is one
    that has no meaning for the run's score (`left_out_note`).
    """
    senseless, found = needs_positive(run.about), []
    for metric in metrics_of(run.about["protocol"]["kind"]).values():
        own = {name: torch.from_numpy(columns[name]) for name in metric.columns if name in columns}
        if own and metric.title not in senseless:
            held = torch.from_numpy(columns["held_out"])
            found.append(Score(metric, metric.value(StoredColumns(own, held, confidence))))
    return found


@dataclass(frozen=True)
class Contest:
    """One method against another, item by item, at the same n."""

    setting: Setting
    metric: str
    n: int
    method: str
    other: str
    difference: Difference


def contests(run: Run, *, first: str = "gam", confidence: str = "logit") -> list[Contest]:
    """Compare `first` item by item with every other method at the same n, and with every control (whose n is 0)."""
    check_real(run)
    measured = {
        key: {score.metric.title: score for score in scores(run, columns, confidence=confidence)}
        for key, columns in run.groups.items()
    }
    found = []
    for (method, n), mine in measured.items():
        for (other, m), theirs in measured.items() if method == first else ():
            if other != first and m in (n, 0):
                for title in (title for title in mine if title in theirs):
                    a, b = mine[title], theirs[title]
                    difference = metrics.paired(a.counted, b.counted, better=a.metric.better)
                    found.append(Contest(Setting.of(run.about), title, n, method, other, difference))
    return found


def contest_rows(found: Sequence[Contest]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per contest: the mean difference and its interval, wins, losses, ties and p of the sign test."""
    header = ("task", "data", "model", "metric", "n", "method", "against", "difference", "won", "lost", "tied", "p")
    lines = []
    for contest in found:
        d = contest.difference
        names = [METHODS[name].title if name in METHODS else name for name in (contest.method, contest.other)]
        shown = f"{d.mean:+.2f} [{d.low:+.1f}, {d.high:+.1f}]"
        counts = (str(d.wins), str(d.losses), str(d.ties), f"{d.p:.2g}")
        lines.append((*contest.setting.columns(), contest.metric, str(contest.n), *names, shown, *counts))
    return header, lines


def rows_of(found: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Arrange numbers as in the paper's tables, as a header and lines: one line per task, data, model and metric.

    A line has, for each method, its numbers at each n, the improvement from n = 1 to 2 and the numbers of the paper;
    then the controls.
    """
    methods = list(dict.fromkeys(cell.method for cell in found if cell.n > 0))
    ns = sorted({cell.n for cell in found if cell.n > 0})
    controls = list(dict.fromkeys(cell.method for cell in found if cell.n == 0))
    header = ["task", "data", "model", "metric", "items", "errors"]
    for method in methods:
        title = METHODS[method].title
        header += [f"{title} n={n}" for n in ns] + (["Impr."] if {1, 2} <= set(ns) else []) + ["paper"]
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
    gain = {1, 2} <= set(ns)
    header = ("metric", "method", *(f"n={n}" for n in ns), *(("Impr.",) if gain else ()), "paper")
    lines = []
    for mine in _lines(found):
        metric = next(iter(mine.values())).metric
        for method, n in dict.fromkeys((method, min(n, 1)) for method, n in mine):
            if n:
                lines.append((metric, METHODS[method].title, *_method_cells(mine, method, ns)))
            else:
                empty = [""] * (len(header) - 3)
                lines.append((metric, f"{method} (control)", shown(mine[method, 0]), *empty))
    return header, lines


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
                    line |= mine
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
    known = [mine[method, n] for n in (1, 2) if (method, n) in mine and mine[method, n].paper_shown]
    numbers = " / ".join(cell.paper_shown for cell in known)
    return [*line, f"{numbers} ({known[0].paper_model})" if known else ""]


def shown(cell: Cell | None) -> str:
    """A number with its interval; empty if there is no cell."""
    if cell is None:
        return ""
    return f"{cell.value.mean:.2f} [{cell.value.low:.1f}, {cell.value.high:.1f}]"
