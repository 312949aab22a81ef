"""Groups of vectors: those that are nearly the same, and k-means clusters of directions.

Both look at directions only: vectors are divided by their lengths, and a vector of zeros, which has no direction, is in
no group and in no cluster. Vectors are read in blocks of rows, so that an array on disk (np.memmap) may be larger than
the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import GamlensError
from gamlens.index.directions import Doubles, Floats, Numbers, VectorDirections, vector_directions

COSINE_TIE = 1e-9  # cosines computed in float64 that differ by less are equal
SAME_DIRECTION = 1e-6  # k-means takes vectors with a cosine above 1 - this as one direction, medoids as equally close


@dataclass(frozen=True, eq=False)
class VectorClusters:
    """Clusters of N vectors, the largest cluster first (of equal ones, that with the lowest medoid number).

    Attributes:
        labels: The cluster of each vector, (N,), -1 for a vector of zeros.
        centres: The direction of the sum of each cluster's vectors after each was divided by its length, (K,D), of
            length 1; an earlier one if these cancel out.
        medoids: The number of the vector that is closest to each centre, (K,), which can stand for its cluster. Of
            equally close ones (in a cluster of two, both are), the lowest number.
    """

    labels: Numbers
    centres: Floats
    medoids: Numbers


def duplicate_groups(
    vectors: NDArray[Any], threshold: float, *, status: Callable[[int, int], None] = lambda done, total: None
) -> list[list[int]]:
    """Find groups of vectors that are nearly the same.

    Two vectors are linked if their cosine is at least `threshold`, and a group holds all vectors that are connected by
    links, so two vectors of a group may be less alike than the threshold. All pairs are compared: the time grows with
    N², the memory with N alone. Cosines near the threshold are computed again in float64, so the groups do not depend
    on rounding, on the order of the vectors, or on their lengths.

    Args:
        vectors: (N,D), read as float32.
        threshold: The least cosine of a link, from -1 to 1.
        status: Is told, after each block, how many pairs of blocks are done, and how many there are.

    Returns:
        The groups of at least two vectors as ascending numbers of rows, the largest group first, and of equally large
        ones that with the lowest number first.

    >>> duplicate_groups(np.array([[1.0, 0], [0, 1], [0, 2], [0, 0], [3, 4]]), 0.9)
    [[1, 2]]
    """
    if not -1 <= threshold <= 1:
        raise GamlensError(f"threshold={threshold}: give a cosine from -1 to 1, such as 0.95.")
    directions = vector_directions(vectors)
    blocks = list(directions.blocks())
    total, done = len(blocks) * (len(blocks) + 1) // 2, 0
    parents = np.arange(len(directions.numbers), dtype=np.int64)
    for number, first in enumerate(blocks):
        rows = directions.rows(first)
        for second in blocks[number:]:
            others = rows if second == first else directions.rows(second)
            _link_alike(parents, directions, rows @ others.T, (first.start, second.start), threshold)
            done += 1
            status(done, total)
    return [directions.numbers[group].tolist() for group in _components(parents)]


def clusters(
    vectors: NDArray[Any],
    count: int,
    *,
    seed: int = 0,
    iterations: int = 30,
    status: Callable[[int, int], None] = lambda done, total: None,
) -> VectorClusters:
    """Divide vectors into clusters of similar directions, by spherical k-means from a k-means++ start.

    Each vector goes to the centre with the highest cosine, then each centre becomes the direction of the sum of its
    vectors (divided by their lengths), until nothing changes. A cluster that loses all its vectors receives the vector
    that is farthest from its own centre. On one machine, the same vectors, count and seed give the same
    clusters.

    Dhillon and Modha, Concept decompositions for large sparse text data using clustering, 2001.
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007.

    Args:
        vectors: (N,D), read as float32.
        count: The number of clusters wanted. There are fewer if there are fewer different directions; none is empty.
        seed: Chooses the start.
        iterations: The most rounds.
        status: Is told, after each time all vectors were read, how often they were, and how often at most they will be.
    """
    for name, value, least in (("count", count, 1), ("seed", seed, 0), ("iterations", iterations, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise GamlensError(f"{name}={value!r}: give a whole number of at least {least}.")
    directions = vector_directions(vectors, beside=min(count, len(vectors)))
    most = min(count, len(directions.numbers))
    total = most + iterations + 1
    centres = _start_centres(directions, most, np.random.default_rng(seed), lambda done: status(done, total))
    labels = np.full(len(directions.numbers), -1, np.int64)
    for done in range(iterations if len(centres) else 0):
        before, (labels, sums) = labels, _nearest_centres(directions, centres)
        centres = _unit_or(sums, centres)
        status(most + done + 1, total)
        if np.array_equal(labels, before):
            break
    found = _largest_first(directions, labels, centres)
    status(total, total)
    every = np.full(len(vectors), -1, np.int64)
    every[directions.numbers] = found.labels
    return VectorClusters(labels=every, centres=found.centres, medoids=directions.numbers[found.medoids])


def _link_alike(
    parents: Numbers, directions: VectorDirections, cosines: Floats, starts: tuple[int, int], threshold: float
) -> None:
    """Link the pairs of two blocks whose cosine reaches the threshold.

    A sum of D products of float32 numbers has an error of at most about D/2 float32 steps. Cosines that lie so close to
    the threshold that this matters are computed again in float64, except for pairs that are connected by then.

    Args:
        parents: The forest of `_link`, changed in place.
        directions: Where the vectors are.
        cosines: The cosines of rows of one block with rows of another, (A,B).
        starts: The numbers of the first row of either block.
        threshold: The least cosine of a link.
    """
    margin = (directions.vectors.shape[1] + 4) * float(np.finfo(np.float32).eps)
    near = np.nonzero(cosines >= threshold - margin)
    certain = cosines[near] >= threshold + margin
    x, y = (place + start for place, start in zip(near, starts, strict=True))
    _link(parents, x[certain], y[certain])
    x, y = x[~certain], y[~certain]
    while len(x):
        apart = _roots(parents, x) != _roots(parents, y)
        x, y = x[apart], y[apart]
        px, py = x[: directions.step], y[: directions.step]
        exact = np.einsum("nd,nd->n", directions.doubles(px), directions.doubles(py))
        alike = exact >= threshold - COSINE_TIE
        _link(parents, px[alike], py[alike])
        x, y = x[directions.step :], y[directions.step :]


def _link(parents: Numbers, x: Numbers, y: Numbers) -> None:
    """Connect the pairs (x[i], y[i]) in a union-find forest.

    The parent of a member is lower than it, or itself at a root, so a root is the lowest member of its tree. In each
    round, each root that must be connected to lower ones is hung below the lowest of them.
    """
    while len(x):
        rx, ry = _roots(parents, x), _roots(parents, y)
        apart = rx != ry
        x, y = rx[apart], ry[apart]
        np.minimum.at(parents, np.maximum(x, y), np.minimum(x, y))


def _roots(parents: Numbers, members: Numbers) -> Numbers:
    """The roots of members (P,). The members become children of their roots, which shortens later ways."""
    found = parents[members]
    while not np.array_equal(found, above := parents[found]):
        found = above
    parents[members] = found
    return found


def _components(parents: Numbers) -> list[Numbers]:
    """The trees with at least two members, each in ascending order, the largest first."""
    roots = _roots(parents, np.arange(len(parents)))
    order = np.argsort(roots, kind="stable")
    trees = np.split(order, np.flatnonzero(np.diff(roots[order])) + 1)
    return sorted((tree for tree in trees if len(tree) > 1), key=lambda tree: (-len(tree), int(tree[0])))


def _start_centres(
    directions: VectorDirections, count: int, draw: np.random.Generator, read: Callable[[int], None]
) -> Floats:
    """Choose vectors as first centres by k-means++: (K,D), K <= count.

    Each is drawn with a probability that is proportional to 1 - cos with the nearest centre so far, which is half of
    the squared distance of vectors of length 1. Vectors that have the direction of a centre are not drawn.
    """
    distances = np.full(len(directions.numbers), 2.0)  # the most that 1 - cos can be
    chosen: list[Floats] = []
    while len(chosen) < count and (reach := np.cumsum(distances))[-1] > 0:
        place = int(np.searchsorted(reach, draw.random() * reach[-1], side="right"))
        place = min(place, int(np.flatnonzero(distances)[-1]))  # the product may be rounded up to the whole sum
        centre = directions.rows(slice(place, place + 1))
        for block in directions.blocks():
            off = directions.rows(block) - centre
            half = np.einsum("nd,nd->n", off, off) / 2
            distances[block] = np.minimum(distances[block], np.where(half > SAME_DIRECTION, half, 0))
        chosen.append(centre)
        read(len(chosen))
    return np.concatenate([np.empty((0, directions.vectors.shape[1]), np.float32), *chosen])


def _nearest_centres(directions: VectorDirections, centres: Floats) -> tuple[Numbers, Doubles]:
    """The nearest centre of each vector, (M,), and the sums of the vectors of each centre, (K,D). None stays empty."""
    labels = np.empty(len(directions.numbers), np.int64)
    cosines = np.empty(len(labels), np.float32)
    sums = np.zeros(centres.shape)
    for block in directions.blocks():
        rows = directions.rows(block)
        products = rows @ centres.T
        labels[block] = products.argmax(axis=1)
        cosines[block] = products.max(axis=1)
        order = np.argsort(labels[block], kind="stable")
        present, firsts = np.unique(labels[block][order], return_index=True)
        sums[present] += np.add.reduceat(rows[order], firsts, axis=0, dtype=np.float64)
    sizes = np.bincount(labels, minlength=len(centres))
    for empty in np.flatnonzero(sizes == 0):
        place = int(np.where(sizes[labels] > 1, cosines, np.inf).argmin())
        row = directions.rows(slice(place, place + 1))[0]
        sums[labels[place]] -= row
        sums[empty] += row
        sizes[[labels[place], empty]] += (-1, 1)
        labels[place], cosines[place] = empty, 1
    return labels, sums


def _unit_or(sums: Doubles, former: Floats) -> Floats:
    """The directions of sums (K,D), or the former centre where vectors cancel out."""
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    cancelled = lengths < SAME_DIRECTION
    return np.where(cancelled, former, sums / np.where(cancelled, 1, lengths)).astype(np.float32)


def _largest_first(directions: VectorDirections, labels: Numbers, centres: Floats) -> VectorClusters:
    """Find the medoids of clusters, the first of equally close vectors, and put the clusters in order."""
    cosines = np.empty(len(labels))
    for block in directions.blocks():
        cosines[block] = np.einsum("nd,nd->n", directions.doubles(block), centres[labels[block]].astype(np.float64))
    best = np.full(len(centres), -np.inf)
    np.maximum.at(best, labels, cosines)
    candidates = np.flatnonzero(cosines >= best[labels] - SAME_DIRECTION)
    medoids = candidates[np.unique(labels[candidates], return_index=True)[1]]
    order = np.lexsort((medoids, -np.bincount(labels, minlength=len(centres))))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return VectorClusters(labels=places[labels], centres=centres[order], medoids=medoids[order])
