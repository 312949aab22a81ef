"""Data sets in the layouts that their owners publish, read into Samples; and seeded subsets of them.

A data set of one's own is a file in this folder with a `DatasetReader`, and a line in DATASETS.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from gamlens.data.chestxray import chestxray
from gamlens.data.class_names import align, align_manifest, match
from gamlens.data.coco import coco
from gamlens.data.cub import cub
from gamlens.data.folder import folder
from gamlens.data.ilsvrc import ilsvrc
from gamlens.data.mnist import has_mnist, mnist, read_idx
from gamlens.data.reading import AnyPath
from gamlens.data.sample import Box, Dataset, Mask, MaskSource, Sample
from gamlens.data.subsets import PAIRS_PER_CLASS, Item, Manifest, hold_out, narrow, neighbour_pairs, pairs, small
from gamlens.data.table import table
from gamlens.data.voc import voc
from gamlens.errors import Registry

Truth = Literal["boxes", "masks"]


class DatasetReader(Protocol):
    """A function that reads one data set as its owners publish it. `reading.py` has what readers share."""

    def __call__(self, root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
        """List the samples. Only the header of an image is read here, for its size; pixels and masks are read later.

        Args:
            root: The folder of the data set.
            split: The name of a part, such as "val"; None for the part that the reader's docstring names.
            limit: The largest number of samples: the first ones by name (`reading.cut`). None for all.

        Returns:
            A Dataset whose name is the entry's name in DATASETS, with the samples sorted by name, boxes in pixels of
            the image file, and labels that index `classes`.

        Raises:
            GamlensError: A file is missing or broken. The error says which file, where it was expected, and what to do.
        """


@dataclass(frozen=True)
class DatasetEntry:
    """An entry of DATASETS: a reader and facts about its data. Calling the entry calls the reader.

    Attributes:
        read: The reader.
        title: The name of the data set in texts, such as "PASCAL VOC".
        truth: The kinds of ground truth that it has, or can have, in addition to labels.
        measured_by: The kind of ground truth by which maps on this data set are usually evaluated. Tables mark a run
            that uses the other kind.
    """

    read: DatasetReader
    title: str
    truth: tuple[Truth, ...] = ()
    measured_by: Truth = "boxes"

    def __call__(self, root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
        return self.read(root, split=split, limit=limit)


DATASETS: Registry[DatasetEntry] = Registry(
    "data set",
    {
        "ilsvrc": DatasetEntry(ilsvrc, "ILSVRC-2012", ("boxes",)),
        "voc": DatasetEntry(voc, "PASCAL VOC", ("boxes", "masks"), measured_by="masks"),
        "coco": DatasetEntry(coco, "MS-COCO", ("boxes", "masks"), measured_by="masks"),
        "cub": DatasetEntry(cub, "CUB-200-2011", ("boxes", "masks")),
        "chestxray": DatasetEntry(chestxray, "ChestX-ray8", ("boxes",)),
        "folder": DatasetEntry(folder, "a folder per class"),
        "table": DatasetEntry(table, "a CSV or Parquet file", ("boxes",)),
    },
    hint=" Images of your own are 'folder' (a folder per class) or 'table' (a CSV or Parquet file). MNIST has no image "
    "files: use gamlens.data.mnist(root) in Python.",
)


def load(name: str, root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """Read the data set of that name from `root`.

    Args:
        name: A name in DATASETS, in upper or lower case.
        root: The folder of the data set. For "table" it is the file.
        split: The name of a part, such as "val"; None for the part that the reader's docstring names.
        limit: The largest number of samples: the first ones by name. None for all.
    """
    return DATASETS[str(name).lower()](root, split=split, limit=limit)


def names_with(truth: Truth) -> list[str]:
    """The names of the data sets that have boxes, or of those that have masks."""
    # A user may have put a plain function into DATASETS; it has no `truth` and is skipped.
    entries = ((name, entry) for name, entry in DATASETS.items() if isinstance(entry, DatasetEntry))
    return [name for name, entry in entries if truth in entry.truth]
