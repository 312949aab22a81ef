"""Evaluation data in the layouts its owners publish, read into Samples; and seeded subsets of it."""

from typing import Protocol

from gamlens.data.chestxray import chestxray
from gamlens.data.class_names import align, align_manifest, match
from gamlens.data.coco import coco
from gamlens.data.folder import folder
from gamlens.data.ilsvrc import ilsvrc
from gamlens.data.mnist import has_mnist, mnist, read_idx
from gamlens.data.reading import AnyPath
from gamlens.data.sample import Box, Dataset, Mask, MaskSource, Sample
from gamlens.data.subsets import Item, Manifest, hold_out, narrow, neighbour_pairs, pairs, small
from gamlens.data.table import table
from gamlens.data.voc import voc
from gamlens.errors import GamlensError, Registry


class DatasetReader(Protocol):
    """What an entry of DATASETS is."""

    def __call__(self, root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset: ...


DATASETS: Registry[DatasetReader] = Registry(
    "data set", {"ilsvrc": ilsvrc, "voc": voc, "coco": coco, "chestxray": chestxray, "folder": folder, "table": table}
)


def load(name: str, root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The data set of that name, in capitals or not, at `root`: of a split, the first `limit` samples by file name."""
    if str(name).lower() == "mnist":
        raise GamlensError("MNIST has no image files to list: use gamlens.data.mnist(root), which gives its arrays.")
    return DATASETS[str(name).lower()](root, split=split, limit=limit)
