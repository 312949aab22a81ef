"""Near duplicates and clusters: cases by hand, twins in loops of Python floats, and invariants."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.index import directions
from gamlens.index.grouping import VectorClusters, _nearest_centres, clusters, duplicate_groups

EAST, NORTH, WEST, NEAR_NORTH = [5.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [3.0, 4.0]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows, so that few vectors make many blocks."""
    monkeypatch.setattr(directions, "MOST_BLOCK_ROWS", 3)


def some_vectors(count: int, size: int, *, seed: int = 0) -> np.ndarray[Any, Any]:
    """Vectors around a few directions, with some equal ones, multiples, opposite ones and zeros among them."""
    make = np.random.default_rng(seed)
    middles = make.normal(size=(4, size))
    made = middles[make.integers(4, size=count)] + 0.3 * make.normal(size=(count, size))
    for source, target, factor in ((0, 5, 1.0), (1, 7, 2.0), (2, 9, -1.0), (3, 11, 0.0)):
        made[target % count] = factor * made[source % count]
    return made.astype(np.float32)


def unit(vector: Any) -> list[float]:
    values = [float(value) for value in vector]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values] if length else values


def cosine_of(x: Any, y: Any) -> float:
    return sum(a * b for a, b in zip(unit(x), unit(y), strict=True))


# near duplicates


def groups_in_loops(vectors: Any, threshold: float) -> list[list[int]]:
    """Grow one group after the other from its lowest vector."""
    left = [number for number, vector in enumerate(vectors) if any(vector)]
    groups = []
    while left:
        group, fresh = [], [left.pop(0)]
        while fresh:
            group.append(fresh.pop())
            linked = [n for n in left if cosine_of(vectors[n], vectors[group[-1]]) >= threshold - 1e-9]
            left = [n for n in left if n not in linked]
            fresh += linked
        groups.append(sorted(group))
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (1.0, [[0, 4]]),
        (0.81, [[0, 4]]),
        (0.8, [[0, 4], [1, 3]]),  # (0,1) and (3,4)/5: 0.8
        (0.61, [[0, 4], [1, 3]]),
        (0.6, [[0, 1, 3, 4]]),  # (1,0) and (3,4)/5: 0.6, which connects all but the opposite one
        (0.0, [[0, 1, 2, 3, 4]]),  # (0,1) and (-1,0): 0
        (-1.0, [[0, 1, 2, 3, 4]]),
    ],
)
def test_groups_by_hand(threshold: float, expected: list[list[int]]) -> None:
    vectors = np.array([EAST, NORTH, WEST, NEAR_NORTH, EAST, [0.0, 0.0]], dtype=np.float32)
    assert duplicate_groups(vectors, threshold) == expected


def test_a_chain_is_one_group_and_the_largest_group_is_first() -> None:
    angles = np.radians([200, 0, 10, 20, 201, 90, 91])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert duplicate_groups(vectors, math.cos(math.radians(11))) == [[1, 2, 3], [0, 4], [5, 6]]
    assert duplicate_groups(vectors, math.cos(math.radians(9))) == [[0, 4], [5, 6]]


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.3, 0.7, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.usefixtures("small_blocks")
def test_groups_are_those_of_the_twin(size: int, threshold: float) -> None:
    for count in (1, 2, 3, 4, 20):
        vectors = some_vectors(count, size, seed=count)
        assert duplicate_groups(vectors, threshold) == groups_in_loops(vectors, threshold)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=14), st.sampled_from([0.0, 0.5, 0.6, 0.8, 1.0]))
def test_groups_of_small_integers(rows: list[tuple[int, ...]], threshold: float) -> None:
    """Many cosines are equal to the threshold but for rounding."""
    vectors = np.array(rows, dtype=np.int64).reshape(-1, 3)
    assert duplicate_groups(vectors, threshold) == groups_in_loops(vectors, threshold)


@pytest.mark.parametrize("seed", range(5))
def test_a_permutation_of_vectors_permutes_the_groups(small_blocks: None, seed: int) -> None:
    vectors, order = some_vectors(30, 8), np.random.default_rng(seed).permutation(30)
    for threshold in (0.8, 1.0):
        moved = duplicate_groups(vectors[order], threshold)
        back = [sorted(order[group].tolist()) for group in moved]
        assert sorted(back) == sorted(duplicate_groups(vectors, threshold))


