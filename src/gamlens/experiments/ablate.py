"""The ablation: how many blocks, and how they are joined. One forward an image serves every method, n and fusion."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics, scores
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.experiments.protocol import Unit, chunks
from gamlens.experiments.results import Run
from gamlens.experiments.tables import Cell, cells
from gamlens.fuse import FUSIONS, Fusion
from gamlens.geometry import Frame, Transform
from gamlens.images import Picture, upright
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.models import pick
from gamlens.prepare import Views, prepare
from gamlens.rows import wide

Row = dict[str, Any]
Key = tuple[str, int, str]
WEIGHTS, CONTROL = "weights", "control"
JOINED = (*FUSIONS, WEIGHTS)
BLOCK_METHODS = tuple(name for name, method in METHODS.items() if method.kind == "block")
MEASURES = ("IoU", "ADP", "PIC")
LARGEST = 256


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
    """Measure box IoU and confidences of the true class under every map; yields a batch's rows. A bad image becomes an
    error row.
    """
    numbers = plan.numbers(lens)
    _look(lens)
    for chunk in chunks(items, batch):
        good, opened, rows = _open(chunk)
        if good:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GamlensWarning)
                rows += _measure(lens, good, opened, plan, numbers)
        yield rows


def table(rows: Sequence[Row], about: Mapping[str, Any], plan: Plan) -> dict[Key, dict[str, Cell]]:
    """IoU (threshold from the held-out items), ADP and PIC: {(method, n, fusion): {measure: cell}}."""
    found: dict[Key, dict[str, Cell]] = {}
    for name in (*plan.fusions, CONTROL):
        mine = [row for row in rows if not row["error"] and row["fuse"] == name]
        for kind in ("localization", "objective") if mine else ():
            described = {**about, "protocol": {**about["protocol"], "kind": kind}}
            for cell in cells(Run(described, mine), confidence=plan.confidence):
                if cell.metric in MEASURES:
                    found.setdefault((cell.method, cell.n, name), {})[cell.metric] = cell
    if not found:
        raise GamlensError("No item could be measured: the error rows say why.")
    return found


def _open(chunk: Sequence[Unit]) -> tuple[list[Unit], list[Picture], list[Row]]:
    good, opened, rows = [], [], []
    for unit in chunk:
        try:
            opened.append(Picture(unit.name, path=unit.samples[0].image, pixels=upright(unit.samples[0].image)))
            good.append(unit)
        except GamlensError as error:
            rows.append({**_head(unit), "method": "", "n": 0, "fuse": "", "error": str(error)})
    return good, opened, rows


def _measure(
    lens: Lens, items: list[Unit], opened: list[Picture], plan: Plan, numbers: tuple[int, ...]
) -> list[Row]:  # fmt: skip
    labels = torch.tensor([unit.label for unit in items])
    trace = lens._trace(opened, labels.tolist(), n=max(numbers), score="logit", views=(), keep=False)
    frames = trace.rows.origin.frames
    truths = [_truth(unit, frame) for unit, frame in zip(items, frames, strict=True)]
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
    del trace
    distinct = {id(values): values for values in maps.values()}
    grids = {place: metrics.iou_grid(values, truths).cpu() for place, values in distinct.items()}
    before, after = _confidences(lens, opened, list(distinct.values()), labels, plan)
    order = {place: number for number, place in enumerate(distinct)}
    rows = []
    for (method, n, name), values in maps.items():
        grid, number = grids[id(values)], order[id(values)]
        for row, unit in enumerate(items):
            about = {**_head(unit), "method": method, "n": n, "fuse": name, "error": "", "iou": grid[row].tolist()}
            about |= {f"before_{kind}": float(before[kind][0, row]) for kind in before}
            about |= {f"after_{kind}": float(after[kind][number, row]) for kind in after}
            rows.append(about)
    return rows


def _confidences(
    lens: Lens, opened: list[Picture], maps: list[Tensor], labels: Tensor, plan: Plan
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Logit and probability of the true class, of the plain images (1,N) and under every map (M,N)."""
    look = _look(lens)
    plain = prepare(opened, look, Views()).batches[0].to(maps[0].device)
    mean, std = (torch.tensor(value, device=plain.device)[:, None, None] for value in (look.mean, look.std))
    raw = (plain * std + mean).clamp(0, 1)
    shown = [torch.ones_like(maps[0]), *maps]
    together, outputs, fill = max(1, LARGEST // len(raw)), [], plan.fill
    for start in range(0, len(shown), together):
        part = torch.cat([values.to(raw) for values in shown[start : start + together]])
        images = raw.repeat(len(part) // len(raw), 1, 1, 1)
        masked = metrics.explain_mask(images, part, mean=look.mean, std=look.std, fill=fill)  # type: ignore[arg-type]
        outputs.append(wide(pick(lens._look(lens._fit(masked, own=False), []).output, lens._output)).cpu())
    output = torch.cat(outputs)
    chance = scores.probabilities(output, multi_label=lens.multi_label)
    chosen = labels.repeat(len(shown))[:, None]
    found = {
        name: values.gather(1, chosen).view(-1, len(labels))
        for name, values in (("logit", output), ("probability", chance))
    }
    return {name: values[:1] for name, values in found.items()}, {name: values[1:] for name, values in found.items()}


def _truth(unit: Unit, frame: Frame) -> Tensor:
    """The boxes of the unit's class in input pixels: (K,4)."""
    sample = unit.samples[0]
    boxes = torch.tensor([[b.x0, b.y0, b.x1, b.y1] for b in sample.boxes if b.label == unit.label]).reshape(-1, 4)
    height, width = sample.size or frame.original
    return frame.boxes_in(boxes * torch.tensor([frame.original[1] / width, frame.original[0] / height]).repeat(2))


def _look(lens: Lens) -> Transform:
    if not isinstance(lens.transform, Transform):
        raise GamlensError("Masking needs to know the model's mean and std: give the Lens a gamlens.Transform.")
    return lens.transform


def _head(unit: Unit) -> Row:
    return {"item": unit.name, "label": unit.label, "held_out": unit.held_out}
