"""Make the maps of items and measure them.

One forward per image serves every method, n and fusion. Images that are masked by different maps share batches.

Each item gives one row per method, n and fusion (and side of a pair): what the item is, the mean of its map, and the
columns of every metric of the protocol's kind (METRICS); or an error.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens import boxes as locate
from gamlens import metrics, scores
from gamlens.engine import ResultRow, pieces
from gamlens.errors import GamlensError, GamlensWarning, attempt
from gamlens.evaluation import masked
from gamlens.evaluation.batches import Ready, error_row, head, ready, split
from gamlens.evaluation.metric_columns import measure_metrics
from gamlens.evaluation.protocol import CONTROL, Protocol, Unit
from gamlens.explanation import Explanation
from gamlens.fuse import Fusion, at_least_float32
from gamlens.lens import Lens
from gamlens.metrics import MetricInput
from gamlens.trace import Trace

MapKey = tuple[str, int, str]  # the method, n, and how the blocks are joined; controls have n = 0
Maps = dict[MapKey, Tensor]  # (N,H,W) each
UNCHANGED = "ones"  # the control that hides nothing: image x map is the image, so it needs no forward of its own


def evaluate(lens: Lens, items: Sequence[Unit], protocol: Protocol, *, batch: int = 16) -> Iterator[list[ResultRow]]:
    """Measure the items, `batch` at a time; yields the rows of each batch. An item that fails becomes an error row."""
    worker = Measurer(lens, protocol)
    for chunk in pieces(items, batch):
        yield worker.work(worker.load(chunk))


@dataclass
class Measurer:
    """The worker of an evaluation: decodes items with the model's transform, then measures them.

    `measured` says whether any item was measured so far, here or in an earlier run that this one continues. Until then,
    a batch in which every item fails raises its error, because the cause is likely to affect all items.
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
    """Return the rows of a batch. If the batch fails, its items are tried one by one; those that fail give error rows.

    With `strict` an error is raised if all of them fail.
    """
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
    trace = lens.trace(
        batch.sides[0], labels, n=max(protocol.n), method=protocol.methods, views=protocol.views,
        refine=protocol.refinement, keep_graph=False,
    )  # fmt: skip
    explain = partial(trace.explain, lattice=protocol.lattice, refine=protocol.refinement)
    maps, output = _with_controls(_explained(explain, protocol), trace, batch, 0, protocol), trace.output
    assert output is not None
    del trace
    inputs = _with_truth(batch, 0, maps, protocol)
    if "objective" in protocol.kinds:
        both = zip(inputs, _confidences(lens, batch, maps, output, protocol), strict=True)
        inputs = (replace(given, **found) for given, found in both)
    return _rows(batch, 0, "", maps, inputs, protocol)


def _pair_rows(lens: Lens, batch: Ready, protocol: Protocol) -> list[ResultRow]:
    pair = lens.trace_pair(
        *batch.sides, n=max(protocol.n), method=protocol.methods, views=protocol.views, refine=protocol.refinement
    )
    traces = pair.sides(protocol.task, keep=False)
    pair.release()
    whole = {side: at_least_float32(e.detach()).cpu() for side, e in zip("xy", pair.embeddings, strict=True)}
    explain = partial(pair.explain, score=protocol.task, lattice=protocol.lattice, refine=protocol.refinement)
    both, sides = _explained(explain, protocol), {}
    for place, (side, trace) in enumerate(zip("xy", traces, strict=True)):
        own = {key: getattr(result, side) for key, result in both.items()}
        sides[side] = _with_controls(own, trace, batch, place, protocol)
    similarities = _similarities(lens, batch, sides, whole, protocol) if "objective" in protocol.kinds else None
    if similarities is None:
        rows = []
        for place, (side, maps) in enumerate(sides.items()):
            rows += _rows(batch, place, side, maps, _with_truth(batch, place, maps, protocol), protocol)
        return rows
    return _similarity_rows(batch, sides, similarities, protocol)


