"""Groups of the images of an index, as hits: near duplicates, and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
        found.append([index.hit_of(images[int(now.slots[at])], float(best[i])) for i, at in enumerate(group)])
    return found


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
        found.append([index.hit_of(images[int(now.slots[at])], float(near_middle[at])) for at in order])
    return sorted((group for group in found if group), key=lambda group: -len(group))


def _normalised(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))
