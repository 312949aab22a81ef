"""A table of the paper filled in: our numbers, the improvement, the paper's numbers, and what an appendix needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gamlens.errors import readable
from gamlens.evaluation import tables
from gamlens.evaluation.paper_layout import PaperLine, PaperTable
from gamlens.evaluation.paper_numbers import PaperNumber, paper_of
from gamlens.evaluation.paper_runs import MissingLines, PaperRun, RunKey, TablePlan
from gamlens.evaluation.protocol import Unit
from gamlens.evaluation.results import Columns, Run
from gamlens.evaluation.tables import Cell
from gamlens.metrics import METRICS, Better, Difference

MethodAndN = tuple[str, int]
SHARED_CHOICES = (  # the fields of the protocol that a table names
    "input", "fill", "masked", "box", "pairs", "pairs_per_class", "seed", "hold_out", "hold_out_by", "lattice",
    "temperature",
)  # fmt: skip
SIDE_PLACES = {"": 0, "x": 0, "both": 0, "y": 1}  # the column `side` of a row: which image of the item the row is about


@dataclass(frozen=True, eq=False)
class FilledLine:
    """A line of a table with its numbers.

    Attributes:
        line: The line of the paper; in the appendix with a further metric.
        better: Whether higher ("up") or lower ("down") is better.
        model: The model that was measured; "" if the line was not measured.
        cells: Our numbers: {(method, n): cell}. Controls have n = 0.
        paper: The paper's numbers: {(method, n): number}.
        items: How many items the line has, and of these how many failed.
    """

    line: PaperLine
    better: Better
    model: str = ""
    cells: Mapping[MethodAndN, Cell] = field(default_factory=dict)
    paper: Mapping[MethodAndN, PaperNumber] = field(default_factory=dict)
    items: int = 0
    errors: int = 0

    def gain(self, method: str) -> Difference | None:
        """The paired difference of n = 2 against n = 1, with its sign turned so that plus is better."""
        cell = self.cells.get((method, 2))
        return cell.gain if cell is not None and cell.base == 1 else None

    def best(self, digits: int) -> set[MethodAndN]:
        """The best of the methods and n; those that look equal with so many digits are all best."""
        own = {key: round(c.value.mean, digits) for key, c in self.cells.items() if key[1] and c.value.n}
        if not own:
            return set()
        most = (max if self.better == "up" else min)(own.values())
        return {key for key, value in own.items() if value == most}


@dataclass(frozen=True, eq=False)
class FilledTable:
    """A table with its numbers.

    Attributes:
        table: The layout.
        methods: The methods in the order of columns.
        n: The numbers of blocks.
        lines: The lines of the paper.
        appendix: The measured lines again, with all metrics of their kind of evaluation.
        missing: What could not be measured.
        protocol: The choices that all lines share, as text.
        limit: The largest number of items per line, if that leaves out any.
    """

    table: PaperTable
    methods: tuple[str, ...]
    n: tuple[int, ...]
    lines: tuple[FilledLine, ...]
    appendix: tuple[FilledLine, ...]
    missing: tuple[MissingLines, ...]
    protocol: str = ""
    limit: int | None = None

    @property
    def has_gain(self) -> bool:
        """Whether there is an improvement from n = 1 to n = 2 to show."""
        return {1, 2} <= set(self.n)

    @property
    def controls(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for line in self.appendix for method, n in line.cells if not n))

    @property
    def borrowed(self) -> bool:
        """Whether a method shows numbers that the paper measured with another one, for want of that one's column."""
        return any(self.is_borrowed(line.paper.get(key), key[0]) for line in self.lines for key in line.paper)

    @staticmethod
    def is_borrowed(number: PaperNumber | None, method: str) -> bool:
        return number is not None and number.method != method


