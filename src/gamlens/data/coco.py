"""MS-COCO's instances: boxes, and masks, which pycocotools decodes. Crowd regions are void: metrics ignore them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gamlens.data import reading
from gamlens.data.plausible import check_pixels
from gamlens.data.reading import AnyPath
from gamlens.data.sample import Box, Dataset, Mask, Sample, labels_of
from gamlens.errors import GamlensError, reworded

Note = Mapping[str, Any]
BEYOND = 4  # how many times the larger side of its image a coordinate may be, and its outline the number of pixels
AS_PUBLISHED = "use an instances_*.json as published."


@dataclass(frozen=True)
class _Instances:
    """The contents of an annotation file.

    Attributes:
        classes: The class names in the order of their category ids.
        images: The file's records of the images.
        annotations: {image id: the annotations of the image}. Each annotation also has its class index, as `label`.
    """

    classes: tuple[str, ...]
    images: tuple[Note, ...]
    annotations: Mapping[int, Sequence[Note]]

    def notes(self, image: int, *, crowd: bool) -> list[Note]:
        """The annotations of an image: those of crowd regions, or all others."""
        return [note for note in self.annotations[image] if bool(note.get("iscrowd")) == crowd]


@dataclass(frozen=True)
class InstanceMask:
    """The masks of one image, from an annotation file that each process reads once."""

    file: str
    image_id: int
    size: tuple[int, int]

    def read(self, label: int) -> Mask:
        return self._union([note for note in self._notes(crowd=False) if note["label"] == label])

    def void(self) -> Mask | None:
        crowds = self._notes(crowd=True)
        return self._union(crowds) if crowds else None

    def _notes(self, *, crowd: bool) -> list[Note]:
        return _instances(self.file).notes(self.image_id, crowd=crowd)

    def _union(self, notes: list[Note]) -> Mask:
        """The union (H,W) of annotations, which are polygons or run lengths."""
        coder = reading.import_extra("pycocotools.mask", "Reading COCO masks")
        union = np.zeros(self.size, dtype=bool)
        for shape in filter(None, (note["segmentation"] for note in notes)):
            with reworded(f"Cannot read a mask of image {self.image_id} in {self.file!r}", todo=f". {AS_PUBLISHED}"):
                _check_shape(shape, self.size)
                raw = isinstance(shape, list) or isinstance(shape["counts"], list)
                codes = coder.frPyObjects(shape, *self.size) if raw else shape
                union |= coder.decode(coder.merge(codes) if isinstance(codes, list) else codes).astype(bool)
        return union


def _check_shape(shape: Any, size: tuple[int, int]) -> None:
    """Raise a ValueError if a segmentation does not belong to an image of `size` (H,W).

    pycocotools allocates what a segmentation asks for. That is the size of run lengths, and, for polygons, some numbers
    per pixel of their outline.
    """
    height, width = size
    if not isinstance(shape, list):
        if list(shape["size"]) != [height, width]:
            raise ValueError(f"it is of the size {shape['size']}, its image of {[height, width]}")
        return
    for polygon in shape:
        points = np.asarray(polygon, dtype=np.float64)[: len(polygon) // 2 * 2].reshape(-1, 2)
        if not (np.abs(points) <= BEYOND * max(size)).all():  # also where a number is NaN
            raise ValueError(f"a polygon reaches far beyond its image of {width} x {height} pixels")
        outline = np.abs(points - np.roll(points, 1, axis=0)).max(axis=1, initial=0.0).sum()
        if outline > BEYOND * (height + 1) * (width + 1):
            raise ValueError(f"the outline of a polygon is {outline:.0f} pixels long, longer than the image has pixels")


def coco(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The images of annotations/instances_`split`.json, sorted by file name. The default split is "val2017".

    "2017" may be left out: "val" means "val2017".

    Labels index the categories in the order of their ids. Crowd regions give neither labels nor boxes.
    """
    base = reading.dataset_folder(root)
    years = [split] if split and split[-4:].isdigit() else [f"{split or 'val'}2017", split or "val"]
    file = reading.first(
        [base / "annotations" / f"instances_{year}.json" for year in years],
        f"COCO split {split or 'val2017'!r}",
        "Unpack annotations_trainval2017.zip there.",
    )
    images = reading.first(
        [base / file.stem.removeprefix("instances_")], "folder of images", "Unpack the images' zip there."
    )
    instances = _instances(str(file))
    chosen = reading.cut(sorted(instances.images, key=lambda image: str(image["file_name"])), limit)
    reading.all_there([image["file_name"] for image in chosen], reading.images_in(images), images, file)
    samples = tuple(_sample(image, images, file, instances) for image in chosen)
    return Dataset("coco", str(root), instances.classes, samples)


def _sample(image: Note, images: Path, file: Path, instances: _Instances) -> Sample:
    boxes = []
    for note in instances.notes(image["id"], crowd=False):
        x, y, width, height = map(float, note["bbox"])
        boxes.append(Box(note["label"], x, y, x + width, y + height))
    size = (image["height"], image["width"])
    mask = InstanceMask(str(file), image["id"], size)
    name = str(image["file_name"])
    return Sample(Path(name).stem, str(images / name), labels_of(boxes), tuple(boxes), size, mask)


def _instances(file: str) -> _Instances:
    path = Path(file)
    if not path.is_file():
        raise GamlensError(f"The annotation file {file!r} is gone, and masks are read from it: put it back.")
    return _read(file, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(file: str, changed: int) -> _Instances:
    """Read and check an annotation file; `changed` is its time stamp, so that a rewritten file is read again."""
    contents = reading.read_json(Path(file))
    todo = f". Expected categories, images and annotations with bbox and segmentation: {AS_PUBLISHED}"
    errors = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
    with reworded(f"{file!r} is not a COCO instances file", *errors, todo=todo):
        categories = sorted(contents["categories"], key=lambda category: int(category["id"]))
        labels = {category["id"]: number for number, category in enumerate(categories)}
        grouped: dict[int, list[Note]] = defaultdict(list)
        for note in contents["annotations"]:
            if note["category_id"] not in labels or len(note["bbox"]) != 4 or "segmentation" not in note:
                raise ValueError(f"annotation {note.get('id')} has an unknown category, no bbox or no segmentation")
            note["label"] = labels[note["category_id"]]
            grouped[note["image_id"]].append(note)
        images = tuple(contents["images"])
        by_image = {image["id"]: grouped[image["id"]] for image in images}
        if not all({"file_name", "height", "width"} <= image.keys() for image in images):
            raise ValueError("an image has no file_name, height or width")
        for image in images:
            image.update(height=int(image["height"]), width=int(image["width"]))
            check_pixels(image["height"], image["width"], f"The image {image['file_name']!r} in {file!r}")
        names = tuple(str(category["name"]) for category in categories)
    return _Instances(names, images, by_image)
