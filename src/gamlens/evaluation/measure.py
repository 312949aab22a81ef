"""The paper's measurements. One forward per image serves every method, n and fusion; masked images are batched across
all of their maps.

Each item gives one row per method, n and fusion (and side of a pair): scores before and after masking, IoU over the
whole threshold grid with its boxes, whether the map's peak hits the object, the map's mean; or an error.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens import boxes as locate
from gamlens import metrics, scores
from gamlens.engine import ResultRow, pieces
from gamlens.errors import GamlensError, GamlensWarning, attempt
from gamlens.evaluation import masked
from gamlens.evaluation.batches import Ready, error_row, head, ready, split
from gamlens.evaluation.protocol import CONTROL, Protocol, Unit
from gamlens.explanation import Explanation
from gamlens.fuse import Fusion, at_least_float32
from gamlens.lens import Lens

MapKey = tuple[str, int, str]  # the method, n, and how the blocks are joined; controls have n = 0
Maps = dict[MapKey, Tensor]  # (N,H,W) each
MapColumns = dict[MapKey, dict[str, list[Any]]]  # what was measured of each map: columns of one value per item
UNCHANGED = "ones"


def evaluate(lens: Lens, items: Sequence[Unit], protocol: Protocol, *, batch: int = 16) -> Iterator[list[ResultRow]]:
    """Measure the items `batch` at a time; yields the rows of each batch. A bad item becomes an error row."""
    worker = Measurer(lens, protocol)
    for chunk in pieces(items, batch):
        yield worker.work(worker.load(chunk))


@dataclass
class Measurer:
    """Decodes items for the model's transform, then measures them.

    Until something was `measured`, here or in an earlier try, a batch of which every item fails is an error of the
    whole run.
    """

    lens: Lens
    protocol: Protocol
    measured: bool = False

    def load(self, items: Sequence[Unit]) -> Ready:
        return ready(items, self.lens.transform, self.protocol)

    def work(self, loaded: Ready) -> list[ResultRow]:
        rows = measure(self.lens, loaded, self.protocol, strict=not self.measured)
        self.measured = self.measured or any(not row["error"] for row in rows)
        return rows


def measure(lens: Lens, batch: Ready, protocol: Protocol, *, strict: bool = False) -> list[ResultRow]:
    """The rows of a batch. Where it fails, its items are tried one by one; `strict` raises if all of them fail."""
    if not batch.units:
        return list(batch.errors)
    make = _class_rows if protocol.task == "classification" else _pair_rows
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        whole = attempt(make, lens, batch, protocol)
        if not isinstance(whole, GamlensError):
            return [*batch.errors, *whole]
        single = [attempt(make, lens, one, protocol) for one in split(batch)] if len(batch.units) > 1 else [whole]
    found = list(zip(batch.units, single, strict=True))
    measured = [row for _, rows in found if not isinstance(rows, GamlensError) for row in rows]
    if strict and not measured:
        raise whole
    failed = [error_row(unit, str(error)) for unit, error in found if isinstance(error, GamlensError)]
    return [*batch.errors, *measured, *failed]


def _class_rows(lens: Lens, batch: Ready, protocol: Protocol) -> list[ResultRow]:
    labels = [unit.label for unit in batch.units]
    trace = lens.trace(batch.sides[0], labels, n=max(protocol.n), views=protocol.views, keep_graph=False)
    maps, output = _with_controls(_explained(trace.explain, protocol)), trace.output
    assert output is not None
    del trace
    found = []
    if "localization" in protocol.kinds:
        found.append(_box_columns(batch, 0, maps, protocol))
    if "segmentation" in protocol.kinds:
        found.append(_mask_columns(batch, maps))
    if "objective" in protocol.kinds:
        found.append(_confidence_columns(lens, batch, maps, output, protocol))
    return _rows(batch, 0, "", maps, found, protocol)


def _pair_rows(lens: Lens, batch: Ready, protocol: Protocol) -> list[ResultRow]:
    pair = lens.trace_pair(*batch.sides, n=max(protocol.n), views=protocol.views)
    pair.sides(protocol.task, keep=False)
    pair.release()
    whole = {side: at_least_float32(e.detach()).cpu() for side, e in zip("xy", pair.embeddings, strict=True)}
    both = _explained(lambda method, n, how: pair.explain(method, n, how, score=protocol.task), protocol)
    sides = {side: _with_controls({key: getattr(result, side) for key, result in both.items()}) for side in "xy"}
    if protocol.kind == "objective":
        return _similarity_rows(lens, batch, sides, whole, protocol)
    rows = []
    for place, (side, maps) in enumerate(sides.items()):
        rows += _rows(batch, place, side, maps, [_box_columns(batch, place, maps, protocol)], protocol)
    return rows


def _box_columns(batch: Ready, place: int, maps: Maps, protocol: Protocol) -> MapColumns:
    truths = list(batch.truth[place])
    height, width = next(iter(maps.values())).shape[1:]
    areas = [float((boxes[:, 2:] - boxes[:, :2]).prod(dim=1).max()) / (height * width) for boxes in truths]
    found: MapColumns = {}
    for key, values in maps.items():
        whole = protocol.box == "all"
        boxes = (metrics.boxes_at(values) if whole else locate.largest_boxes(values, metrics.THRESHOLDS)).cpu()
        grid, hits = metrics.box_iou(boxes, truths), metrics.pointing(values.cpu(), truths)
        found[key] = {
            "iou": grid.tolist(),
            "pointing": hits.double().tolist(),
            "area": areas,
            "boxes": boxes.flatten(1).int().tolist(),
            "truth": [own.flatten().tolist() for own in truths],
        }
    return found


def _mask_columns(batch: Ready, maps: Maps) -> MapColumns:
    truth, void = (torch.stack(part) for part in zip(*batch.truth[0], strict=True))
    areas = (truth & ~void).flatten(1).double().mean(dim=1).tolist()
    return {
        key: {"iou": metrics.mask_iou_grid(values.cpu(), truth, void).tolist(), "area": areas}
        for key, values in maps.items()
    }


def _confidence_columns(lens: Lens, batch: Ready, maps: Maps, output: Tensor, protocol: Protocol) -> MapColumns:
    """Confidences of the true class on the image and on image x map. Maps that are the same tensor share a forward."""
    labels = torch.tensor([unit.label for unit in batch.units])
    before = masked.confidences(output, labels, multi_label=lens.multi_label)
    images = masked.raw(lens, batch.sides[0])
    asked = {id(values): values for (method, _, _), values in maps.items() if method != UNCHANGED}
    after = masked.under_maps(lens, images, list(asked.values()), labels, protocol)
    order = {place: number for number, place in enumerate(asked)}
    found: MapColumns = {}
    for key, values in maps.items():
        columns = masked.curves(lens, images, values, labels, protocol) if protocol.curves else {}
        for name, whole in before.items():
            shown = whole[0] if key[0] == UNCHANGED else after[name][order[id(values)]]
            columns |= {f"before_{name}": whole[0], f"after_{name}": shown}
        found[key] = {name: column.tolist() for name, column in columns.items()}
    return found


def _similarity_rows(
    lens: Lens, batch: Ready, sides: Mapping[str, Maps], whole: Mapping[str, Tensor], protocol: Protocol
) -> list[ResultRow]:
    """The similarity of each pair, and that with one image, or both, masked by its map. `whole`: embeddings (N,D)."""
    rule = scores.find_pair_score(protocol.task).fn
    asked = [key for key in sides["x"] if key[0] != UNCHANGED]
    hidden = {
        side: masked.embeddings(lens, masked.raw(lens, images), [sides[side][key] for key in asked], protocol)
        for side, images in zip("xy", batch.sides, strict=True)
    }
    before = rule(whole["x"], whole["y"])
    rows: list[ResultRow] = []
    for key in sides["x"]:
        x, y = (hidden[side][asked.index(key)] if key in asked else whole[side] for side in "xy")
        if protocol.masked == "both":
            after = {"both": rule(x, y)}
        else:
            after = {"x": rule(x, whole["y"]), "y": rule(whole["x"], y)}
        for side, value in after.items():
            place = int(side == "y")
            now = value if key in asked else before
            columns = {"before_similarity": before.tolist(), "after_similarity": now.tolist()}
            rows += _rows(batch, place, side, {key: sides["xy"[place]][key]}, [{key: columns}], protocol)
    return rows


def _explained(explain: Callable[[str, int, Fusion], Any], protocol: Protocol) -> dict[MapKey, Any]:
    """Every method, n and fusion of the protocol; at n = 1 all fusions are the same."""
    fusions = protocol.fusions or ("mean",)
    found: dict[MapKey, Any] = {}
    for method in protocol.methods:
        for n in protocol.n:
            for how in fusions:
                first = (method, 1, fusions[0])
                same = n == 1 and first in found
                found[method, n, how] = found[first] if same else explain(method, n, protocol.fusion(how, n))
    return found


def _with_controls(found: Mapping[MapKey, Explanation]) -> Maps:
    maps = {key: result.maps for key, result in found.items()}
    first = next(iter(maps.values()))
    return maps | {(name, 0, CONTROL): make(*first.shape).to(first.device) for name, make in metrics.CONTROLS.items()}


def _rows(
    batch: Ready, place: int, side: str, maps: Maps, columns: Sequence[MapColumns], protocol: Protocol
) -> list[ResultRow]:
    """One row per map and item: what the item is, followed by what was measured."""
    rows: list[ResultRow] = []
    for key, values in maps.items():
        method, n, how = key
        measured: dict[str, list[Any]] = {"map_mean": values.mean(dim=(1, 2)).tolist()}
        for own in columns:
            measured |= own[key]
        for number, unit in enumerate(batch.units):
            row = {**head(unit), "image": unit.samples[place].image, "held_out": unit.held_out[place]}
            row |= {"method": method, "n": n, "side": side, "error": ""}
            row |= {name: column[number] for name, column in measured.items()}
            rows.append({**row, "fuse": how} if protocol.fusions else row)
    return rows
