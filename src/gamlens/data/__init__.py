"""Evaluation data in the layouts its owners publish, read into Samples; and seeded subsets of it."""

from __future__ import annotations

from typing import Protocol

from gamlens.data.chestxray import chestxray
from gamlens.data.classes import align, align_manifest, match
from gamlens.data.coco import coco
from gamlens.data.files import Root
from gamlens.data.folder import folder
from gamlens.data.ilsvrc import ilsvrc
from gamlens.data.mnist import has_mnist, mnist, read_idx
from gamlens.data.sample import Box, Dataset, Mask, MaskSource, Sample
from gamlens.data.subsets import Item, Manifest, hold_out, narrow, neighbour_pairs, pairs, small
from gamlens.data.table import table
from gamlens.data.voc import voc
from gamlens.errors import GamlensError, near


class Reader(Protocol):
    """What an entry of DATASETS is."""

    def __call__(self, root: Root, *, split: str | None = None, limit: int | None = None) -> Dataset: ...


DATASETS: dict[str, Reader] = {
    "ilsvrc": ilsvrc,
    "voc": voc,
    "coco": coco,
    "chestxray": chestxray,
    "folder": folder,
    "table": table,
}


def load(name: str, root: Root, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The data set of that name at `root`: of a split, and the first `limit` samples by file name."""
    return find(name)(root, split=split, limit=limit)


def find(name: str) -> Reader:
    """The reader of that name, in capitals or not, or an error with near matches."""
    if str(name).lower() in DATASETS:
        return DATASETS[str(name).lower()]
    if str(name).lower() == "mnist":
        raise GamlensError("MNIST has no image files to list: use gamlens.data.mnist(root), which gives its arrays.")
    raise GamlensError(f"There is no data set {name!r}: {near(str(name), DATASETS)}")


__all__ = [
    "Box",
    "DATASETS",
    "Dataset",
    "Item",
    "Manifest",
    "Mask",
    "MaskSource",
    "Reader",
    "Sample",
    "align",
    "align_manifest",
    "chestxray",
    "coco",
    "find",
    "folder",
    "hold_out",
    "ilsvrc",
    "load",
    "match",
    "has_mnist",
    "mnist",
    "narrow",
    "neighbour_pairs",
    "pairs",
    "read_idx",
    "small",
    "table",
    "voc",
]
