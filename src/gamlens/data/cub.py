"""Caltech-UCSD Birds-200-2011 (Wah et al., 2011): photos of 200 kinds of birds, one box each, and perhaps masks.

The layout is that of CUB_200_2011.tgz. Each line of its lists begins with an id:

    CUB_200_2011/images.txt               1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
    CUB_200_2011/classes.txt              1 001.Black_footed_Albatross
    CUB_200_2011/image_class_labels.txt   1 1             image, class
    CUB_200_2011/train_test_split.txt     1 0             image, 1 for train or 0 for test
    CUB_200_2011/bounding_boxes.txt       1 60.0 27.0 325.0 304.0     image, x, y, width, height in pixels
    CUB_200_2011/images/CLASS/NAME.jpg
    segmentations/CLASS/NAME.png          of segmentations.tgz: inside of CUB_200_2011 or beside it
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from gamlens.data import reading
from gamlens.data.reading import AnyPath
from gamlens.data.sample import Box, Dataset, Mask, Sample
from gamlens.errors import GamlensError, Registry

Value = TypeVar("Value")
FOLDER = "CUB_200_2011"
IMAGES, CLASSES, LABELS = "images.txt", "classes.txt", "image_class_labels.txt"
SPLIT, BOXES = "train_test_split.txt", "bounding_boxes.txt"
UNPACK = f"Unpack {FOLDER}.tgz there as published."
PARTS = {"0": "test", "1": "train"}  # the flags of train_test_split.txt
MAJORITY = 128  # grey levels from here up, more than half of 255, are the bird
VOTE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # modes of 8 bits, which have a grey level of 0 to 255


@dataclass(frozen=True)
class VoteMask:
    """A PNG of segmentations: its grey level, 0 to 255, is the share of the annotators who marked the pixel as bird.

    The bird is where more than half of them did: a grey level of 128 or more. With five annotators the levels are
    multiples of 51, and three votes (153) are a majority. No pixel is void.

    Attributes:
        path: The file.
        label: The class of the bird.
        size: (H,W) of the image; None where it could not be read.
    """

    path: str
    label: int
    size: tuple[int, int] | None

    def read(self, label: int) -> Mask:
        mode, votes = reading.mask_pixels(self.path, "L")
        if mode not in VOTE_MODES:
            raise GamlensError(f"The mask {self.path!r} is {mode}, not grey of 8 bits: use segmentations as published.")
        if self.size is not None and votes.shape != self.size:
            raise GamlensError(
                f"The mask {self.path!r} is {votes.shape[1]} x {votes.shape[0]} pixels, its image {self.size[1]} x "
                f"{self.size[0]}: use images and segmentations as published, both unscaled."
            )
        return np.asarray(votes >= MAJORITY) if label == self.label else np.zeros(votes.shape, dtype=bool)

    def void(self) -> Mask | None:
        return None


@dataclass(frozen=True)
class _Lists:
    """The contents of the lists, and the folders beside them.

    Attributes:
        top: The folder CUB_200_2011.
        masks: The folder segmentations; None if there is none.
        index: {class id: class index}.
        labels: {image id: (class id,)}.
        boxes: {image id: (x, y, width, height)}.
    """

    top: Path
    masks: Path | None
    index: Mapping[str, int]
    labels: Registry[tuple[str, ...]]
    boxes: Registry[tuple[float, ...]]


def cub(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The images of a split: "test" (the default), "train" or "all". They are named by their path and sorted by it.

    `root` is the folder CUB_200_2011 or the one that holds it. Classes are in the order of classes.txt, without number
    and underscores: "Black footed Albatross". The part of a box outside of the image is cut off; a box without any part
    inside is an error. Where an image has a file in segmentations, the sample has its mask (see `VoteMask`).
    """
    if split not in (None, "test", "train", "all"):
        raise GamlensError(
            f'CUB-200-2011 has no split {split!r}: use "test" (the default), "train" or "all", which is both.'
        )
    base, part = reading.dataset_folder(root), split or "test"
    listing = reading.first([base / IMAGES, base / FOLDER / IMAGES], "list of images", UNPACK)
    top, paths = listing.parent, reading.lines_by_id(listing, "id path", str)
    parts = {} if part == "all" else _lines(top / SPLIT, "id is_training_image", _part)
    found = sorted((path, key) for key, (path,) in paths.items() if part == "all" or parts[key] == (part,))
    if not found:
        raise GamlensError(f"{str(listing)!r} lists no image of the split {part!r}: use the lists as published.")
    classes = _lines(top / CLASSES, "id name", str)
    index = {key: number for number, key in enumerate(classes)}
    labels, boxes = _lines(top / LABELS, "id class", str), _lines(top / BOXES, "id x y width height", float)
    chosen = reading.cut(found, limit)
    images, names = reading.first([top / "images"], "folder of images", UNPACK), [path for path, _ in chosen]
    reading.all_there(names, (name for name in names if (images / name).is_file()), images, listing)
    lists = _Lists(top, _masks(top), index, labels, boxes)
    samples = tuple(_sample(path, key, lists) for path, key in chosen)
    return Dataset("cub", str(root), tuple(_plain(name) for (name,) in classes.values()), samples)