def fill_table(plan: TablePlan, measured: Mapping[RunKey, Run], *, confidence: str = "logit") -> FilledTable:
    """Fill in a table from its runs.

    Args:
        plan: What was measured.
        measured: The runs, as `read_run` reads them.
        confidence: The class score that ADP and PIC are of: "logit" or "probability".
    """
    protocol, own = plan.runs[0].protocol, {run.key: run for run in plan.runs}
    found: dict[tuple[RunKey, str], dict[str, FilledLine]] = {}
    for line in plan.table.lines():
        key = (line.network.name, line.section.task, line.section.kind)
        if key in own and (key, line.subset) not in found and line.subset in own[key].rows:
            found[key, line.subset] = _measured_lines(line, own[key], measured[key], confidence)
    lines = []
    for line in plan.table.lines():
        key = (line.network.name, line.section.task, line.section.kind)
        empty = FilledLine(line, _better(line), paper=_papers(line, protocol.method_names, protocol.n))
        lines.append(found.get((key, line.subset), {}).get(line.metric, empty))
    appendix = tuple(line for part in found.values() for line in part.values())
    chosen = {name: getattr(protocol, name) for name in SHARED_CHOICES} | {"confidence": confidence}
    text = ", ".join(f"{name}={value}" for name, value in chosen.items())
    return FilledTable(
        plan.table, protocol.method_names, protocol.n, tuple(lines), appendix, plan.missing, text, plan.limit
    )


def _measured_lines(line: PaperLine, run: PaperRun, whole: Run, confidence: str) -> dict[str, FilledLine]:
    """The line of every metric of a run's kind on one subset: {title of the metric: line}."""
    part = cut(whole, run.rows[line.subset], line.subset)
    cells = tables.cells(part, confidence=confidence)
    found = {}
    for title in dict.fromkeys(cell.metric for cell in cells):
        own = {(cell.method, cell.n): cell for cell in cells if cell.metric == title}
        mine = PaperLine(line.section, line.network, line.subset, title)
        found[title] = FilledLine(
            mine, next(iter(own.values())).better, run.lens.name, own,
            _papers(mine, run.protocol.method_names, run.protocol.n), len(run.rows[line.subset]), len(part.errors),
        )  # fmt: skip
    return found


def _papers(line: PaperLine, methods: Sequence[str], ns: Sequence[int]) -> dict[MethodAndN, PaperNumber]:
    """The paper's numbers of a line. A number stands at the method that the paper ran, if that one is shown."""
    network = line.network
    where = (line.section.task, network.data, line.subset, line.metric, network.model)
    found = {(method, n): paper_of(*where, method, n) for method in methods for n in ns}
    return {
        key: number
        for key, number in found.items()
        if number is not None and (number.method == key[0] or number.method not in methods)
    }


def _better(line: PaperLine) -> Better:
    """Whether higher or lower is better in a line that was not measured."""
    fitting = (m for m in METRICS.values() if m.title == line.metric and line.section.kind in m.kinds)
    return next(fitting).better


def cut(run: Run, items: Sequence[Unit], subset: str) -> Run:
    """The rows of some items of a run, as a run of its own: in the order of the items, and with their hold-out.

    An item that is listed twice is counted twice, as in a run that measures it twice.
    """
    groups: dict[tuple[str, int], Columns] = {}
    for key, columns in run.groups.items():
        rows = zip(columns["item"], columns["label"], columns.get("side", [""] * len(columns["item"])), strict=True)
        where = {(item, int(label), side or ""): at for at, (item, label, side) in enumerate(rows)}
        found = [
            (where[readable(unit.name), unit.label, side], unit.held_out[place])
            for unit in items
            for side, place in SIDE_PLACES.items()
            if (readable(unit.name), unit.label, side) in where
        ]
        places = [place for place, _ in found]
        taken = {
            name: [values[at] for at in places] if isinstance(values, list) else values[places]
            for name, values in columns.items()
        }
        groups[key] = {**taken, "held_out": np.array([held for _, held in found], dtype=bool)}
    names = {(readable(unit.name), unit.label) for unit in items}
    about = {**run.about, "items": len(items), "protocol": {**run.about["protocol"], "subset": subset}}
    about.pop("manifests", None)
    return Run(about, groups, [row for row in run.errors if (row["item"], row["label"]) in names])
