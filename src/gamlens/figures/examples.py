"""Examples for a figure: image files of the user's, or items of a data set with their ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gamlens.data import Dataset, Sample, align
from gamlens.errors import GamlensError, Registry
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.figures.request import Example
from gamlens.inputs.images import upright
from gamlens.lens import Lens


def from_images(files: Sequence[str], *, masks: Path | None = None) -> tuple[Example, ...]:
    """One example per file; `masks` is a folder with a PNG of each image's name, bright where the object is."""
    return tuple(Example(file, mask=None if masks is None else _mask_of(file, masks)) for file in files)


def _mask_of(file: str, folder: Path) -> NDArray[np.bool_]:
    place, image = folder / f"{Path(file).stem}.png", upright(file)
    mask = np.asarray(upright(place).convert("L")) > 127
    if mask.shape != (image.height, image.width):
        raise GamlensError(
            f"The mask {str(place)!r} is {mask.shape[1]} x {mask.shape[0]}, its image {image.width} x "
            f"{image.height}: they must have one size."
        )
    return mask


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
    by_name = Registry("item", {unit.name: unit for unit in found})
    chosen = [by_name[name] for name in items] if items else found[:: max(1, len(found) // count)][:count]
    examples = []
    for unit in chosen:
        name, target = dataset.classes[unit.label], None if takes == "pairs" else unit.label
        title = "" if name.isdigit() else name.split(",")[0].replace("_", " ")
        examples += [replace(example_of(sample, unit, kind), target=target, title=title) for sample in unit.samples]
    return tuple(examples)


def example_of(sample: Sample, unit: Unit, kind: str) -> Example:
    """The image of a sample with the ground truth of its unit's class that runs of this kind are measured by."""
    own = [box for box in sample.boxes if box.label == unit.label and kind == "localization"]
    boxes = tuple((box.x0, box.y0, box.x1, box.y1) for box in own)
    mask, void = (sample.load_mask(unit.label), sample.void()) if kind == "segmentation" else (None, None)
    return Example(sample.image, boxes=boxes, size=sample.size, mask=mask, void=void)