def _lines(path: Path, columns: str, convert: Callable[[str], Value]) -> Registry[tuple[Value, ...]]:
    """`reading.lines_by_id` of a list that must be there."""
    return reading.lines_by_id(reading.first([path], f"list {path.name}", UNPACK), columns, convert)


def _masks(top: Path) -> Path | None:
    """The folder segmentations inside of the folder CUB_200_2011 or beside it."""
    beside = Path(os.path.abspath(top)).parent  # the parent of "." has a name only in the absolute path
    return next((place for place in (top / "segmentations", beside / "segmentations") if place.is_dir()), None)


def _part(flag: str) -> str:
    """The split that a flag of train_test_split.txt means."""
    if flag not in PARTS:
        raise ValueError("is_training_image must be 0 or 1")
    return PARTS[flag]


def _plain(name: str) -> str:
    """A class name for people: `001.Black_footed_Albatross` is "Black footed Albatross"."""
    return re.sub(r"^\d+\.", "", name).replace("_", " ")


def _sample(name: str, key: str, lists: _Lists) -> Sample:
    """The sample of one image, by its path and its id."""
    (class_id,) = lists.labels[key]
    label = reading.class_index(class_id, lists.index, f"The line of id {key} in {str(lists.top / LABELS)!r}")
    image = lists.top / "images" / name
    size = reading.size_if_readable(image)
    box = _box(lists.boxes[key], label, size, f"The box of id {key} in {str(lists.top / BOXES)!r}")
    png = None if lists.masks is None else (lists.masks / name).with_suffix(".png")
    mask = VoteMask(str(png), label, size) if png is not None and png.is_file() else None
    return Sample(name, str(image), (label,), (box,), size, mask)


def _box(given: tuple[float, ...], label: int, size: tuple[int, int] | None, where: str) -> Box:
    """Make a Box of `given` (x, y, width, height), and cut it at the border of an image of `size` (H,W).

    If no part of it lies inside the image, the error message begins with `where`.
    """
    x, y, width, height = given
    bottom, right = size or (math.inf, math.inf)
    x0, y0, x1, y1 = max(x, 0.0), max(y, 0.0), min(x + width, right), min(y + height, bottom)
    if not (x0 < x1 and y0 < y1):  # also where a number is NaN
        raise GamlensError(
            f"{where} has no part inside of its image{f' of {right} x {bottom} pixels' if size else ''}: found "
            f"x={x:g}, y={y:g}, width={width:g}, height={height:g}. Use the image and the list as published."
        )
    return Box(label, x0, y0, float(x1), float(y1))
