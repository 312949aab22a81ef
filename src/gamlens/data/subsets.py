"""Manifests: lists of the items that are measured, in plain JSON. The same data and seed always give the same list."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from gamlens.data.reading import AnyPath, read_json, size_if_readable
from gamlens.data.sample import Dataset
from gamlens.errors import GamlensError, reworded
from gamlens.files import StagedFiles

PAIRS_PER_CLASS = 3  # how many pairs of each class are drawn, as in the paper


@dataclass(frozen=True, order=True)
class Item:
    """One thing to measure: the names of one image or of a pair, and the label to explain; -1 stands for any label."""

    names: tuple[str, ...]
    label: int = -1


@dataclass(frozen=True)
class Manifest:
    """Items of a data set.

    Attributes:
        kind: How they were chosen, in words.
        seed: The seed of the draw; None where nothing was drawn.
        source: The fingerprint of the data set that they were chosen from.
        items: The items.
    """

    kind: str
    seed: int | None
    source: str
    items: tuple[Item, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of all images in the items."""
        return frozenset(name for item in self.items for name in item.names)

    def check(self, dataset: Dataset) -> None:
        """Raise a GamlensError if this manifest was made from another data set."""
        found = dataset.fingerprint()
        if found != self.source:
            raise GamlensError(
                f"The manifest {self.kind!r} was made from data {self.source[:12]}, but {dataset.name!r} in "
                f"{dataset.root!r} is {found[:12]} ({len(dataset)} samples): use that data, or make the manifest anew."
            )

    def fingerprint(self) -> str:
        """sha256 of the items, in their order."""
        return hashlib.sha256(json.dumps([[*item.names, item.label] for item in self.items]).encode()).hexdigest()

    def save(self, path: AnyPath) -> None:
        """Write the manifest to a JSON file. A missing folder is created."""
        items = [[*item.names] if item.label < 0 else [*item.names, item.label] for item in self.items]
        lines = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in items)
        head = json.dumps({"kind": self.kind, "seed": self.seed, "source": self.source}, ensure_ascii=False, indent=2)
        text = f'{head[:-2]},\n  "items": [\n{lines}\n  ]\n}}\n'
        with StagedFiles() as staged:
            staged.write(Path(path), lambda file: file.write(text.encode()))

    @staticmethod
    def load(path: AnyPath) -> Manifest:
        contents = read_json(Path(path))
        todo = ". Expected kind, seed, source and items: make it anew with `gamlens subset`."
        with reworded(f"{str(path)!r} is not a manifest", KeyError, TypeError, ValueError, IndexError, todo=todo):
            seed, items = contents["seed"], tuple(_item(given) for given in contents["items"])
            return Manifest(str(contents["kind"]), None if seed is None else int(seed), str(contents["source"]), items)


def hold_out(dataset: Dataset, *, every: int = 10) -> Manifest:
    """Choose the images on which thresholds are chosen: sorted by name, the first and every `every`-th after it."""
    if every < 1:
        raise GamlensError(f"A hold-out takes every `every`-th image: give 1 or more; found every={every}.")
    items = sorted(Item((sample.name,)) for sample in dataset)
    return Manifest(f"hold-out every {every}", None, dataset.fingerprint(), tuple(items[::every]))


def small(dataset: Dataset, percentile: float, *, masks: bool = False) -> Manifest:
    """Choose the items with the smallest objects, by the share of its image that the object covers.

    Chosen are the items whose share is at most the given percentile of the shares of all items. With boxes, an item is
    an image, and its share is that of its largest box. With `masks`, an item is an image and a label, and void pixels
    do not count as object. Items without an object are left out.
    """
    if not 0 < percentile <= 100:
        raise GamlensError(
            f"A percentile must be above 0 and at most 100 (the protocol uses 25 and 10); found {percentile}."
        )
    shares = dict(_mask_shares(dataset) if masks else _box_shares(dataset))
    if not shares:
        truth = "masks" if masks else "boxes"
        instead = "boxes (masks=False, --boxes)" if masks else "masks (masks=True, --masks)"
        has_other = any(sample.boxes if masks else sample.mask is not None for sample in dataset)
        todo = f"measure them by {instead}" if has_other else f"use data with {truth}, or all items"
        raise GamlensError(
            f"The data set {dataset.name!r} in {dataset.root!r} has no {truth}, so the size of its objects is not "
            f"known: {todo}."
        )
    most = float(np.percentile(list(shares.values()), percentile))
    items = tuple(sorted(item for item, share in shares.items() if share <= most))
    return Manifest(f"small {percentile:g}% by {'mask' if masks else 'box'}", None, dataset.fingerprint(), items)


def pairs(dataset: Dataset, *, per_class: int = PAIRS_PER_CLASS, seed: int = 0) -> Manifest:
    """Draw `per_class` pairs of two different images of each class.

    Pairs are repeated only in a class that has fewer different pairs than that.
    """
    if per_class < 1:
        raise GamlensError(f"per_class is a number of pairs from 1 up; found {per_class}.")
    items: list[Item] = []
    for label, names in _by_class(dataset):
        draw = random.Random(f"{seed}:{label}").random  # the same numbers in every version of Python
        possible = len(names) * (len(names) - 1) // 2
        drawn: dict[tuple[str, ...], Item] = {}
        while len(drawn) < min(per_class, possible):
            one, other = int(draw() * len(names)), int(draw() * (len(names) - 1))
            pair = (names[one], names[other + (other >= one)])
            drawn.setdefault(tuple(sorted(pair)), Item(pair, label))
        distinct = list(drawn.values())
        items += [distinct[at % len(distinct)] for at in range(per_class)] if distinct else []
    return Manifest(f"pairs {per_class} per class", seed, dataset.fingerprint(), tuple(items))


def neighbour_pairs(dataset: Dataset) -> Manifest:
    """Pair each image of a class with the next one by name. Classes are ordered by the name of their first image."""
    classes = sorted(_by_class(dataset), key=lambda found: (found[1][0], found[0]))
    items = tuple(Item(pair, label) for label, names in classes for pair in pairwise(names))
    return Manifest("neighbour pairs", None, dataset.fingerprint(), items)


def narrow(dataset: Dataset, manifest: Manifest) -> Dataset:
    """The data set with only the images in the manifest, which must have been made from this data set."""
    manifest.check(dataset)
    names = manifest.names
    return replace(dataset, samples=tuple(sample for sample in dataset if sample.name in names))


def _item(given: list[str | int]) -> Item:
    *names, label = given if isinstance(given[-1], int) else (*given, -1)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"an item is names and perhaps a label, found {given}")
    return Item(tuple(map(str, names)), int(label))


def _by_class(dataset: Dataset) -> Iterator[tuple[int, list[str]]]:
    names: dict[int, list[str]] = defaultdict(list)
    for sample in sorted(dataset, key=lambda sample: sample.name):
        for label in sample.labels:
            names[label].append(sample.name)
    yield from sorted(names.items())


def _box_shares(dataset: Dataset) -> Iterator[tuple[Item, float]]:
    for sample in dataset:
        if sample.boxes and (size := sample.size or size_if_readable(sample.image)):
            yield Item((sample.name,)), max(box.area for box in sample.boxes) / (size[0] * size[1])


def _mask_shares(dataset: Dataset) -> Iterator[tuple[Item, float]]:
    for sample in dataset:
        void = sample.void()
        for label in sample.labels if sample.mask else ():
            mask = sample.load_mask(label)
            share = float((mask if void is None else mask & ~void).mean())
            if share > 0:
                yield Item((sample.name,), label), share
