"""`Sample`, one image with its ground truth, and `Dataset`, many of them. They hold paths of files, never pixels."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import GamlensError
from gamlens.files import check_plain

Mask = NDArray[np.bool_]
HASHED_IMAGES = 32  # how many images `Dataset.contents` reads at most


class MaskSource(Protocol):
    """The masks of one image, which are read from their file at each call."""

    def read(self, label: int) -> Mask:
        """The pixels (H,W) of all instances of that label."""

    def void(self) -> Mask | None:
        """The pixels (H,W) that no measure may count, or None where there are none."""


@dataclass(frozen=True)
class Box:
    """A ground-truth box in pixels of the image file: x0 <= x < x1 and y0 <= y < y1 (half-open)."""

    label: int
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        return max(self.x1 - self.x0, 0.0) * max(self.y1 - self.y0, 0.0)


def labels_of(boxes: Iterable[Box]) -> tuple[int, ...]:
    """The class indices of boxes, sorted, each of them once."""
    return tuple(sorted({box.label for box in boxes}))


@dataclass(frozen=True)
class Sample:
    """An image file, its class indices, and its boxes and masks where the data set has them.

    Attributes:
        name: Its name in the data set, by which manifests and results refer to it.
        image: The path of the image file.
        labels: The indices of the classes that it shows, sorted.
        boxes: The boxes of its objects.
        size: (H,W) of the image that the boxes refer to. It may be None if there is no box or the file is broken.
        mask: Its masks; None where there are none.
    """

    name: str
    image: str
    labels: tuple[int, ...] = ()
    boxes: tuple[Box, ...] = ()
    size: tuple[int, int] | None = None
    mask: MaskSource | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    def load_mask(self, label: int) -> Mask:
        """Read the pixels (H,W) of that label; all of them are False where the image does not show it."""
        if self.mask is None:
            raise GamlensError(
                f"{self.name!r} has no mask: its data set gives none for {self.image!r}. Use its boxes "
                f"({len(self.boxes)}), or a data set that has masks."
            )
        return self.mask.read(label)

    def void(self) -> Mask | None:
        """Read the pixels (H,W) that no measure may count; None where there are none."""
        return None if self.mask is None else self.mask.void()


@dataclass(frozen=True)
class Dataset:
    """Samples in order, whose names must all differ, and the class names that their labels index.

    Attributes:
        name: The name in DATASETS.
        root: Where the data set was read from.
        classes: The class names; `Sample.labels` and `Box.label` are indices of them.
        samples: The samples.
    """

    name: str
    root: str
    classes: tuple[str, ...]
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        most = Counter(sample.name for sample in self.samples).most_common(1)
        if most and most[0][1] > 1:
            raise GamlensError(
                f"The data set {self.name!r} in {self.root!r} has {most[0][1]} samples named {most[0][0]!r}: "
                "names must differ, since manifests refer to them."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def fingerprint(self) -> str:
        """The sha256 of names, labels and boxes. It does not depend on the folder or on the order of the samples."""
        rows = [
            [s.name, list(s.labels), [[b.label, *map(float, (b.x0, b.y0, b.x1, b.y1))] for b in s.boxes]]
            for s in sorted(self.samples, key=lambda s: s.name)
        ]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def contents(self) -> str:
        """The sha256 of up to 32 image files, spread evenly over the data set.

        It tells two data sets apart that have the same names but other pixels, and does not depend on the folder. Files
        that cannot be read are skipped.
        """
        by_name = sorted(self.samples, key=lambda s: s.name)
        found = hashlib.sha256()
        for sample in by_name[:: max(1, math.ceil(len(by_name) / HASHED_IMAGES))]:
            with suppress(OSError, GamlensError):
                check_plain(sample.image)
                with open(sample.image, "rb") as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()
