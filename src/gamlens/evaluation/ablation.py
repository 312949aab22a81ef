"""The ablation: how many blocks are best, and how should they be joined? Tables and plots by method, n and fusion."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import render
from gamlens.data import PAIRS_PER_CLASS
from gamlens.engine import ResultRow
from gamlens.errors import GamlensError
from gamlens.evaluation.measure import MapKey
from gamlens.evaluation.metric_columns import metrics_of
from gamlens.evaluation.protocol import ABLATED_KINDS, CONTROL, JOINED, Protocol
from gamlens.evaluation.results import Run, collect
from gamlens.evaluation.run_scores import Score, scores
from gamlens.evaluation.table_files import TextTable, draw_charts, write_files
from gamlens.evaluation.table_notes import counts_note, interval_note
from gamlens.evaluation.tables import Cell, cells, check_confidence, shown
from gamlens.lens import Lens
from gamlens.methods import METHODS, names
from gamlens.metrics import Difference

AblationCells = Mapping[MapKey, Mapping[str, Cell]]  # {(method, n, fusion): {measure: cell}}
FusionGains = Mapping[MapKey, Mapping[str, Difference]]  # {(method, n, fusion): {measure: gain over the first fusion}}


@dataclass(frozen=True)
class Plan:
    """What an ablation varies, and how it is measured.

    Attributes:
        methods: The methods.
        n: The numbers of blocks; if empty, every number from 1 to all blocks of the model.
        fusions: The ways to join blocks: names of FUSIONS, and "weights" for a weighted mean.
        weights: One weight per block of the model, for the fusion "weights"; see `Protocol.block_weights`.
        fill: The colour of hidden pixels in image x map, "black" or "mean".
        confidence: The class score that ADP and PIC are computed from, "logit" or "probability".
        task: What is explained: "classification", or the name of a pair score.
        subset: "all" items, or only those with small objects, the "25" or "10" % smallest.
        pairs, seed, pairs_per_class: Which pairs are compared, as in `Protocol`.
        lattice: How blocks are read of which the network uses some rows and columns only, "read" or "keep".
    """

    methods: tuple[str, ...] = names("block")
    n: tuple[int, ...] = ()
    fusions: tuple[str, ...] = JOINED
    weights: tuple[float, ...] = ()
    fill: str = "black"
    confidence: str = "logit"
    task: str = "classification"
    subset: str = "all"
    pairs: str = "drawn"
    seed: int = 0
    pairs_per_class: int = PAIRS_PER_CLASS
    lattice: str = "read"

    def __post_init__(self) -> None:
        if not self.fusions:
            raise GamlensError(f"There is no fusion to vary: choose from {', '.join(JOINED)}.")
        check_confidence(self.confidence)
        self._protocol(self.n or (1,))

    def protocol(self, lens: Lens) -> Protocol:
        """The protocol for this model: the n asked for, or every n from 1 to the number of its blocks."""
        most = len(lens.blocks)
        if self.weights and len(self.weights) != most:
            raise GamlensError(f"{len(self.weights)} weights were given; {lens.name} has {most} blocks: give as many.")
        if wrong := [n for n in self.n if n > most]:
            raise GamlensError(f"n={wrong[0]} blocks were asked for; {lens.name} has {most}: {', '.join(lens.blocks)}.")
        return self._protocol(self.n or tuple(range(1, most + 1)))

    def _protocol(self, n: tuple[int, ...]) -> Protocol:
        return Protocol(
            task=self.task, methods=self.methods, n=n, subset=self.subset, fill=self.fill, pairs=self.pairs,
            seed=self.seed, pairs_per_class=self.pairs_per_class, lattice=self.lattice, fusions=self.fusions,
            block_weights=self.weights,
        )  # fmt: skip


def table(rows: Sequence[ResultRow], about: Mapping[str, Any], plan: Plan) -> AblationCells:
    """Every metric of every method, n and fusion, and of the controls."""
    found: dict[MapKey, dict[str, Cell]] = {}
    for name, run in _runs(rows, about, plan):
        for cell in cells(run, confidence=plan.confidence):
            found.setdefault((cell.method, cell.n, name), {})[cell.metric] = cell
    if not found:
        why = next((row["error"] for row in rows if row["error"]), "there is none.")
        raise GamlensError(f"No item of {len(rows)} could be measured; the first error: {why}")
    return found


def fusion_gains(rows: Sequence[ResultRow], about: Mapping[str, Any], plan: Plan) -> FusionGains:
    """The paired difference of every fusion to the first one of the plan, at the same method and n > 1.

    Its sign is turned so that plus is better. Intervals resample whole images or pairs, as those of `table` do.
    """
    measured: dict[MapKey, dict[str, Score]] = {}
    for name, run in _runs(rows, about, plan):
        for (method, n), columns in run.groups.items():
            own = {score.metric.title: score for score in scores(run, columns, confidence=plan.confidence)}
            measured.setdefault((method, n, name), {}).update(own)
    found: dict[MapKey, dict[str, Difference]] = {}
    for (method, n, name), own in measured.items():
        first = measured.get((method, n, plan.fusions[0]), {})
        if n > 1 and name != plan.fusions[0]:
            found[method, n, name] = {title: own[title].gain_over(first[title]) for title in own if title in first}
    return found


def _runs(rows: Sequence[ResultRow], about: Mapping[str, Any], plan: Plan) -> Iterator[tuple[str, Run]]:
    """One run per fusion and kind of evaluation, and for the controls: the name of the fusion, and the run."""
    for name in (*plan.fusions, CONTROL):
        own = [row for row in rows if not row["error"] and row["fuse"] == name]
        mine = [{column: value for column, value in row.items() if column != "fuse"} for row in own]
        for kind in ABLATED_KINDS if mine else ():
            yield name, collect({**about, "protocol": {**about["protocol"], "kind": kind}}, mine)


def measures(found: AblationCells) -> dict[str, str]:
    """The metrics that were measured: {title: name in METRICS}."""
    titles = {title for own in found.values() for title in own}
    return {metric.title: name for name, metric in metrics_of(*ABLATED_KINDS).items() if metric.title in titles}


def table_of(found: AblationCells, plan: Plan, measure: str) -> TextTable:
    """A metric as a table: one line per method and fusion, one column per n, and the controls below."""
    numbers = sorted({n for _, n, name in found if name != CONTROL})
    lines = []
    for method in plan.methods:
        for name in plan.fusions:
            values = (shown(found.get((method, n, name), {}).get(measure)) for n in numbers)
            lines.append((METHODS[method].title, name, *values))
    for (control, _, name), mine in found.items():
        if name == CONTROL:
            lines.append((control, CONTROL, shown(mine.get(measure)), *("" for _ in numbers[1:])))
    return (f"{measure} %", "blocks joined by", *(f"n = {n}" for n in numbers)), lines


def curves(found: AblationCells, plan: Plan) -> Image.Image:
    """One plot per metric and fusion: a curve per method over n, and the centre prior as a dashed line."""
    numbers = sorted({n for _, n, name in found if name != CONTROL})
    steps = tuple(f"n = {n}" for n in numbers)
    rows: dict[str, list[render.Chart]] = {}
    for measure in measures(found):
        means = {key: own[measure].value.mean for key, own in found.items()}
        better = found["centre", 0, CONTROL][measure].better
        prior = means["centre", 0, CONTROL]
        values = [prior, *(mean for (_, n, _), mean in means.items() if n > 0)]
        label = f"{measure} %, {'higher' if better == 'up' else 'lower'} is better"
        for name in plan.fusions:
            lines = [
                render.Series.over_names(METHODS[method].title, [means[method, n, name] for n in numbers], tone=tone)
                for tone, method in enumerate(plan.methods, start=1)
            ]
            lines.append(render.Series.over_names("centre prior (control)", [prior], "level", tone=0))
            chart = render.Chart("", "", "", tuple(lines), names=steps, y_range=(min(values), max(values)))
            rows.setdefault(label, []).append(chart)
    return draw_charts(rows, plan.fusions, cell=320)


def write(
    found: AblationCells, plan: Plan, folder: Path, about: Mapping[str, Any], gains: FusionGains | None = None
) -> list[Path]:
    """Write ablation.json, table.md, one CSV file per metric and ablation.png; returns the files.

    ablation.json has for every number its paired gain over n = 1 (`gain`), and the `gains` over the first fusion at the
    same n (`against`) where they are given; see `fusion_gains`.
    """
    over = {
        (*key, measure): {"fuse": plan.fusions[0], **vars(gain)}
        for key, own in (gains or {}).items() for measure, gain in own.items()
    }  # fmt: skip
    tables = {f"{name}.csv": table_of(found, plan, measure) for measure, name in measures(found).items()}
    records = [
        {"method": method, "n": n, "fuse": name, "measure": measure, "mean": cell.value.mean, "low": cell.value.low,
         "high": cell.value.high, "items": cell.value.n, "threshold": cell.threshold, "left_out": cell.left_out,
         "gain": cell.gain and {"over_n": cell.base, **vars(cell.gain)},
         "against": over.get((method, n, name, measure))}
        for (method, n, name), own in found.items() for measure, cell in own.items()
    ]  # fmt: skip
    described = {**about, "plan": vars(plan), "cells": records}
    texts = {"ablation.json": json.dumps(described, indent=1, ensure_ascii=False)}
    counted = [cell for own in found.values() for cell in own.values()]
    notes = [interval_note(counted), counts_note(counted)]
    return write_files(folder, texts, {"ablation.png": curves(found, plan)}, tables, notes)
