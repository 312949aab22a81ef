"""PASCAL VOC: masks of classes in palette PNGs, boxes in XML."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.data import reading
from gamlens.data.class_names import VOC_CLASSES
from gamlens.data.reading import Annotation, AnyPath
from gamlens.data.sample import Dataset, Mask, Sample, labels_of
from gamlens.errors import GamlensError, near

VOC_INDEX = {name: number for number, name in enumerate(VOC_CLASSES)}
VOID = 255


@dataclass(frozen=True)
class PaletteMask:
    """A PNG of SegmentationClass: 0 is background, 1 to 20 are the classes, 255 is void."""

    path: str

    def values(self) -> NDArray[Any]:
        """The palette indices (H,W)."""
        mode, values = reading.mask_pixels(self.path)
        if mode not in ("P", "L"):
            raise GamlensError(
                f"The mask {self.path!r} is {mode}, not a palette PNG of class indices: use the files of "
                "SegmentationClass as published."
            )
        return values

    def read(self, label: int) -> Mask:
        return np.asarray(self.values() == label + 1)

    def void(self) -> Mask | None:
        return np.asarray(self.values() == VOID)


def voc(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The images that ImageSets/Segmentation/`split`.txt lists, else ImageSets/Main/`split`.txt; "val" by default.

    `split` may name the folder, too: "Main/val". Labels come from the masks for a list in Segmentation and from the XML
    files for a list in Main, or from the other of the two if such a file is missing. Boxes have the XML's numbers.
    """
    base = reading.dataset_folder(root)
    top = next((p for p in (base / "VOCdevkit" / "VOC2012", base / "VOC2012") if p.is_dir()), base)
    split, sets = split or "val", top / "ImageSets"
    places = [sets / f"{split}.txt"] if "/" in split else [sets / f / f"{split}.txt" for f in ("Segmentation", "Main")]
    lists = sorted(str(path.relative_to(sets).with_suffix("")) for path in sets.glob("*/*.txt"))
    todo = f"Lists there: {near(places[0].parent.name + '/' + split, lists)}"
    listing = reading.first(places, f"list of the VOC split {split!r}", todo)
    names = list(dict.fromkeys(line.split()[0] for line in reading.text(listing).splitlines() if line.strip()))
    images = reading.first([top / "JPEGImages"], "folder of images", "Unpack VOC there as published.")
    chosen = reading.cut(sorted(names), limit)
    reading.all_there([f"{name}.jpg" for name in chosen], reading.images_in(images), images, listing)
    by_mask = listing.parent.name == "Segmentation"
    samples = tuple(_sample(top, name, by_mask=by_mask) for name in chosen)
    return Dataset("voc", str(root), VOC_CLASSES, samples)


def _sample(top: Path, name: str, *, by_mask: bool) -> Sample:
    image, xml = top / "JPEGImages" / f"{name}.jpg", top / "Annotations" / f"{name}.xml"
    png = top / "SegmentationClass" / f"{name}.png"
    mask = PaletteMask(str(png)) if png.is_file() else None
    note = reading.read_xml(xml) if xml.is_file() else Annotation()
    boxes, size = note.boxes(VOC_INDEX, repr(str(xml))), note.size
    labels = labels_of(boxes)
    if mask and (by_mask or not xml.is_file()):
        values = mask.values()
        labels, size = _shown(values, mask.path), size or (values.shape[0], values.shape[1])
    return Sample(name, str(image), labels, boxes, size or reading.image_size(image), mask)


def _shown(values: NDArray[Any], path: str) -> tuple[int, ...]:
    """The labels that the palette indices (H,W) of a mask hold."""
    found = [int(value) for value in np.flatnonzero(np.bincount(values.ravel(), minlength=1)) if value not in (0, VOID)]
    if found and found[-1] > len(VOC_CLASSES):
        raise GamlensError(
            f"The mask {path!r} holds the value {found[-1]}: expected 0 to {len(VOC_CLASSES)} and {VOID} (void). "
            "Use the files of SegmentationClass, not of SegmentationObject."
        )
    return tuple(value - 1 for value in found)
