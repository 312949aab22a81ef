"""Measure the maps of items.

One forward per image serves every method of ours, n and fusion (`map_makers`). Images that are masked by different maps
share batches, and a masked image that several metrics ask for runs once (`masked`, `objective`).

Each item gives one row per method, n and fusion (and side of a pair): what the item is, the mean of its map, and the
columns of every metric of the protocol's kinds (METRICS); or an error.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens import boxes as locate
from gamlens import metrics
from gamlens.engine import ResultRow, pieces
from gamlens.errors import GamlensError, GamlensWarning, attempt, warn
from gamlens.evaluation.batches import Ready, error_row, head, ready, split
from gamlens.evaluation.map_makers import MadeMaps, MapKey, RowMaker, plain
from gamlens.evaluation.masked import IMAGES_AT_ONCE, IMAGES_AT_ONCE_ON_GPU, MaskedForwards, MaskedImages, seeded
from gamlens.evaluation.metric_columns import measure_metrics
from gamlens.evaluation.objective import ScoredItems, class_items, masked_fields, pair_items
from gamlens.evaluation.protocol import CONTROL, Protocol, Unit
from gamlens.inputs.batch import ModelInput
from gamlens.lens import Lens
from gamlens.metrics import MetricInput

Maps = dict[MapKey, Tensor]  # (N,H,W) each
NOISE_RADIUS = 0.02  # how far the noise of the maximal sensitivity moves a value of the normalised input


def evaluate(lens: Lens, items: Sequence[Unit], protocol: Protocol, *, batch: int = 16) -> Iterator[list[ResultRow]]:
    """Measure the items, `batch` at a time; yields the rows of each batch. An item that fails becomes an error row."""
    worker = Measurer(lens, protocol)
    for chunk in pieces(costed_items(items, protocol, batch=batch, chunk=len(items)), batch):
        yield worker.work(worker.load(chunk))


def costed_items(items: Sequence[Unit], protocol: Protocol, *, batch: int, chunk: int) -> Sequence[Unit]:
    """The items, of which those of the first batch of every chunk are marked: there, costs are measured."""
    if not protocol.cost:
        return items
    return [replace(unit, costed=place % chunk < batch) for place, unit in enumerate(items)]


@dataclass
class Measurer:
    """The worker of an evaluation: decodes items with the model's transform, then measures them.

    `measured` says whether any item was measured so far, here or in an earlier run that this one continues. Until then,
    a batch in which every item fails raises its error, because the cause is likely to affect all items.
    """

    lens: Lens
    protocol: Protocol
    measured: bool = False
    maker: RowMaker = field(init=False)

    def __post_init__(self) -> None:
        self.maker = RowMaker(self.lens, self.protocol)

    def load(self, items: Sequence[Unit]) -> Ready:
        return ready(items, self.lens.transform, self.protocol)

    def work(self, loaded: Ready) -> list[ResultRow]:
        rows = measure(self.maker, loaded, strict=not self.measured)
        self.measured = self.measured or any(not row["error"] for row in rows)
        return rows


def measure(maker: RowMaker, batch: Ready, *, strict: bool = False) -> list[ResultRow]:
    """Return the rows of a batch. If the batch fails, its items are tried one by one; those that fail give error rows.

    With `strict` an error is raised if all of them fail.
    """
    if not batch.units:
        return list(batch.errors)
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        whole = attempt(_measured_rows, maker, batch)
        if not isinstance(whole, GamlensError):
            return [*batch.errors, *whole]
        single = [attempt(_measured_rows, maker, one) for one in split(batch)] if len(batch.units) > 1 else [whole]
    found = list(zip(batch.units, single, strict=True))
    measured = [row for _, rows in found if not isinstance(rows, GamlensError) for row in rows]
    if strict and not measured:
        raise whole
    if len(batch.units) > 1 and not any(isinstance(rows, GamlensError) for _, rows in found):
        warn(f"A batch of {len(batch.units)} items failed and was measured one by one, which is slower: {whole}")
    failed = [error_row(unit, str(error)) for unit, error in found if isinstance(error, GamlensError)]
    return [*batch.errors, *measured, *failed]


def _measured_rows(maker: RowMaker, batch: Ready) -> list[ResultRow]:
    """The rows of a batch: of classes with side "", of pairs with the sides "x" and "y", or "both"."""
    protocol = maker.protocol
    labels = [unit.label for unit in batch.units]
    samples = [[unit.samples[place] for unit in batch.units] for place in range(len(batch.sides))]
    costed = protocol.cost and any(unit.costed for unit in batch.units)
    made = maker.make(batch.sides, labels, samples, costed=costed)
    sides = [_with_controls(made, maker, batch, place) for place in range(len(batch.sides))]
    made.traces = ()
    inputs = {
        place: dict(zip(maps, _with_truth(batch, place, maps, protocol), strict=True))
        for place, maps in enumerate(sides)
    }
    fields: dict[str, dict[MapKey, dict[str, Any]]]
    if "objective" in protocol.kinds:
        fields = _objective_fields(maker, batch, made, sides)
    else:
        names = "xy" if maker.of_pairs else ("",)
        fields = {name: {key: {} for key in sides[place]} for place, name in enumerate(names)}
    rows: list[ResultRow] = []
    for side, by_key in fields.items():
        place = int(side == "y")
        given = []
        for key, own in by_key.items():
            base = inputs[place][key]
            known: dict[str, Any] = {**own, **_costs(made, key, protocol, len(labels))}
            for name in ("hidden", "maps_of_masked", "maps_of_noisy"):  # these lie where the maps do
                if name in known:
                    known[name] = known[name].to(base.maps.device)
            given.append(replace(base, **known))
        maps = {key: sides[place][key] for key in by_key}
        rows += _rows(batch, place, side, maps, given, protocol)
    return rows


def _costs(made: MadeMaps, key: MapKey, protocol: Protocol, items: int) -> dict[str, Tensor]:
    """The fields `seconds` and `peak_bytes` of a MetricInput; {} if the costs of this row were not measured."""
    found: dict[str, Tensor] = {}
    if protocol.cost and key in made.seconds:
        found["seconds"] = torch.full((items,), made.seconds[key], dtype=torch.float64)
    if protocol.cost and key in made.peak_bytes:
        found["peak_bytes"] = made.peak_bytes[key]
    return found


def _objective_fields(
    maker: RowMaker, batch: Ready, made: MadeMaps, sides: Sequence[Maps]
) -> dict[str, dict[MapKey, dict[str, Any]]]:
    """The fields of a MetricInput that the model's score gives: {side: {key: fields}}.

    Of pairs x is masked while y stays whole ("x"), and the other way round ("y"); with `protocol.masked` "both", the
    masked x is compared with the masked y ("both").
    """
    protocol, lens = maker.protocol, maker.lens
    gpu = lens.device.type == "cuda"
    run = maker.scorer.embed if maker.of_pairs else maker.scorer.outputs
    forwards = MaskedForwards(run, at_once=IMAGES_AT_ONCE_ON_GPU if gpu else IMAGES_AT_ONCE)
    images = []
    for place, (prepared, whole) in enumerate(zip(batch.sides, made.outputs, strict=True)):
        names = [unit.samples[place].name for unit in batch.units]
        images.append(MaskedImages(lens, prepared, names, protocol, forwards, whole))
    if maker.of_pairs:
        items = pair_items((images[0], images[1]), protocol)
        masked = {"both": (0, 1)} if protocol.masked == "both" else {"x": (0,), "y": (1,)}
    else:
        labels = torch.tensor([unit.label for unit in batch.units])
        items = class_items(images[0], labels, protocol, multi_label=lens.multi_label)
        masked = {"": (0,)}
    wanted = [(side, key) for side in masked for key in sides[0]]
    rows = [[(place, sides[place][key]) for place in masked[side]] for side, key in wanted]
    found: dict[str, dict[MapKey, dict[str, Any]]] = {side: {} for side in masked}
    for (side, key), fields in zip(wanted, masked_fields(items, rows), strict=True):
        found[side][key] = fields
    for side, places in masked.items():
        if len(places) == 1:
            _explain_again(maker, batch, items, places[0], sides[places[0]], found[side])
    return found


def _explain_again(
    maker: RowMaker,
    batch: Ready,
    items: ScoredItems,
    place: int,
    maps: Maps,
    found: Mapping[MapKey, dict[str, Any]],
) -> None:
    """Add the maps of image x map, and of noisy copies of the images, to the fields of every row.

    A control does not look at the image: its maps are the same. A refined control does, by the network's blocks, but it
    is not explained again, so it has none. Neither have maps that another program wrote.
    """
    protocol = maker.protocol
    labels, controls = [unit.label for unit in batch.units], [key for key in maps if key[0] in metrics.CONTROLS]
    if protocol.coherency:
        for key, values in maps.items():
            inputs: list[Any] = [plain(side).batches[0] for side in batch.sides]
            inputs[place] = items.images[place].hidden(values)
            again = {key: maps[key]} if key in controls else {
                one: made[place] for one, made in maker.again(inputs, labels, [key]).items()
            }  # fmt: skip
            if key in again:
                found[key]["maps_of_masked"] = again[key]
    if protocol.sensitivity:
        copies = []
        for number in range(protocol.sensitivity):
            noisy = [
                _with_noise(side, items.images[place].names, number) if own == place else side
                for own, side in enumerate(batch.sides)
            ]
            copies.append({key: made[place] for key, made in maker.all_again(noisy, labels).items()})
        for key, values in maps.items():
            own = [values] * len(copies) if key in controls else [copy.pop(key) for copy in copies if key in copy]
            if own:
                found[key]["maps_of_noisy"] = torch.stack([one.to(values.device) for one in own])


def _with_noise(side: ModelInput, names: Sequence[str], number: int) -> ModelInput:
    """The images with uniform noise of at most NOISE_RADIUS, the same in every view, at the view's size."""
    shape = side.batches[0].shape[1:]
    noise = torch.stack([torch.rand(shape, generator=seeded(name, number + 1)) for name in names])
    noise = (NOISE_RADIUS * (2 * noise - 1)).to(side.batches[0])
    batches = []
    for batch, mirrored in zip(side.batches, side.mirrored, strict=True):
        own = noise if batch.shape == noise.shape else F.interpolate(noise, size=batch.shape[2:], mode="nearest")
        batches.append(batch + (own.flip(3) if mirrored else own))
    return replace(side, batches=tuple(batches))


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


def _with_controls(made: MadeMaps, maker: RowMaker, batch: Ready, place: int) -> Maps:
    """The maps of the methods and of the controls; `place` says which image of each item they are of."""
    maps = {key: own[place] for key, own in made.maps.items()}
    first = next(iter(maps.values()))
    names, (height, width) = [unit.samples[place].name for unit in batch.units], first.shape[1:]
    for name, make in metrics.CONTROLS.items():
        maps[name, 0, CONTROL] = make(names, height, width).to(first.device)
    if maker.refines is not None and made.traces:
        for name in metrics.REFINED_CONTROLS:
            maps[f"{name}_refined", 0, CONTROL] = made.traces[place].refine(maps[name, 0, CONTROL], maker.refines)
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