def test_lengths_do_not_matter_to_groups(small_blocks: None) -> None:
    vectors = some_vectors(30, 8)
    factors = np.random.default_rng(1).uniform(0.1, 10, size=(30, 1)).astype(np.float32)
    huge = np.float32(2.0) ** np.random.default_rng(1).integers(-90, 90, size=(30, 1)).astype(np.float32)
    for threshold in (0.5, 0.8, 0.95):
        expected = duplicate_groups(vectors, threshold)
        assert duplicate_groups(vectors * factors, threshold) == expected
        assert duplicate_groups(vectors * huge, threshold) == expected


def test_equal_vectors_reach_a_threshold_of_one_for_any_size() -> None:
    make = np.random.default_rng(0)
    for size in (3, 257, 1280):
        vector = make.normal(size=size).astype(np.float32)
        assert duplicate_groups(np.stack([vector, -vector, vector, vector * np.float32(3)]), 1.0) == [[0, 2, 3]]
    assert duplicate_groups(np.ones((2100, 3), np.float32), 1.0) == [list(range(2100))]


def test_a_cosine_near_the_threshold_is_decided_in_float64() -> None:
    """Two thresholds that lie on either side of a cosine, closer to it than float32 products can tell."""
    x, y = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
    y = (x + y * np.float32(0.1)).astype(np.float32)
    cosine = cosine_of(x, y)
    assert duplicate_groups(np.stack([x, y]), cosine - 1e-8) == [[0, 1]]
    assert duplicate_groups(np.stack([x, y]), cosine + 1e-8) == []


# k-means


def clusters_in_loops(vectors: Any, count: int, seed: int, iterations: int) -> list[int]:
    """Labels in the order of the first centres, for vectors of which none is zero and no cluster becomes empty."""
    draw, units = np.random.default_rng(seed), [unit(vector) for vector in vectors]
    far, centres = [2.0] * len(units), []
    for _ in range(count):
        target, place = draw.random() * sum(far), 0
        while sum(far[: place + 1]) <= target:
            place += 1
        centres.append(units[place])
        far = [min(f, 1 - cosine_of(u, centres[-1])) for f, u in zip(far, units, strict=True)]
    labels: list[int] = []
    for _ in range(iterations):
        labels = [max(range(count), key=lambda k: cosine_of(u, centres[k])) for u in units]
        for k in range(count):
            own = [u for u, label in zip(units, labels, strict=True) if label == k]
            centres[k] = unit([sum(values) for values in zip(*own, strict=True)])
    return labels


def check_clusters(found: VectorClusters, vectors: Any) -> None:
    """What holds for all clusters: none is empty, centres are sums of their vectors, medoids are closest to them."""
    units = np.array([unit(vector) for vector in vectors])
    count = len(found.centres)
    assert (found.labels.dtype, found.centres.dtype, found.medoids.dtype) == (np.int64, np.float32, np.int64)
    assert (found.labels.shape, found.medoids.shape) == ((len(vectors),), (count,))
    assert [label == -1 for label in found.labels] == [not any(vector) for vector in vectors]
    sizes = [int((found.labels == k).sum()) for k in range(count)]
    assert min(sizes, default=1) >= 1
    assert sizes == sorted(sizes, reverse=True)
    for k in range(count):
        members = np.flatnonzero(found.labels == k)
        total = units[members].sum(axis=0)
        if np.linalg.norm(total) > 1e-3:
            np.testing.assert_allclose(found.centres[k], unit(total), atol=1e-6)
        cosines = units[members] @ found.centres[k].astype(np.float64)
        np.testing.assert_allclose(np.linalg.norm(found.centres[k]), 1, atol=1e-6)
        assert found.medoids[k] in members[cosines >= cosines.max() - 1.2e-6]
        assert found.medoids[k] <= members[np.flatnonzero(cosines >= cosines.max() - 0.8e-6)[0]]
    assert [found.medoids[k] for k in np.lexsort((found.medoids, [-size for size in sizes]))] == found.medoids.tolist()


def partition(labels: Any) -> list[list[int]]:
    """The clusters as sets of vectors, whatever their numbers are."""
    return sorted(np.flatnonzero(np.asarray(labels) == k).tolist() for k in set(np.asarray(labels).tolist()) - {-1})