def _with_truth(batch: Ready, place: int, maps: Maps, protocol: Protocol) -> Iterator[MetricInput]:
    """Yield one MetricInput per entry of `maps`: the maps with the boxes or masks of their items.

    `place` is the side of the items whose ground truth is used: 0 for x or a single image, 1 for y.
    """
    masks = _masks(batch, place) if "segmentation" in protocol.kinds else None
    for values in maps.values():
        if "localization" in protocol.kinds:
            whole = protocol.box == "all"
            boxes = metrics.boxes_at(values) if whole else locate.largest_boxes(values, metrics.THRESHOLDS)
            yield MetricInput(maps=values.cpu(), boxes=batch.truth[place], predicted=boxes.cpu())
        elif masks is not None:
            yield MetricInput(maps=values.cpu(), mask=masks[0], void=masks[1])
        else:
            yield MetricInput(maps=values)


def _areas(batch: Ready, place: int, size: torch.Size, protocol: Protocol) -> dict[str, list[Any]]:
    """The column `area`: the share of the input that the object covers, by its largest box or its mask."""
    if "localization" in protocol.kinds:
        boxes = [float((own[:, 2:] - own[:, :2]).prod(dim=1).max()) for own in batch.truth[place]]
        return {"area": [area / size.numel() for area in boxes]}
    if "segmentation" in protocol.kinds:
        truth, void = _masks(batch, place)
        return {"area": (truth & ~void).flatten(1).double().mean(dim=1).tolist()}
    return {}


def _masks(batch: Ready, place: int) -> tuple[Tensor, Tensor]:
    """The masks and the void pixels of one side, bool (N,H,W) each."""
    truth, void = (torch.stack(part) for part in zip(*batch.truth[place], strict=True))
    return truth, void


def _confidences(lens: Lens, batch: Ready, maps: Maps, output: Tensor, protocol: Protocol) -> Iterator[dict[str, Any]]:
    """Yield one dict per entry of `maps`: the fields `before` and `after` of a MetricInput, and curves if asked for.

    They hold the scores of the items' labels on the image and on image x map. All maps go through the model together;
    entries that are the same tensor, such as every fusion at n = 1, share a forward.
    """
    labels = torch.tensor([unit.label for unit in batch.units])
    before = masked.confidences(output, labels, multi_label=lens.multi_label, temperature=protocol.temperature)
    images = masked.raw(lens, batch.sides[0])
    asked = {id(values): values for (method, _, _), values in maps.items() if method != UNCHANGED}
    after = masked.under_maps(lens, images, list(asked.values()), labels, protocol)
    by_ranks: dict[str, Tensor] = {}
    different = {id(values): values for values in maps.values()}
    if protocol.equal_mass:
        ranked = [metrics.equal_mass(values) for values in different.values()]
        by_ranks = masked.under_maps(lens, images, ranked, labels, protocol)
    ranks = {place: number for number, place in enumerate(different)}
    order = {place: number for number, place in enumerate(asked)}
    whole = {name: values[0] for name, values in before.items()}
    for (method, _, _), values in maps.items():
        found = masked.curves(lens, images, values, labels, protocol) if protocol.curves else {}
        hidden = {name: own[order[id(values)]] for name, own in after.items()} if method != UNCHANGED else whole
        equal = {name: own[ranks[id(values)]] for name, own in by_ranks.items()}
        yield {"before": whole, "after": hidden, "equal_mass": equal, **found}


