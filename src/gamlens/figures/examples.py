"""Examples for a figure: image files of the user's, or items of a data set with their ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gamlens.data import Dataset, Sample, align
from gamlens.errors import GamlensError, near
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.figures.request import Example
from gamlens.inputs.images import upright
from gamlens.lens import Lens


def from_images(files: Sequence[str], *, masks: Path | None = None) -> tuple[Example, ...]:
    """One example per file; `masks` is a folder with a PNG of each image's name, bright where the object is."""
    found = []
    for file in files:
        mask = None
        if masks is not None:
            place = masks / f"{Path(file).stem}.png"
            mask = np.asarray(upright(place).convert("L")) > 127
            image = upright(file)
            if mask.shape != (image.height, image.width):
                raise GamlensError(
                    f"The mask {str(place)!r} is {mask.shape[1]} x {mask.shape[0]}, its image {image.width} x "
                    f"{image.height}: they must have one size."
                )
        found.append(Example(file, mask=mask))
    return tuple(found)


def from_dataset(
    dataset: Dataset, lens: Lens, *, takes: str = "images", count: int = 4, items: Sequence[str] = ()
) -> tuple[Example, ...]:
    """`count` items spread over the data set, or those named; pairs are neighbours of one class.

    `takes`: "images", "boxes", "masks", "pairs", or "overview" (an image and a pair).
    """
    if takes == "overview":
        one = from_dataset(dataset, lens, count=1, items=items[:1])
        return one + from_dataset(dataset, lens, takes="pairs", count=1, items=items[1:])
    task, kind = ("cosine", "localization") if takes == "pairs" else ("classification", "objective")
    kind = {"boxes": "localization", "masks": "segmentation"}.get(takes, kind)
    dataset = dataset if takes == "pairs" else align(dataset, lens.labels)
    found = [unit for unit in units(dataset, Protocol(kind, task, pairs="neighbour", hold_out=0)) if not unit.problem]
    chosen = _named(found, items) if items else found[:: max(1, len(found) // count)][:count]
    return tuple(_example(sample, unit, dataset, takes) for unit in chosen for sample in unit.samples)


def _named(found: list[Unit], items: Sequence[str]) -> list[Unit]:
    by_name = {unit.name: unit for unit in found}
    for name in items:
        if name not in by_name:
            raise GamlensError(f"There is no item {name!r} for this figure: {near(name, by_name)}")
    return [by_name[name] for name in items]


def _example(sample: Sample, unit: Unit, dataset: Dataset, takes: str) -> Example:
    boxes = tuple((b.x0, b.y0, b.x1, b.y1) for b in sample.boxes if b.label == unit.label)
    mask, void = (sample.load_mask(unit.label), sample.void()) if takes == "masks" else (None, None)
    target = None if takes == "pairs" else unit.label
    return Example(sample.image, target, _title(dataset.classes[unit.label]), boxes, sample.size, mask, void)


def _title(name: str) -> str:
    return "" if name.isdigit() else name.split(",")[0].replace("_", " ")