def test_clusters_by_hand() -> None:
    """Which of three states is reached depends on the start. In each, every vector is nearest to its own centre."""
    vectors = np.array([[0, 3], [4, 3], [2, 0], [0, 0], [5, 0], [4, -3]], dtype=np.float32)
    states = {  # labels: the sums of the vectors of length 1, medoids
        (1, 0, 0, -1, 0, 0): ([[3.6, 0], [0, 1]], [2, 0]),
        (1, 1, 0, -1, 0, 0): ([[2.8, -0.6], [0.8, 1.6]], [2, 0]),  # (0,1) and (4,3)/5 are equally close to the second
        (0, 0, 0, -1, 0, 1): ([[2.8, 1.6], [0.8, -0.6]], [1, 5]),
    }
    reached = set()
    for seed in range(10):
        found = clusters(vectors, 2, seed=seed)
        reached.add(tuple(found.labels.tolist()))
        sums, medoids = states[tuple(found.labels.tolist())]
        np.testing.assert_allclose(found.centres, [unit(total) for total in sums], atol=1e-6)
        assert found.medoids.tolist() == medoids
    assert len(reached) > 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_blocks")
def test_clusters_are_those_of_the_twin(seed: int) -> None:
    make = np.random.default_rng(100 + seed)
    vectors = make.normal(size=(25, 6)).astype(np.float32)
    for count, iterations in ((1, 3), (3, 1), (3, 2), (4, 12)):
        found = clusters(vectors, count, seed=seed, iterations=iterations)
        check_clusters(found, vectors)
        assert partition(found.labels) == partition(clusters_in_loops(vectors, count, seed, iterations))


@pytest.mark.parametrize("seed", range(3))
def test_clear_clusters_are_found_in_any_order(small_blocks: None, seed: int) -> None:
    make = np.random.default_rng(seed)
    truth = np.repeat(np.arange(4), (9, 7, 5, 3))
    vectors = (10 * np.eye(4, 12)[truth] + 0.1 * make.normal(size=(24, 12))).astype(np.float32)
    order = make.permutation(24)
    assert clusters(vectors, 4, seed=seed).labels.tolist() == truth.tolist()
    assert clusters(vectors[order], 4, seed=seed).labels.tolist() == truth[order].tolist()


def test_lengths_do_not_matter_to_clusters(small_blocks: None) -> None:
    """Powers of two do not even change the rounding."""
    vectors = some_vectors(30, 8)
    huge = np.float32(2.0) ** np.random.default_rng(1).integers(-90, 90, size=(30, 1)).astype(np.float32)
    found, scaled = clusters(vectors, 5), clusters(vectors * huge, 5)
    for field in ("labels", "centres", "medoids"):
        assert np.array_equal(getattr(found, field), getattr(scaled, field))


def test_the_same_seed_gives_the_same_clusters() -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    found = [clusters(vectors, 8, seed=seed) for seed in (0, 0, 1)]
    assert np.array_equal(found[0].labels, found[1].labels)
    assert np.array_equal(found[0].centres, found[1].centres)
    assert not np.array_equal(found[0].labels, found[2].labels)


def test_more_rounds_bring_vectors_closer_to_their_centres() -> None:
    vectors = np.random.default_rng(3).normal(size=(200, 6)).astype(np.float32)
    units = np.array([unit(vector) for vector in vectors])
    sums = []
    for iterations in (1, 2, 3, 5, 30):
        found = clusters(vectors, 7, iterations=iterations)
        sums.append(float((units * found.centres[found.labels]).sum()))
    assert all(later >= earlier - 1e-4 for earlier, later in itertools.pairwise(sums))


def test_fewer_directions_than_clusters() -> None:
    three = np.array([EAST, NORTH, [7.0, 0.0], WEST, NORTH, [0.3, 0.0], [0.0, 0.0]], dtype=np.float32)
    for count in (3, 4, 100, 10**9):
        found = clusters(three, count)
        check_clusters(found, three)
        assert found.labels.tolist() == [0, 1, 0, 2, 1, 0, -1]
        assert found.medoids.tolist() == [0, 1, 3]
        np.testing.assert_allclose(found.centres, [[1, 0], [0, 1], [-1, 0]], atol=1e-7)
    alike = clusters(np.full((9, 4), 0.1, np.float32), 5)
    assert (alike.labels.tolist(), alike.medoids.tolist()) == ([0] * 9, [0])


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (3, 0)])
def test_nothing_to_group(shape: tuple[int, int]) -> None:
    vectors = np.zeros(shape, np.float32)
    assert duplicate_groups(vectors, 0.5) == []
    found = clusters(vectors, 3)
    assert (found.labels.tolist(), found.centres.shape, found.medoids.shape) == (
        [-1] * len(vectors),
        (0, shape[1]),
        (0,),
    )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(-2, 2)] * 2), max_size=12),
    st.integers(1, 8),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_clusters_of_small_integers(rows: list[tuple[int, int]], count: int, seed: int, iterations: int) -> None:
    """Equal, opposite and zero vectors, ties between centres, and clusters that lose all their vectors."""
    vectors = np.array(rows, dtype=np.float64).reshape(-1, 2)
    found = clusters(vectors, count, seed=seed, iterations=iterations)
    check_clusters(found, vectors)
    different = {tuple(round(value, 6) + 0.0 for value in unit(row)) for row in rows if any(row)}
    assert len(found.centres) == min(count, len(different))


