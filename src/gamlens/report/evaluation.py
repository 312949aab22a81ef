"""The page of `gamlens report`, for one run or several.

It shows numbers, curves, comparisons item by item, gains by object size, best and worst cases, errors and protocol.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gamlens._version import __version__
from gamlens.errors import GamlensError
from gamlens.evaluation import tables
from gamlens.evaluation.results import Run
from gamlens.evaluation.table_notes import table_notes
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import Block, Heading, Page, Section, Table, Text
from gamlens.report import evaluation_sections as parts
from gamlens.report.cases import areas, cases, source
from gamlens.report.paired_values import columns, reference, rivals

Topic = tuple[str, list[Block]]


@dataclass(frozen=True, eq=False)
class ReportOptions:
    """How a report is made.

    Args:
        root: Where the images are now, if they were moved after the run.
        split: The split of the data set.
        lens: The model that draws the maps of the best and worst cases again; without it only photos are shown.
        confidence: The class score that ADP and PIC are computed from.
        count: How many best and worst cases are shown.
    """

    root: Path | None = None
    split: str | None = None
    lens: Lens | None = None
    confidence: str = "logit"
    count: int = 4

    def __post_init__(self) -> None:
        tables.check_confidence(self.confidence)


def page(
    runs: Sequence[tuple[str, Run]],
    options: ReportOptions | None = None,
    *,
    step: Callable[[str], None] = lambda text: None,
) -> Page:
    """Make the page of runs, given as (name, run): one section per topic for a single run, else one section per run."""
    options = options or ReportOptions()
    if not runs:
        raise GamlensError("There is no run to report: name folders that gamlens evaluate made.")
    _check_model(runs, options)
    sections: list[Section] = []
    if len(runs) > 1:
        sections.append(_together(runs, options))
    for name, run in runs:
        step(name)
        found = _topics(run, options)
        if len(runs) == 1:
            sections += [Section(title, tuple(blocks)) for title, blocks in found]
        else:
            blocks = [block for title, own in found for block in (Heading(title), *own)]
            sections.append(Section(name, tuple(blocks), _said(run)))
    lead = _said(runs[0][1]) if len(runs) == 1 else f"{len(runs)} runs: {', '.join(name for name, _ in runs)}."
    title = f"Report: {runs[0][0]}" if len(runs) == 1 else "Report"
    return Page(title, lead, tuple(sections), f"Made by gamlens {__version__} (`gamlens report`).")


def _topics(run: Run, options: ReportOptions) -> list[Topic]:
    closing: list[Topic] = [("Errors", parts.errors(run)), ("How it was measured", parts.protocol(run))]
    if run.about["weights"] == "random":
        words = f"This run of {run.about['model']} was made with random weights, so it has no results to show."
        return [("Numbers", [Text(words)]), *closing]
    found = columns(run, confidence=options.confidence)
    base = reference(found)
    if base is None:
        words = "**No item could be measured**: every one of them failed, so there is nothing to compare."
        return [("Numbers", [Text(words)]), *closing]
    others = rivals(found, base)
    drawn = [o for o in others if o.method != base.method and o.method in METHODS]  # by the report itself
    strongest = max(drawn, key=lambda o: o.sign * o.mean(), default=None)
    data = source(run, root=options.root, split=options.split)
    by_size: list[Block] = [Text(data.missing)] if data.missing else parts.sizes(base, others, areas(data, base.keys))
    lens = _own(run, options.lens) if base.method in METHODS else None
    pictures = cases(run, data, base, strongest, lens=lens, count=options.count)
    curve = parts.thresholds(found)
    return [
        ("Numbers", parts.numbers(run, confidence=options.confidence)),
        *([(f"{base.metric.title} against threshold", curve)] if curve else []),
        ("Item by item", parts.scatter(base, others)),
        ("Gains by object size", by_size),
        ("Best and worst cases", pictures),
        *closing,
    ]


def _together(runs: Sequence[tuple[str, Run]], options: ReportOptions) -> Section:
    """All runs in one table, in the layout of the paper."""
    real = [run for _, run in runs if run.about["weights"] != "random"]
    found = [cell for run in real for cell in tables.cells(run, confidence=options.confidence)]
    if not found:
        return Section("All runs", (Text("None of the runs has a result: see their errors below."),))
    header, lines = tables.rows_of(found)
    notes = map(Text, table_notes(found))
    return Section("All runs", (Table(header, tuple(lines)), *notes), "The paper's layout; 95 % intervals in brackets.")


def _said(run: Run) -> str:
    about = run.about
    choices = about["protocol"]
    small = "" if choices["subset"] == "all" else f", the {choices['subset']} % with the smallest objects"
    failed = f" **{len(run.errors)} could not be measured.**" if run.errors else ""
    return (
        f"{str(choices['kind']).capitalize()} by {choices['task']}: `{about['model']}` ({about['weights']}) on "
        f"{about['items']} items of {about['data']}{small}.{failed}"
    )


def _own(run: Run, lens: Lens | None) -> Lens | None:
    """A copy of the lens that prepares images as the run did; None if it is not the model of the run."""
    if lens is None or lens.name != run.about["model"]:
        return None
    same = copy.copy(lens)
    if isinstance(same.transform, Transform):
        same.transform = same.transform.using(run.about["protocol"].get("input", "squash"))
    return same


def _check_model(runs: Sequence[tuple[str, Run]], options: ReportOptions) -> None:
    if options.lens is not None and all(run.about["model"] != options.lens.name for _, run in runs):
        measured = ", ".join(sorted({str(run.about["model"]) for _, run in runs}))
        raise GamlensError(
            f"The runs were measured with {measured}, and --model gives {options.lens.name}: give the same, or none."
        )
