"""Groups of the images of an index, as hits: near duplicates, and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gamlens.index.catalogue import IndexedImage
from gamlens.index.changes import Status
from gamlens.index.grouping import clusters, duplicate_groups
from gamlens.index.hits import Hit

if TYPE_CHECKING:
    from gamlens.index.index import Index

COMPARED_AT_ONCE = 1024  # rows of a group that are compared with all others at once


def duplicate_hits(index: Index, threshold: float, *, status: Status) -> list[list[Hit]]:
    """See `Index.duplicates`."""
    now = index.snapshot()
    rows = np.asarray(now.vectors[now.slots])
    groups = duplicate_groups(rows, threshold, status=status)
    images = index.catalogue.images(now.slots.tolist())
    found = []
    for group in groups:
        own = _normalised(rows[group])
        best = np.concatenate([_nearest_others(own, start) for start in range(0, len(own), COMPARED_AT_ONCE)])
        found.append(_hits_of(index, images, now.slots[group], best))
    return [hits for hits in found if len(hits) > 1]


def _nearest_others(own: np.ndarray[Any, Any], start: int) -> np.ndarray[Any, Any]:
    """The largest cosine of each of the next COMPARED_AT_ONCE rows with another one."""
    cosines = own[start : start + COMPARED_AT_ONCE] @ own.T
    at = np.arange(len(cosines))
    cosines[at, start + at] = -1
    return np.asarray(cosines.max(axis=1))


def cluster_hits(index: Index, count: int, *, seed: int, status: Status) -> list[list[Hit]]:
    """See `Index.clusters`."""
    now = index.snapshot()
    rows = np.asarray(now.vectors[now.slots])
    made = clusters(rows, count, seed=seed, status=status)
    images = index.catalogue.images(now.slots.tolist())
    near_middle = (_normalised(rows) * np.asarray(made.centres)[made.labels]).sum(axis=1)
    found = []
    for label in range(len(made.centres)):
        members = np.flatnonzero(made.labels == label)
        order = members[np.argsort(-near_middle[members], kind="stable")]
        found.append(_hits_of(index, images, now.slots[order], near_middle[order]))
    return sorted((group for group in found if group), key=lambda group: -len(group))


def _hits_of(
    index: Index, images: Mapping[int, IndexedImage], slots: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
) -> list[Hit]:
    """The images of some slots as hits. An image that another process has removed meanwhile is left out."""
    pairs = zip(slots.tolist(), values.tolist(), strict=True)
    return [index.hit_of(images[slot], value) for slot, value in pairs if slot in images]


def _normalised(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))
