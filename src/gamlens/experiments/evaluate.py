"""The paper's measurements: one forward an image serves every method and n; masked forwards are batched across methods.

Each item gives one row a method and n (and side of a pair): scores before and after masking, IoU over the whole
threshold grid, the peak's hit, the map's mean, or an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gamlens import locate, metrics, scores
from gamlens.data import Sample
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.experiments.protocol import Protocol, Unit, chunks
from gamlens.explanation import Explanation
from gamlens.geometry import Frame, Transform
from gamlens.images import Picture, upright
from gamlens.lens import Lens
from gamlens.models import pick
from gamlens.prepare import Views, prepare
from gamlens.rows import wide

Row = dict[str, Any]
Maps = dict[tuple[str, int], Tensor]
LARGEST = 64


def evaluate(lens: Lens, items: Sequence[Unit], protocol: Protocol, *, batch: int = 16) -> Iterator[list[Row]]:
    """Measure the items `batch` at a time; yields the rows of each batch. A bad image becomes an error row."""
    measure = {"localization": _localize, "segmentation": _segment, "objective": _objective}[protocol.kind]
    for chunk in chunks(items, batch):
        good, opened, rows = _open(chunk)
        if good:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GamlensWarning)
                rows += measure(lens, good, opened, protocol)
        yield rows


def _open(chunk: Sequence[Unit]) -> tuple[list[Unit], list[tuple[Picture, ...]], list[Row]]:
    """The items whose images can be read, their pictures, and error rows for the others."""
    good, opened, rows = [], [], []
    for unit in chunk:
        try:
            pictures = tuple(
                Picture(sample.name, path=sample.image, pixels=upright(sample.image)) for sample in unit.samples
            )
        except GamlensError as error:
            rows.append({**_head(unit), "method": "", "n": 0, "side": "", "error": str(error)})
            continue
        good.append(unit)
        opened.append(pictures)
    return good, opened, rows


def _localize(lens: Lens, items: list[Unit], opened: list[tuple[Picture, ...]], protocol: Protocol) -> list[Row]:
    rows: list[Row] = []
    for side, maps, frames in _sides(lens, items, opened, protocol):
        place = 1 if side == "y" else 0
        truths = [_truth(unit.samples[place], unit.label, frame) for unit, frame in zip(items, frames, strict=True)]
        for (method, n), values in maps.items():
            grid = _box_grid(values.cpu(), truths, protocol.box)
            hits = metrics.pointing(values.cpu(), truths)
            for number, unit in enumerate(items):
                found = {"iou": grid[number].tolist(), "pointing": float(hits[number])}
                rows.append(_row(unit, method, n, side, values[number], found))
    return rows


def _segment(lens: Lens, items: list[Unit], opened: list[tuple[Picture, ...]], protocol: Protocol) -> list[Row]:
    rows: list[Row] = []
    for side, maps, frames in _sides(lens, items, opened, protocol):
        truth = torch.stack(
            [_mask(unit.samples[0].load_mask(unit.label), f) for unit, f in zip(items, frames, strict=True)]
        )
        voids = [unit.samples[0].void() for unit in items]
        none = np.zeros((1, 1), dtype=bool)
        void = torch.stack([_mask(none if v is None else v, f) for v, f in zip(voids, frames, strict=True)])
        for (method, n), values in maps.items():
            grid = metrics.mask_iou_grid(values.cpu(), truth, void)
            for number, unit in enumerate(items):
                rows.append(_row(unit, method, n, side, values[number], {"iou": grid[number].tolist()}))
    return rows


def _objective(lens: Lens, items: list[Unit], opened: list[tuple[Picture, ...]], protocol: Protocol) -> list[Row]:
    if protocol.task != "classification":
        return _objective_pairs(lens, items, opened, protocol)
    labels = torch.tensor([unit.label for unit in items])
    ((_, maps, _),) = _sides(lens, items, opened, protocol)
    raw = _raw(lens, [pictures[0] for pictures in opened])
    before = _confidences(lens, raw, None, labels, protocol)
    after = _confidences(lens, raw, list(maps.values()), labels, protocol)
    rows = []
    for place, ((method, n), values) in enumerate(maps.items()):
        for number, unit in enumerate(items):
            found = {f"before_{name}": float(values_[0, number]) for name, values_ in before.items()}
            found |= {f"after_{name}": float(values_[place, number]) for name, values_ in after.items()}
            rows.append(_row(unit, method, n, "", values[number], found))
    return rows


def _objective_pairs(lens: Lens, items: list[Unit], opened: list[tuple[Picture, ...]], protocol: Protocol) -> list[Row]:
    rule = scores.find_pair_score(protocol.task)
    sides = {side: maps for side, maps, _ in _sides(lens, items, opened, protocol)}
    raws = {side: _raw(lens, [pictures[place] for pictures in opened]) for place, side in enumerate("xy")}
    whole = {side: _embed(lens, raw, None, protocol)[0] for side, raw in raws.items()}
    masked = {side: _embed(lens, raws[side], list(sides[side].values()), protocol) for side in "xy"}
    before = rule(whole["x"], whole["y"])
    rows = []
    for place, (method, n) in enumerate(sides["x"]):
        after = {
            "x": rule(masked["x"][place], whole["y"]),
            "y": rule(whole["x"], masked["y"][place]),
            "both": rule(masked["x"][place], masked["y"][place]),
        }
        for number, unit in enumerate(items):
            wanted = ("both",) if protocol.masked == "both" else ("x", "y")
            for side in wanted:
                found = {"before_similarity": float(before[number]), "after_similarity": float(after[side][number])}
                shown = sides["y" if side == "y" else "x"][method, n][number]
                rows.append(_row(unit, method, n, side, shown, found))
    return rows


def _sides(
    lens: Lens, items: list[Unit], opened: list[tuple[Picture, ...]], protocol: Protocol
) -> Iterator[tuple[str, Maps, Sequence[Frame]]]:
    """Maps of every method and n, and of the controls, for the images or for either side of the pairs."""
    most = max(protocol.n)
    if protocol.task == "classification":
        pictures = [pair[0] for pair in opened]
        trace = lens._trace(
            pictures, [unit.label for unit in items], n=most, score="logit", views=protocol.views, keep=False
        )
        found = {(m, n): trace.explain(m, n) for m in protocol.methods for n in protocol.n}
        yield "", _with_controls(found), trace.rows.origin.frames
        return
    x, y = [pair[0] for pair in opened], [pair[1] for pair in opened]
    pair = lens.trace_pair(x, y, n=most, views=protocol.views)
    pair.sides(protocol.task, keep=False)
    pair.release()
    both = {(m, n): pair.explain(m, n, score=protocol.task) for m in protocol.methods for n in protocol.n}
    for side, origin in zip("xy", pair.origins, strict=True):
        yield side, _with_controls({key: getattr(result, side) for key, result in both.items()}), origin.frames


def _with_controls(found: dict[tuple[str, int], Explanation]) -> Maps:
    maps = {key: result.maps for key, result in found.items()}
    first = next(iter(maps.values()))
    return maps | {(name, 0): make(*first.shape).to(first.device) for name, make in metrics.CONTROLS.items()}


def _box_grid(maps: Tensor, truths: list[Tensor], mode: str) -> Tensor:
    if mode == "all":
        return metrics.iou_grid(maps, truths)
    boxes = [locate.boxes(maps, threshold=float(t), mode="largest") for t in metrics.THRESHOLDS]
    return metrics.box_iou_grid(torch.stack(boxes, dim=1), truths)


def _truth(sample: Sample, label: int, frame: Frame) -> Tensor:
    """The boxes of that label in input pixels: (K,4)."""
    boxes = torch.tensor([[b.x0, b.y0, b.x1, b.y1] for b in sample.boxes if b.label == label]).reshape(-1, 4)
    height, width = sample.size or frame.original
    scale = torch.tensor([frame.original[1] / width, frame.original[0] / height]).repeat(2)
    return frame.boxes_in(boxes * scale)


def _mask(mask: np.ndarray[Any, np.dtype[np.bool_]], frame: Frame) -> Tensor:
    if mask.shape == (1, 1):
        return torch.zeros(frame.size, dtype=torch.bool)
    return frame.mask_in(torch.from_numpy(np.ascontiguousarray(mask)))


def _raw(lens: Lens, pictures: list[Picture]) -> Tensor:
    """Images in 0..1 at input size."""
    look = _look(lens)
    batch = prepare(pictures, look, Views()).batches[0]
    mean, std = (torch.tensor(value)[:, None, None] for value in (look.mean, look.std))
    return (batch * std + mean).clamp(0, 1)


def _look(lens: Lens) -> Transform:
    if not isinstance(lens.transform, Transform):
        raise GamlensError("Masking needs to know the model's mean and std: give the Lens a gamlens.Transform.")
    return lens.transform


def _masked(lens: Lens, raw: Tensor, maps: list[Tensor] | None, protocol: Protocol) -> Iterator[Tensor]:
    """The plain images, or image x map for every map, as batches for the model: several maps together up to LARGEST."""
    look = _look(lens)
    fill: Any = protocol.fill
    shown = [torch.ones(len(raw), *raw.shape[2:])] if maps is None else maps
    together = max(1, LARGEST // len(raw))
    for start in range(0, len(shown), together):
        part = torch.cat([values.cpu() for values in shown[start : start + together]])
        images = raw.repeat(len(part) // len(raw), 1, 1, 1)
        yield lens._fit(metrics.explain_mask(images, part, mean=look.mean, std=look.std, fill=fill), own=False)


def _confidences(
    lens: Lens, raw: Tensor, maps: list[Tensor] | None, labels: Tensor, protocol: Protocol
) -> dict[str, Tensor]:
    """Logit and probability of the true class under every map: {name: (M,N)}."""
    outputs = []
    for batch in _masked(lens, raw, maps, protocol):
        tail = lens._look(batch, [])
        outputs.append(wide(pick(tail.output, lens._output)).cpu())
    output = torch.cat(outputs)
    chance = scores.probabilities(output, multi_label=lens.multi_label)
    chosen = labels.repeat(len(output) // len(labels))[:, None]
    found = {"logit": output, "probability": chance}
    return {name: values.gather(1, chosen).view(-1, len(labels)) for name, values in found.items()}


def _embed(lens: Lens, raw: Tensor, maps: list[Tensor] | None, protocol: Protocol) -> Tensor:
    """Embeddings under every map: (M,N,D)."""
    found = []
    for batch in _masked(lens, raw, maps, protocol):
        tail = lens._look(batch, [], embedding=True)
        assert tail.embedding is not None
        found.append(wide(tail.embedding).flatten(1).cpu())
    embeddings = torch.cat(found)
    return embeddings.view(-1, len(raw), embeddings.shape[1])


def _head(unit: Unit) -> Row:
    return {"item": unit.name, "label": unit.label, "held_out": unit.held_out}


def _row(unit: Unit, method: str, n: int, side: str, map: Tensor, found: dict[str, Any]) -> Row:
    return {**_head(unit), "method": method, "n": n, "side": side, "map_mean": float(map.mean()), "error": "", **found}
