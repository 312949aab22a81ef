"""The ablation: how many blocks, and how they are joined. One forward an image serves every method, n and fusion."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.engine import pieces
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.evaluation import masked
from gamlens.evaluation.batches import Ready, Row, error_row, head, ready, split
from gamlens.evaluation.measure import UNCHANGED
from gamlens.evaluation.protocol import Protocol, Unit
from gamlens.evaluation.results import collect
from gamlens.evaluation.tables import Cell, cells
from gamlens.fuse import FUSIONS, Fusion
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.trace import Trace

Key = tuple[str, int, str]
WEIGHTS, CONTROL = "weights", "control"
JOINED = (*FUSIONS, WEIGHTS)
BLOCK_METHODS = tuple(name for name, method in METHODS.items() if method.kind == "block")
MEASURES = ("IoU", "ADP", "PIC")


@dataclass(frozen=True)
class Plan:
    """What is varied. `weights` are those of all blocks in the order they run, for the fusion of that name; without
    them the last of n blocks weighs n, the one before it n - 1, and so on.
    """

    methods: tuple[str, ...] = BLOCK_METHODS
    n: tuple[int, ...] = ()
    fusions: tuple[str, ...] = JOINED
    weights: tuple[float, ...] = ()
    fill: str = "black"
    confidence: str = "logit"

    def __post_init__(self) -> None:
        for name, found, known in (("method", self.methods, BLOCK_METHODS), ("fusion", self.fusions, JOINED)):
            if wrong := [item for item in found if item not in known] or ([""] if not found else []):
                raise GamlensError(f"There is no {name} {wrong[0]!r} to vary: choose from {', '.join(known)}.")
        for name, value, choices in (
            ("fill", self.fill, ("black", "mean")),
            ("confidence", self.confidence, ("logit", "probability")),
        ):
            if value not in choices:
                raise GamlensError(f"{name} is {' or '.join(choices)}, not {value!r}.")

    def numbers(self, lens: Lens) -> tuple[int, ...]:
        """The n that are measured: those asked for, or every one from 1 to the number of blocks."""
        most = len(lens.blocks)
        if self.weights and len(self.weights) != most:
            raise GamlensError(f"{len(self.weights)} weights were given; {lens.name} has {most} blocks.")
        if wrong := [n for n in self.n if not 1 <= n <= most]:
            raise GamlensError(f"n={wrong[0]} blocks were asked for; {lens.name} has {most}: {', '.join(lens.blocks)}.")
        return self.n or tuple(range(1, most + 1))

    def fusion(self, name: str, n: int) -> Fusion:
        if name != WEIGHTS:
            return name
        return self.weights[-n:] or [float(place) for place in range(1, n + 1)]


def ablate(lens: Lens, items: Sequence[Unit], plan: Plan, *, batch: int = 16) -> Iterator[list[Row]]:
    """Measure box IoU and confidences of the true class under every map; yields a batch's rows. A bad item becomes an
    error row; a first batch that fails whole is an error.
    """
    numbers, protocol = plan.numbers(lens), Protocol("localization", fill=plan.fill)
    strict = True
    for chunk in pieces(items, batch):
        loaded = ready(chunk, lens.transform, protocol)
        rows = [{**row, "fuse": ""} for row in loaded.errors]
        if loaded.units:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GamlensWarning)
                found = _measured(lens, loaded, plan, numbers, protocol)
            if strict and all(row["error"] for row in found):
                raise GamlensError(found[0]["error"])
            rows, strict = rows + found, False
        yield rows


def _measured(lens: Lens, batch: Ready, plan: Plan, numbers: tuple[int, ...], protocol: Protocol) -> list[Row]:
    """A batch's rows; where it fails, those of its items one by one."""
    try:
        return _measure(lens, batch, plan, numbers, protocol)
    except GamlensError as error:
        if len(batch.units) == 1:
            return [{**error_row(batch.units[0], str(error)), "fuse": ""}]
        return [row for single in split(batch) for row in _measured(lens, single, plan, numbers, protocol)]


def table(rows: Sequence[Row], about: Mapping[str, Any], plan: Plan) -> dict[Key, dict[str, Cell]]:
    """IoU (threshold from the held-out items), ADP and PIC: {(method, n, fusion): {measure: cell}}."""
    found: dict[Key, dict[str, Cell]] = {}
    for name in (*plan.fusions, CONTROL):
        mine = [row for row in rows if not row["error"] and row["fuse"] == name]
        for kind in ("localization", "objective") if mine else ():
            described = {**about, "protocol": {**about["protocol"], "kind": kind}}
            for cell in cells(collect(described, mine), confidence=plan.confidence):
                if cell.metric in MEASURES:
                    found.setdefault((cell.method, cell.n, name), {})[cell.metric] = cell
    if not found:
        why = next((row["error"] for row in rows if row["error"]), "there is none.")
        raise GamlensError(f"No item of {len(rows)} could be measured; the first: {why}")
    return found


def _measure(lens: Lens, batch: Ready, plan: Plan, numbers: tuple[int, ...], protocol: Protocol) -> list[Row]:
    labels = torch.tensor([unit.label for unit in batch.units])
    trace = lens._trace(batch.sides[0], labels.tolist(), n=max(numbers), score="logit", views=(), keep=False)
    assert trace.output is not None
    before = masked.confidences(trace.output, labels, multi_label=lens.multi_label)
    maps = _maps(trace, plan, numbers)
    del trace
    distinct = {id(values): values for values in maps.values()}
    truths = list(batch.truth[0])
    grids = {place: metrics.iou_grid(values, truths).cpu() for place, values in distinct.items()}
    after = masked.under_maps(lens, masked.raw(lens, batch.sides[0]), list(distinct.values()), labels, protocol)
    order = {place: number for number, place in enumerate(distinct)}
    rows = []
    for (method, n, name), values in maps.items():
        grid, number = grids[id(values)], order[id(values)]
        for row, unit in enumerate(batch.units):
            about = {**head(unit), "held_out": unit.held_out[0], "method": method, "n": n, "fuse": name, "error": ""}
            about |= {"iou": grid[row].tolist()}
            about |= {f"before_{kind}": float(before[kind][0, row]) for kind in before}
            shown = {kind: before[kind][0] if method == UNCHANGED else after[kind][number] for kind in after}
            about |= {f"after_{kind}": float(shown[kind][row]) for kind in shown}
            rows.append(about)
    return rows


def _maps(trace: Trace, plan: Plan, numbers: tuple[int, ...]) -> dict[Key, Tensor]:
    """The maps of every method, n and fusion, and of the controls; at n = 1 all fusions are the same map."""
    maps: dict[Key, Tensor] = {}
    for method in plan.methods:
        for n in numbers:
            for name in plan.fusions:
                same = maps.get((method, 1, plan.fusions[0])) if n == 1 else None
                maps[method, n, name] = (
                    same if same is not None else trace.explain(method, n, plan.fusion(name, n)).maps
                )
    first = next(iter(maps.values()))
    for name, make in metrics.CONTROLS.items():
        maps[name, 0, CONTROL] = make(*first.shape).to(first.device)
    return maps
