"""The paper's measurements: one forward an image serves every method and n; masked forwards are batched across methods.

Each item gives one row a method and n (and side of a pair): scores before and after masking, IoU over the whole
threshold grid with its boxes, the peak's hit, the map's mean, or an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gamlens import boxes as locate
from gamlens import metrics, scores
from gamlens.engine import pieces
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.evaluation import masked
from gamlens.evaluation.batches import Ready, Row, error_row, head, ready, split
from gamlens.evaluation.protocol import Protocol, Unit
from gamlens.explanation import Explanation
from gamlens.fuse import at_least_float32
from gamlens.lens import Lens

Maps = dict[tuple[str, int], Tensor]
UNCHANGED = "ones"


def evaluate(lens: Lens, items: Sequence[Unit], protocol: Protocol, *, batch: int = 16) -> Iterator[list[Row]]:
    """Measure the items `batch` at a time; yields the rows of each batch. A bad item becomes an error row."""
    measured = False
    for chunk in pieces(items, batch):
        rows = measure(lens, ready(chunk, lens.transform, protocol), protocol, strict=not measured)
        measured = measured or any(not row["error"] for row in rows)
        yield rows


def measure(lens: Lens, batch: Ready, protocol: Protocol, *, strict: bool = False) -> list[Row]:
    """The rows of a batch. Where it fails, its items are tried one by one; `strict` raises if all of them fail."""
    rows = list(batch.errors)
    if not batch.units:
        return rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GamlensWarning)
        try:
            return rows + KINDS[protocol.kind](lens, batch, protocol)
        except GamlensError as error:
            failed = []
            for single in split(batch) if len(batch.units) > 1 else []:
                try:
                    rows += KINDS[protocol.kind](lens, single, protocol)
                except GamlensError as own:
                    failed.append(error_row(single.units[0], str(own)))
            if len(batch.units) == 1:
                failed = [error_row(batch.units[0], str(error))]
            if strict and len(failed) == len(batch.units):
                raise
            return rows + failed


def _localize(lens: Lens, batch: Ready, protocol: Protocol) -> list[Row]:
    rows: list[Row] = []
    for place, (side, maps) in enumerate(_sides(lens, batch, protocol)):
        truths = list(batch.truth[place])
        areas = [_area(boxes, maps) for boxes in truths]
        for (method, n), values in maps.items():
            boxes = _boxes(values, protocol.box)
            grid, hits = metrics.box_iou_grid(boxes, truths), metrics.pointing(values.cpu(), truths)
            for number, row in enumerate(_rows(batch, place, side, method, n, values)):
                row |= {"iou": grid[number].tolist(), "pointing": float(hits[number]), "area": areas[number]}
                row |= {"boxes": boxes[number].flatten().int().tolist(), "truth": truths[number].flatten().tolist()}
                rows.append(row)
    return rows


def _segment(lens: Lens, batch: Ready, protocol: Protocol) -> list[Row]:
    rows: list[Row] = []
    truth, void = (torch.stack(part) for part in zip(*batch.truth[0], strict=True))
    areas = (truth & ~void).flatten(1).double().mean(dim=1).tolist()
    for side, maps in _sides(lens, batch, protocol):
        for (method, n), values in maps.items():
            grid = metrics.mask_iou_grid(values.cpu(), truth, void)
            for number, row in enumerate(_rows(batch, 0, side, method, n, values)):
                rows.append(row | {"iou": grid[number].tolist(), "area": areas[number]})
    return rows


def _objective(lens: Lens, batch: Ready, protocol: Protocol) -> list[Row]:
    if protocol.task != "classification":
        return _objective_pairs(lens, batch, protocol)
    labels = torch.tensor([unit.label for unit in batch.units])
    trace = lens._trace(
        batch.sides[0], labels.tolist(), n=max(protocol.n), score="logit", views=protocol.views, keep=False
    )
    maps = _with_controls({(m, n): trace.explain(m, n) for m in protocol.methods for n in protocol.n})
    assert trace.output is not None
    before = masked.confidences(trace.output, labels, multi_label=lens.multi_label)
    images, asked = masked.raw(lens, batch.sides[0]), [key for key in maps if key[0] != UNCHANGED]
    after = masked.under_maps(lens, images, [maps[key] for key in asked], labels, protocol)
    rows: list[Row] = []
    for (method, n), values in maps.items():
        found = masked.curves(lens, images, values, labels, protocol) if protocol.curves else {}
        for number, row in enumerate(_rows(batch, 0, "", method, n, values)):
            for name, whole in before.items():
                shown = whole[0] if method == UNCHANGED else after[name][asked.index((method, n))]
                row |= {f"before_{name}": float(whole[0, number]), f"after_{name}": float(shown[number])}
            rows.append(row | {name: float(area[number]) for name, area in found.items()})
    return rows


def _objective_pairs(lens: Lens, batch: Ready, protocol: Protocol) -> list[Row]:
    rule = scores.find_pair_score(protocol.task)
    pair = lens._trace_pair(batch.sides[0], batch.sides[1], n=max(protocol.n), views=protocol.views)
    whole = dict(zip("xy", (at_least_float32(side.detach()).cpu() for side in pair.embeddings), strict=True))
    sides = dict(_pair_maps(pair, protocol))
    asked = [key for key in sides["x"] if key[0] != UNCHANGED]
    hidden = {
        side: masked.embeddings(lens, masked.raw(lens, images), [sides[side][key] for key in asked], protocol)
        for side, images in zip("xy", batch.sides, strict=True)
    }
    before = rule(whole["x"], whole["y"])
    rows: list[Row] = []
    for method, n in sides["x"]:
        at = None if method == UNCHANGED else asked.index((method, n))
        x, y = (whole[side] if at is None else hidden[side][at] for side in "xy")
        if protocol.masked == "both":
            after = {"both": rule(x, y)}
        else:
            after = {"x": rule(x, whole["y"]), "y": rule(whole["x"], y)}
        for side, value in after.items():
            place = int(side == "y")
            for number, row in enumerate(_rows(batch, place, side, method, n, sides["xy"[place]][method, n])):
                changed = float(before[number]) if at is None else float(value[number])
                rows.append(row | {"before_similarity": float(before[number]), "after_similarity": changed})
    return rows


KINDS = {"localization": _localize, "segmentation": _segment, "objective": _objective}


def _sides(lens: Lens, batch: Ready, protocol: Protocol) -> Iterator[tuple[str, Maps]]:
    """Maps of every method and n, and of the controls, for the images or for either side of the pairs."""
    most = max(protocol.n)
    if protocol.task == "classification":
        labels = [unit.label for unit in batch.units]
        trace = lens._trace(batch.sides[0], labels, n=most, score="logit", views=protocol.views, keep=False)
        yield "", _with_controls({(m, n): trace.explain(m, n) for m in protocol.methods for n in protocol.n})
        return
    yield from _pair_maps(lens._trace_pair(*batch.sides, n=most, views=protocol.views), protocol)


def _pair_maps(pair: Any, protocol: Protocol) -> Iterator[tuple[str, Maps]]:
    pair.sides(protocol.task, keep=False)
    pair.release()
    both = {(m, n): pair.explain(m, n, score=protocol.task) for m in protocol.methods for n in protocol.n}
    for side in "xy":
        yield side, _with_controls({key: getattr(result, side) for key, result in both.items()})


def _with_controls(found: dict[tuple[str, int], Explanation]) -> Maps:
    maps = {key: result.maps for key, result in found.items()}
    first = next(iter(maps.values()))
    return maps | {(name, 0): make(*first.shape).to(first.device) for name, make in metrics.CONTROLS.items()}


def _boxes(maps: Tensor, mode: str) -> Tensor:
    """The predicted box at every threshold: (N,H,W) -> (N,T,4)."""
    found = metrics.boxes_at(maps) if mode == "all" else locate.largest_boxes(maps, metrics.THRESHOLDS)
    return found.cpu()


def _area(boxes: Tensor, maps: Maps) -> float:
    """The largest box's share of the input."""
    height, width = next(iter(maps.values())).shape[1:]
    return float((boxes[:, 2:] - boxes[:, :2]).prod(dim=1).max()) / (height * width)


def _rows(batch: Ready, place: int, side: str, method: str, n: int, maps: Tensor) -> list[Row]:
    """The beginning of each item's row."""
    means = maps.mean(dim=(1, 2)).tolist()
    return [
        {
            **head(unit),
            "image": unit.samples[place].image,
            "held_out": unit.held_out[place],
            "method": method,
            "n": n,
            "side": side,
            "map_mean": mean,
            "error": "",
        }
        for unit, mean in zip(batch.units, means, strict=True)
    ]