@pytest.mark.parametrize(
    ("centres", "expected"),
    [
        ([[1, 0], [-1, 0]], [0, 0, 1, 0]),  # all are nearer to the first, (3,4) the least so
        ([[1, 0], [0, 1], [0, -1]], [0, 2, 1, 0]),  # (3,4) is the farthest from its own, but alone there
    ],
)
def test_an_empty_cluster_receives_the_farthest_vector(centres: list[list[float]], expected: list[int]) -> None:
    vectors = directions.vector_directions(np.array([EAST, [5.0, 1.0], NEAR_NORTH, EAST], np.float32))
    labels, sums = _nearest_centres(vectors, np.array(centres, np.float32))
    assert labels.tolist() == expected
    units = vectors.doubles(slice(None))
    np.testing.assert_allclose(sums, [units[labels == k].sum(axis=0) for k in range(len(centres))], atol=1e-6)


# both

BOTH = [
    lambda vectors, **more: duplicate_groups(vectors, 0.9, **more),
    lambda vectors, **more: clusters(vectors, 2, **more),
]


@pytest.mark.parametrize("group", BOTH)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200])
def test_values_that_are_not_finite(group: Any, value: float) -> None:
    vectors = np.ones((5, 3))
    vectors[3, 1] = vectors[4, 2] = value
    with pytest.raises(GamlensError, match=r"Vector 3 has values that are NaN, infinite or beyond float32 \(2 of 5"):
        group(vectors)


@pytest.mark.parametrize("group", BOTH)
@pytest.mark.parametrize("vectors", [np.ones(3), np.ones((2, 2, 2)), np.array([["a"]]), np.array([[True]])])
def test_arrays_that_are_no_vectors(group: Any, vectors: Any) -> None:
    with pytest.raises(GamlensError, match=r"Vectors are an array of numbers \(N,D\); found"):
        group(vectors)


@pytest.mark.parametrize("group", BOTH)
def test_arrays_on_disk_other_types_and_inputs_unmodified(group: Any, tmp_path: Path) -> None:
    vectors = some_vectors(20, 4).round(1)
    on_disk = np.memmap(tmp_path / "vectors.f32", dtype="<f4", mode="w+", shape=vectors.shape)
    on_disk[:] = vectors
    before = vectors.copy()
    results = [group(form) for form in (vectors, on_disk, vectors.astype(np.float64), vectors[:, ::-1][:, ::-1])]
    assert np.array_equal(vectors, before)
    for result in results[1:]:
        assert repr(result) == repr(results[0]) or np.array_equal(result.labels, results[0].labels)


def test_huge_and_tiny_vectors_have_directions() -> None:
    vectors = np.array([[1e38, 1e38], [1e-38, 1e-38], [1e-44, 0]], np.float32)
    assert duplicate_groups(vectors, 0.999999) == [[0, 1]]
    assert clusters(vectors, 2).labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("threshold", [math.nan, 1.01, -1.5, math.inf])
def test_thresholds_that_are_no_cosines(threshold: float) -> None:
    with pytest.raises(GamlensError, match="give a cosine from -1 to 1"):
        duplicate_groups(np.ones((2, 2)), threshold)


@pytest.mark.parametrize("options", [{"count": 0}, {"count": 1.5}, {"count": True}, {"seed": -1}, {"iterations": 0}])
def test_numbers_that_are_not_whole(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(GamlensError, match=f"{name}=.*: give a whole number of at least"):
        clusters(np.ones((2, 2)), **{"count": 2, **options})


def test_progress(small_blocks: None) -> None:
    """It counts up to the total, and an exception that it raises ends the work."""
    calls: list[tuple[int, int]] = []
    duplicate_groups(some_vectors(9, 4)[:9], 0.9, status=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 6) for done in range(1, 7)]  # three blocks: six pairs with themselves and each other
    calls.clear()
    clusters(some_vectors(9, 4), 2, iterations=5, status=lambda done, total: calls.append((done, total)))
    assert calls[:3] == [(1, 8), (2, 8), (3, 8)]
    assert calls[-1] == (8, 8)
    assert calls == sorted(calls)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for group in BOTH:
        with pytest.raises(KeyboardInterrupt):
            group(some_vectors(9, 4), status=stop)