def _similarities(
    lens: Lens, batch: Ready, sides: Mapping[str, Maps], whole: Mapping[str, Tensor], protocol: Protocol
) -> dict[MapKey, dict[str, dict[str, Any]]]:
    """The similarity of pairs before and after images are masked, as fields of a MetricInput: {map: {side: fields}}.

    After: the masked x with the whole y (side "x"), and the whole x with the masked y ("y"); with `protocol.masked`
    "both", the masked x with the masked y ("both"). Entries that are the same tensor share a forward.

    Args:
        lens: The model.
        batch: The N pairs.
        sides: The maps of "x" and of "y".
        whole: The embeddings (N,D) of the unmasked images "x" and "y".
        protocol: The protocol.
    """
    rule = scores.find_pair_score(protocol.task).fn
    hidden: dict[str, dict[int, Tensor]] = {}
    by_ranks: dict[str, dict[MapKey, Tensor]] = {}
    for side, images in zip("xy", batch.sides, strict=True):
        asked = {id(values): values for (method, _, _), values in sides[side].items() if method != UNCHANGED}
        pixels = masked.raw(lens, images)
        found = masked.embeddings(lens, pixels, list(asked.values()), protocol)
        hidden[side] = dict(zip(asked, found, strict=True))
        if protocol.equal_mass:
            ranked = [metrics.equal_mass(values) for values in sides[side].values()]
            by_ranks[side] = dict(zip(sides[side], masked.embeddings(lens, pixels, ranked, protocol), strict=True))
    before = rule(whole["x"], whole["y"])

    def after(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if protocol.masked == "both":
            return {"both": rule(x, y)}
        return {"x": rule(x, whole["y"]), "y": rule(whole["x"], y)}

    similarities: dict[MapKey, dict[str, dict[str, Any]]] = {}
    for key in sides["x"]:
        x, y = (hidden[side].get(id(sides[side][key]), whole[side]) for side in "xy")
        equal = after(by_ranks["x"][key], by_ranks["y"][key]) if by_ranks else {}
        similarities[key] = {}
        for side, value in after(x, y).items():
            fields = {"before": before, "after": before if key[0] == UNCHANGED else value}
            fields |= {"equal_mass": equal[side]} if equal else {}
            similarities[key][side] = {name: {"similarity": scored} for name, scored in fields.items()}
    return similarities


def _similarity_rows(
    batch: Ready,
    sides: Mapping[str, Maps],
    similarities: Mapping[MapKey, Mapping[str, Mapping[str, Any]]],
    protocol: Protocol,
) -> list[ResultRow]:
    """The rows of pairs that have similarities, and for an ablation also what is measured by their ground truth."""
    inputs = {
        side: dict(zip(maps, _with_truth(batch, place, maps, protocol), strict=True))
        for place, (side, maps) in enumerate(sides.items())
    }
    rows: list[ResultRow] = []
    for key, by_side in similarities.items():
        for side, found in by_side.items():
            place = int(side == "y")
            own = "xy"[place]
            given = replace(inputs[own][key], **found)
            rows += _rows(batch, place, side, {key: sides[own][key]}, [given], protocol)
    return rows


def _explained(explain: Callable[[str, int, Fusion], Any], protocol: Protocol) -> dict[MapKey, Any]:
    """Call `explain` for every method, n and fusion of the protocol. At n = 1 all fusions share one result."""
    fusions = protocol.fusions or ("mean",)
    found: dict[MapKey, Any] = {}
    for method in protocol.methods:
        for n in protocol.n:
            for how in fusions:
                first = (method, 1, fusions[0])
                same = n == 1 and first in found
                found[method, n, how] = found[first] if same else explain(method, n, protocol.fusion(how, n))
    return found


def _with_controls(
    found: Mapping[MapKey, Explanation], trace: Trace, batch: Ready, place: int, protocol: Protocol
) -> Maps:
    """The maps of the methods and of the controls; `place` says which image of each item they are of."""
    maps = {key: result.maps for key, result in found.items()}
    first = next(iter(maps.values()))
    names, (height, width) = [unit.samples[place].name for unit in batch.units], first.shape[1:]
    for name, make in metrics.CONTROLS.items():
        maps[name, 0, CONTROL] = make(names, height, width).to(first.device)
    if protocol.refinement is not None:
        for name in metrics.REFINED_CONTROLS:
            maps[f"{name}_refined", 0, CONTROL] = trace.refine(maps[name, 0, CONTROL], protocol.refinement)
    return maps


def _rows(
    batch: Ready, place: int, side: str, maps: Maps, inputs: Iterable[MetricInput], protocol: Protocol
) -> list[ResultRow]:
    """Return one row per entry of `maps` and item: what the item is, followed by what was measured.

    Args:
        batch: The items.
        place: The image of each item that the maps belong to: 0 for x or a single image, 1 for y.
        side: The row's column `side`: "" for a class; "x", "y" or "both" for a pair.
        maps: The maps.
        inputs: One MetricInput per entry of `maps`, in the same order.
        protocol: The protocol.
    """
    rows: list[ResultRow] = []
    areas = _areas(batch, place, next(iter(maps.values())).shape[1:], protocol)
    for ((method, n, how), values), given in zip(maps.items(), inputs, strict=True):
        measured = {"map_mean": values.mean(dim=(1, 2)).tolist(), **areas, **measure_metrics(protocol.kinds, given)}
        for number, unit in enumerate(batch.units):
            row = {**head(unit), "image": unit.samples[place].image, "held_out": unit.held_out[place]}
            row |= {"method": method, "n": n, "side": side, "error": ""}
            row |= {name: column[number] for name, column in measured.items()}
            rows.append({**row, "fuse": how} if protocol.fusions else row)
    return rows
