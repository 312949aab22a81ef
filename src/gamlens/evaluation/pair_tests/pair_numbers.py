"""The numbers of tables from the rows of a run: means with intervals, differences to the first explainer, chance.

Every case gives one value per explainer and measure. Intervals are percentiles over resampled cases, 95 %; differences
are taken case by case.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gamlens.engine import ResultRow
from gamlens.evaluation.pair_tests.pair_explainers import PairRow, pair_rows, title_of_row
from gamlens.evaluation.pair_tests.pair_plan import PAIR_TESTS, PairPlan
from gamlens.evaluation.pair_tests.pair_runs import FORWARD
from gamlens.metrics import THRESHOLDS, Better, Difference, Interval, best_threshold, bootstrap, paired
from gamlens.metrics.metric import counted_items

SEVERAL = "k ≥ 2"  # the group of all scenes with more than one object


@dataclass(frozen=True)
class PairMeasure:
    """A number of a test.

    Attributes:
        name: Its name in rows and files.
        test: The test that it belongs to, a name of PAIR_TESTS.
        title: Its name in tables.
        better: Whether higher ("up") or lower ("down") is better.
        percent: Whether tables show it in percent.
        thresholds: Whether there is one value per threshold and side, of which the best one on held-out pairs is taken.
        ranked: Whether more (or less) of it is better at all; else tables have no arrows and marks.
    """

    name: str
    test: str
    title: str
    better: Better = "up"
    percent: bool = True
    thresholds: bool = False
    ranked: bool = True

    @property
    def head(self) -> str:
        """The head of its column."""
        arrow = {"up": " ↑", "down": " ↓"}[self.better] if self.ranked else ""
        return f"{self.title}{', %' if self.percent else ''}{arrow}"


PAIR_MEASURES = (
    PairMeasure("inserted", "curves", "Insertion", percent=False),
    PairMeasure("deleted", "curves", "Deletion", "down", percent=False),
    PairMeasure("object_hit", "objects", "Hit"),
    PairMeasure("object_share", "objects", "Share"),
    PairMeasure("link_hit", "objects", "Link hit"),
    PairMeasure("object_agrees", "objects", "As the network"),
    PairMeasure("patch_peak", "patch", "Peak in patch"),
    PairMeasure("patch_both", "patch", "Peak in both"),
    PairMeasure("patch_energy", "patch", "Energy / area", percent=False),
    PairMeasure("patch_auc", "patch", "Pixel AUC", percent=False),
    PairMeasure("partner_change", "partner", "Change", percent=False, ranked=False),
    PairMeasure("box_overlap", "boxes", "IoU", thresholds=True),
)


@dataclass(frozen=True)
class PairNumber:
    """One number of a table: the mean of an explainer with its interval, and its difference to the first explainer.

    `difference` is None for the first explainer itself; `threshold` is that of the boxes.
    """

    interval: Interval
    difference: Difference | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class MeasuredGroup:
    """A measure on the cases of a group.

    Attributes:
        measure: The measure.
        group: "" for all cases of the test, or the number of objects: "k = 2", "k ≥ 2".
        numbers: By the key of the row.
        chance: The mean of what a map that says nothing has; None where the controls show it alone.
        exact: What the network itself answers; None where it cannot be asked.
    """

    measure: PairMeasure
    group: str
    numbers: Mapping[str, PairNumber]
    chance: float | None = None
    exact: Interval | None = None


@dataclass(frozen=True)
class PairResults:
    """All numbers of a run.

    Attributes:
        about: The description of the run (run.json).
        plan: Its plan.
        rows: Its explainers and controls.
        groups: The measures of all tests, in the order of PAIR_MEASURES.
        seconds: The median time per pair, by the key of the row.
        forward: The median time of a plain forward of both images.
        cases: How many cases each kind has that were measured.
        errors: The rows of cases that failed.
    """

    about: Mapping[str, Any]
    plan: PairPlan
    rows: Sequence[PairRow]
    groups: Sequence[MeasuredGroup]
    seconds: Mapping[str, float]
    forward: float
    cases: Mapping[str, int]
    errors: Sequence[ResultRow] = field(default=())

    @property
    def reference(self) -> PairRow:
        """The first explainer, which the others are compared with."""
        return self.rows[0]

    def title(self, row: PairRow) -> str:
        return title_of_row(row, several=len(self.plan.n) > 1)

    def of(self, test: str) -> list[MeasuredGroup]:
        """The measures of a test, on all groups."""
        return [group for group in self.groups if group.measure.test == test]

    def tests(self) -> list[str]:
        """The tests that have numbers."""
        return [test for test in PAIR_TESTS if self.of(test)]


def pair_results(about: Mapping[str, Any], rows: Sequence[ResultRow]) -> PairResults:
    """Compute all numbers from the description and the rows of a run."""
    plan = PairPlan.from_record(about["protocol"])
    good, explainers = [row for row in rows if not row["error"]], pair_rows(plan)
    groups = []
    for measure in (one for one in PAIR_MEASURES if one.test in plan.tests):
        own = [row for row in good if row["kind"] == PAIR_TESTS[measure.test]]
        for name, members in _groups(own, measure, plan).items():
            if members:
                groups.append(_measured(measure, name, members, explainers))
    seconds = {
        row.key: statistics.median(times)
        for row in explainers
        if (times := [one["seconds"][row.key] for one in good if row.key in one["seconds"]])
    }
    forward = statistics.median([one["seconds"][FORWARD] for one in good]) if good else math.nan
    cases = {kind: sum(row["kind"] == kind for row in good) for kind in plan.kinds}
    errors = [row for row in rows if row["error"]]
    return PairResults(about, plan, explainers, groups, seconds, forward, cases, errors)


def _groups(rows: Sequence[ResultRow], measure: PairMeasure, plan: PairPlan) -> dict[str, list[ResultRow]]:
    """The cases of a test by group: scenes by their number of objects, and all that leave a choice together."""
    if measure.test != "objects":
        return {"": list(rows)}
    several = sorted(count for count in plan.objects if count > 1)
    found = {SEVERAL: [row for row in rows if row["objects"] > 1]} if len(several) > 1 else {}
    return found | {f"k = {count}": [row for row in rows if row["objects"] == count] for count in sorted(plan.objects)}


def _measured(
    measure: PairMeasure, group: str, rows: Sequence[ResultRow], explainers: Sequence[PairRow]
) -> MeasuredGroup:
    held_out = torch.tensor([bool(row["held_out"]) for row in rows])
    values: dict[str, Tensor] = {}
    chosen: dict[str, float | None] = {}
    for explainer in explainers:
        raw = [row["values"].get(explainer.key, {}).get(measure.name) for row in rows]
        values[explainer.key], chosen[explainer.key] = _overlaps(raw, held_out) if measure.thresholds else (
            _column(raw), None,
        )  # fmt: skip
    scale, first = (100.0 if measure.percent else 1.0), values[explainers[0].key]
    numbers = {}
    for place, explainer in enumerate(explainers):
        own = scale * values[explainer.key]
        gap = paired(own, scale * first, better=measure.better) if place else None
        numbers[explainer.key] = PairNumber(bootstrap(own), gap, chosen[explainer.key])
    chance = [row["chance"][measure.name] for row in rows if measure.name in row["chance"]]
    exact = [row["exact"].get(measure.name) for row in rows if measure.name in row["exact"]]
    return MeasuredGroup(
        measure,
        group,
        numbers,
        scale * sum(chance) / len(chance) if chance else None,
        bootstrap(scale * _column(exact)) if exact else None,
    )


def _overlaps(raw: Sequence[Any], held_out: Tensor) -> tuple[Tensor, float | None]:
    """The mean IoU of both sides of every pair at the threshold that is best on held-out pairs; these become NaN."""
    none = [[None] * len(THRESHOLDS)] * 2
    grid = torch.stack([torch.stack([_column(side) for side in (one or none)]) for one in raw])  # (N,2,T)
    counted = counted_items(held_out)
    chosen = grid[held_out] if bool((~counted).any()) else grid
    best = best_threshold(chosen.flatten(0, 1))
    found = grid[:, :, best].nanmean(dim=1)
    return torch.where(counted, found, torch.nan), THRESHOLDS[best]


def _column(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
