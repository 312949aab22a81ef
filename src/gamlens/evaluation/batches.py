"""Batches of items for the model. Threads decode and prepare them ahead, so that the model need not wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens.data import Sample
from gamlens.engine import ResultRow
from gamlens.errors import GamlensError, attempt, readable
from gamlens.evaluation.protocol import Protocol, Unit
from gamlens.inputs.batch import ModelInput, Views, join, part, prepare
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.inputs.transform import ExternalTransform, Transform


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch of items that is ready for the model.

    Attributes:
        units: The N items whose images could be read.
        sides: One prepared batch per side. A side is x or y of a pair; an item of one image has one side.
        truth: truth[side][item] is the ground truth in pixels of the model's input: boxes (K,4), or for segmentation
            the mask and the void pixels, (H,W) each.
        errors: The error rows of the items whose images could not be read.
    """

    units: tuple[Unit, ...]
    sides: tuple[ModelInput, ...]
    truth: tuple[tuple[Any, ...], ...]
    errors: tuple[ResultRow, ...]


def ready(chunk: Sequence[Unit], transform: Transform | ExternalTransform, protocol: Protocol) -> Ready:
    """Decode and transform the images of items and their ground truth. An item that fails becomes an error row."""
    views = Views.parse(protocol.all_views)
    found = [(unit, attempt(_opened, unit, transform, views, protocol.truth)) for unit in chunk]
    good = [(unit, own) for unit, own in found if not isinstance(own, GamlensError)]
    errors = tuple(error_row(unit, str(own)) for unit, own in found if isinstance(own, GamlensError))
    # From one list of (input, truth) per item, one pair per side, to one pair of tuples (inputs, truths) per side.
    sides = [tuple(zip(*side, strict=True)) for side in zip(*(own for _, own in good), strict=True)]
    inputs, truths = tuple(join(inputs) for inputs, _ in sides), tuple(truths for _, truths in sides)
    return Ready(tuple(unit for unit, _ in good), inputs, truths, errors)


def split(batch: Ready) -> list[Ready]:
    """The items of a batch one by one, to find the one that fails."""
    singles = []
    for number, unit in enumerate(batch.units):
        sides = tuple(part(side, number) for side in batch.sides)
        singles.append(Ready((unit,), sides, tuple((side[number],) for side in batch.truth), ()))
    return singles


def head(unit: Unit) -> ResultRow:
    return {"item": readable(unit.name), "image": readable(unit.samples[0].image), "label": unit.label}


def error_row(unit: Unit, reason: str) -> ResultRow:
    return {**head(unit), "held_out": unit.held_out[0], "method": "", "n": 0, "side": "", "error": reason}


def _opened(
    unit: Unit, transform: Transform | ExternalTransform, views: Views, kind: str
) -> list[tuple[ModelInput, Any]]:
    """The prepared input and the ground truth of each image of an item."""
    if unit.problem:
        raise GamlensError(unit.problem)
    sides = [prepare(Picture(sample.name, path=sample.image), transform, views) for sample in unit.samples]
    truths = (_truth(s, unit.label, side.frames[0], kind) for s, side in zip(unit.samples, sides, strict=True))
    return list(zip(sides, truths, strict=True))


def _truth(sample: Sample, label: int, frame: Frame, kind: str) -> Any:
    """Return the ground truth of a label in pixels of the model's input, as `Ready.truth` holds it.

    Boxes refer to an image of `sample.size`, which may differ from the size of the image file.
    """
    if kind == "segmentation":
        mask, void = sample.load_mask(label), sample.void()
        return _mask(mask, frame), torch.zeros(frame.size, dtype=torch.bool) if void is None else _mask(void, frame)
    boxes = torch.tensor([[b.x0, b.y0, b.x1, b.y1] for b in sample.boxes if b.label == label]).reshape(-1, 4)
    height, width = sample.size or frame.original
    scale = torch.tensor([frame.original[1] / width, frame.original[0] / height]).repeat(2)
    return frame.boxes_in(boxes * scale)


def _mask(mask: Any, frame: Frame) -> Tensor:
    return frame.mask_in(torch.from_numpy(mask.copy()))
