"""Every backend gives the answers of a loop in float64: exact scores, allowed rows only, few rows missed or none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gamlens import GamlensError
from gamlens.index import backends
from gamlens.index.backends import BACKENDS, VectorSearch, approximate, automatic_backend, product_candidates
from gamlens.index.backends.exact_search import ExactSearch
from gamlens.index.backends.search_file import fingerprint
from gamlens.scores import PAIR_SCORES

Array = NDArray[Any]
ROWS, WIDTH, TOP, LEAST_RECALL = 3000, 64, 10, 0.95
APPROXIMATE = [name for name, entry in BACKENDS.items() if not entry.exact]


def clustered(rows: int, seed: int) -> Array:
    """Rows around 60 centres, of lengths that differ by a fifth: float32 that cannot be written."""
    centres = np.random.default_rng(0).standard_normal((60, WIDTH))
    draw = np.random.default_rng(seed)
    found = centres[draw.integers(0, 60, rows)] + draw.standard_normal((rows, WIDTH))
    return frozen(found * (1 + 0.2 * draw.standard_normal((rows, 1))))


def frozen(values: Any) -> Array:
    found = np.array(values, np.float32)
    found.flags.writeable = False
    return found


V, Q = clustered(ROWS, seed=1), clustered(12, seed=2)


def cosine(x: Array, y: Array) -> float:
    return float(x @ y / (np.sqrt(x @ x) * np.sqrt(y @ y)))


def dot(x: Array, y: Array) -> float:
    return float(x @ y)


def euclidean(x: Array, y: Array) -> float:
    return -float(np.sqrt(((x - y) ** 2).sum()))


NAIVE: dict[str, Callable[[Array, Array], float]] = {"cosine": cosine, "dot": dot, "euclidean": euclidean}


@cache
def naive_scores(score: str) -> Array:
    """All scores of Q and V, one after the other: (12,3000)."""
    return np.array([[NAIVE[score](x, y) for y in V.astype(np.float64)] for x in Q.astype(np.float64)])


def naive(score: str, allowed: Array, top: int = TOP) -> Array:
    """The slots of the best allowed rows, (12,top) at most."""
    values = np.where(allowed, naive_scores(score).astype(np.float32), -np.inf)
    return np.argsort(-values, axis=1, kind="stable")[:, : min(top, int(allowed.sum()))]


def recall(found: Array, wanted: Array) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, wanted, strict=True)]))


def make(name: str, vectors: Array, score: str, **options: Any) -> VectorSearch:
    if not BACKENDS[name].installed:
        pytest.skip(f"needs {BACKENDS[name].package}")
    return BACKENDS[name].make(vectors, score, **options)


@cache
def built(name: str, score: str) -> VectorSearch:
    """A search of V that no test adds rows to."""
    return make(name, V, score)


def share(part: float, seed: int = 3) -> Array:
    return np.asarray(np.random.default_rng(seed).random(ROWS) < part)


@pytest.mark.parametrize("score", PAIR_SCORES)
@pytest.mark.parametrize("name", BACKENDS)
def test_against_a_loop(name: str, score: str) -> None:
    slots, values = built(name, score).search(Q, TOP)
    assert slots.dtype == np.int64
    assert values.dtype == np.float32
    wanted = naive(score, np.ones(ROWS, bool))
    if BACKENDS[name].exact:
        np.testing.assert_array_equal(slots, wanted)
    assert recall(slots, wanted) >= LEAST_RECALL
    np.testing.assert_allclose(values, np.take_along_axis(naive_scores(score), slots, axis=1), rtol=2e-7)
    assert (np.diff(values, axis=1) <= 0).all()
    exact = dict(
        zip(*(side.tolist() for side in map(np.concatenate, built("exact", score).search(Q, 50))), strict=True)
    )
    assert all(exact.get(slot, value) == value for slot, value in zip(slots[-1], values[-1], strict=True))


@pytest.mark.parametrize("score", PAIR_SCORES)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("part", [1.0, 0.9, 0.5, 0.01, 0.001, 0.0])
def test_filters(name: str, score: str, part: float) -> None:
    allowed = share(part)
    slots, values = built(name, score).search(Q, TOP, allowed)
    wanted = naive(score, allowed)
    count = wanted.shape[1]
    assert allowed[slots[:, :count]].all()
    assert (slots[:, count:] == -1).all()
    assert np.isneginf(values[:, count:]).all()
    assert np.isfinite(values[:, :count]).all()
    if BACKENDS[name].exact or part <= 0.5:
        np.testing.assert_array_equal(slots[:, :count], wanted)
    elif count:
        assert recall(slots, wanted) >= LEAST_RECALL


@pytest.mark.parametrize("name", BACKENDS)
def test_a_filter_against_the_query(name: str) -> None:
    """The 150 nearest rows of each query are not allowed: no engine names others at first, and none are missed."""
    for number, order in enumerate(np.argsort(-naive_scores("cosine"), axis=1)):
        allowed = np.ones(ROWS, bool)
        allowed[order[:150]] = False
        slots, _ = built(name, "cosine").search(Q[number : number + 1], TOP, allowed)
        assert recall(slots, naive("cosine", allowed)[number : number + 1]) >= 0.9
        assert allowed[slots].all()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_filter_from_before_rows_were_added(name: str) -> None:
    """It allows none of the rows behind its end."""
    shorter = np.ones(2900, bool)
    whole = np.pad(shorter, (0, 100))
    for found, wanted in zip(
        built(name, "cosine").search(Q, TOP, shorter), built(name, "cosine").search(Q, TOP, whole), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", BACKENDS)
def test_removed_rows(name: str) -> None:
    search, allowed = built(name, "dot"), np.ones(ROWS, bool)
    for _ in range(3):
        slots, _ = search.search(Q[:1], 3, allowed)
        assert allowed[slots].all()
        allowed[slots] = False


@pytest.mark.parametrize("name", BACKENDS)
def test_few_rows(name: str) -> None:
    """More rows are wanted than there are; one row; none."""
    for count in (0, 1, 7):
        slots, values = make(name, V[:count], "euclidean").search(Q, TOP)
        assert slots.shape == values.shape == (12, TOP)
        np.testing.assert_array_equal(np.sort(slots[:, :count]), np.arange(count)[None].repeat(12, axis=0))
        assert (slots[:, count:] == -1).all()
        assert np.isneginf(values[:, count:]).all()
    slots, _ = built(name, "cosine").search(Q[:1], ROWS + 1)
    np.testing.assert_array_equal(slots[:, :-1], naive("cosine", np.ones(ROWS, bool), ROWS)[:1])
    assert slots[0, -1] == -1
    assert built(name, "cosine").search(Q[:0], TOP)[0].shape == (0, TOP)


@pytest.mark.parametrize("name", BACKENDS)
def test_by_hand(name: str) -> None:
    vectors, query = frozen([[1, 0], [0, 2], [3, 4]]), frozen([[2, 0]])
    for score, slots, values in (
        ("cosine", [0, 2, 1], [1, 0.6, 0]),
        ("dot", [2, 0, 1], [6, 2, 0]),
        ("euclidean", [0, 1, 2], [-1, -(8**0.5), -(17**0.5)]),
    ):
        found = make(name, vectors, score).search(query, 3)
        assert found[0].tolist() == [slots]
        np.testing.assert_allclose(found[1], [values], rtol=1e-7)


def test_ties_are_broken_by_the_lower_slot_whatever_runs_together() -> None:
    """Copies of rows, in sums that a matrix product rounds differently from batch to batch."""
    copies = frozen(np.concatenate([V[:500], V[:500], V[:500]]))
    for score in PAIR_SCORES:
        search = ExactSearch(copies, score)
        slots, values = search.search(Q, 30)
        order = np.sort(slots.reshape(12, 10, 3), axis=2)
        np.testing.assert_array_equal(slots.reshape(12, 10, 3), order)
        np.testing.assert_array_equal(order - order[:, :, :1], np.full((12, 10, 1), 500) * np.arange(3))
        for number in range(12):
            alone = search.search(Q[number : number + 1], 30)
            np.testing.assert_array_equal(alone[0][0], slots[number])
            np.testing.assert_array_equal(alone[1][0], values[number])


def test_thousands_of_copies() -> None:
    """More rows than SPARE are equally good: the lowest slots are the answer, and not all of them are scored."""
    blank = frozen(np.concatenate([V[:5], np.repeat(V[9:10], 6000, axis=0)]))
    search = ExactSearch(blank, "cosine")
    assert search.search(V[9:10], 20)[0].tolist() == [[*range(5, 25)]]
    pairs = product_candidates.product_candidates(search.now, V[9:10].astype(np.float64), 20, np.arange(len(blank)))
    assert len(pairs[0]) <= 2 * (20 + product_candidates.SPARE)
    assert ExactSearch(blank, "dot").search(np.zeros((1, WIDTH), np.float32), 4)[0].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("score", PAIR_SCORES)
def test_small_blocks(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, rows and candidates in many pieces."""
    wanted = [built("exact", score).search(Q, TOP, share(part)) for part in (0.9, 0.2)]
    for module, name, most in (
        (backends.exact_search, "KEYS_AT_ONCE", 5 * ROWS),
        (backends.exact_search, "SCORED_AT_ONCE", 7 * WIDTH),
        (product_candidates, "COPIED_VALUES", 100 * WIDTH),
    ):
        monkeypatch.setattr(module, name, most)
    search = ExactSearch(V, score)
    for part, (slots, values) in zip((0.9, 0.2), wanted, strict=True):
        found = search.search(Q, TOP, share(part))
        np.testing.assert_array_equal(found[0], slots)
        np.testing.assert_array_equal(found[1], values)


@pytest.mark.parametrize("score", PAIR_SCORES)
@pytest.mark.parametrize("name", BACKENDS)
def test_rows_without_a_score(name: str, score: str) -> None:
    """Zeros have no cosine, and NaN nothing. Very long and very short rows are found where they belong."""
    vectors = V.copy()
    vectors[10], vectors[11], vectors[12] = 0, np.nan, V[12] * np.float32(np.inf)
    vectors[13], vectors[14] = V[13] * np.float32(1e30), V[14] * np.float32(1e-30)
    search = make(name, frozen(vectors), score)
    queries = frozen(np.concatenate([V[13:15], np.zeros((1, WIDTH)), V[13:14] * np.float32(1e25)]))
    slots, values = search.search(queries, ROWS)
    assert not np.isnan(values).any()
    np.testing.assert_array_equal(slots == -1, np.isneginf(values))
    without = {11, 12} | ({10} if score == "cosine" else set())
    for number in (0, 1, 3):
        assert {*range(ROWS)} - set(slots[number].tolist()) == without
    if score == "cosine":
        assert (slots[2] == -1).all()
        few, _ = search.search(queries[:2], 2)
        assert few[:, 0].tolist() == [13, 14]
    exact, _ = ExactSearch(frozen(vectors), score).search(Q, TOP)
    assert recall(search.search(Q, TOP)[0], exact) >= LEAST_RECALL
    if score == "dot":
        assert slots[3, 0] == 13
        assert values[3, 0] == np.finfo(np.float32).max


@pytest.mark.parametrize("score", PAIR_SCORES)
@pytest.mark.parametrize("name", BACKENDS)
def test_save_load_and_add(name: str, score: str, tmp_path: Path) -> None:
    """A search of 2,500 rows continues from its file over a memory map that has 500 more."""
    V.tofile(tmp_path / "vectors.f32")
    vectors = np.memmap(tmp_path / "vectors.f32", np.float32, "r", shape=V.shape)
    first = make(name, vectors[:2500], score)
    first.save(tmp_path / "search.ann")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["search.ann", "vectors.f32"][BACKENDS[name].exact :]
    again = BACKENDS[name].load(tmp_path / "search.ann", vectors[:2500], score)
    for found, wanted in zip(again.search(Q, TOP), first.search(Q, TOP), strict=True):
        np.testing.assert_array_equal(found, wanted)
    again = BACKENDS[name].load(tmp_path / "search.ann", vectors, score)
    steps: list[tuple[int, int]] = []
    if not BACKENDS[name].exact:
        assert again.rows == 2500
        assert again.search(Q, TOP, np.ones(2500, bool))[0].max() < 2500
        again.add(vectors, status=lambda done, rows: steps.append((done, rows)))
        assert steps == [(3000, 3000)]
    assert again.rows == ROWS
    slots, _ = again.search(Q, TOP)
    assert (slots >= 2500).any()
    assert recall(slots, naive(score, np.ones(ROWS, bool))) >= LEAST_RECALL
    again.save(tmp_path / "search.ann")
    assert BACKENDS[name].load(tmp_path / "search.ann", vectors, score).rows == ROWS


@pytest.mark.parametrize("name", BACKENDS)
def test_from_no_rows_to_many(name: str, tmp_path: Path) -> None:
    """An engine is made when there are enough rows; a file from before that has none."""
    search = make(name, V[:0], "cosine")
    search.add(V[:20])
    search.save(tmp_path / "search.ann")
    search = BACKENDS[name].load(tmp_path / "search.ann", V[:20], "cosine")
    assert search.search(V[19:20], 1)[0].tolist() == [[19]]
    search.add(V)
    slots, _ = search.search(Q, TOP)
    assert recall(slots, naive("cosine", np.ones(ROWS, bool))) >= LEAST_RECALL


@pytest.mark.parametrize("name", APPROXIMATE)
def test_which_searches_ask_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search = built(name, "cosine")
    assert isinstance(search, approximate.ApproximateSearch)
    engine, asked = search._engine, []
    assert engine is not None

    class Counted:
        def find(self, queries: Array, wanted: int) -> Array:
            asked.append((len(queries), wanted))
            return engine.find(queries, wanted)

    monkeypatch.setattr(search, "_engine", Counted())
    for part, top, calls in ((1.0, TOP, [(12, 128)]), (0.5, TOP, []), (0.0, TOP, []), (1.0, 100, [])):
        search.search(Q, top, share(part))
        assert asked == calls
        asked.clear()


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_interrupted_add(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that came through are not found before all are there, and are not given to the engine again in vain."""
    monkeypatch.setattr(approximate, "ROWS_GIVEN_AT_ONCE", 200)
    search = make(name, V[:2400], "cosine")

    def interrupt(done: int, rows: int) -> None:
        if done == 2800:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.add(V, status=interrupt)
    assert search.rows == 2400
    assert search.search(Q, TOP)[0].max() < 2400
    search.add(V)
    assert recall(search.search(Q, TOP)[0], naive("cosine", np.ones(ROWS, bool))) >= LEAST_RECALL


@pytest.mark.parametrize("name", APPROXIMATE)
def test_files_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    file = tmp_path / "search.ann"
    make(name, V, "cosine").save(file)
    whole = file.read_bytes()
    load = BACKENDS[name].load

    def refused(why: str, vectors: Array = V, score: str = "cosine") -> None:
        with pytest.raises(GamlensError, match=rf"search\.ann' cannot be used as a search file: .*{why}.* built again"):
            load(file, vectors, score)

    for count in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:count])
        refused("its end is missing")
    for place in (100, len(whole) // 2, len(whole) - 60):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        refused("damaged")
    file.write_bytes(whole[:500] + whole[600:])
    refused("damaged")
    file.write_bytes(b"no search, but a text. " * 50)
    refused("no such file")
    file.unlink()
    refused("No such file")
    file.write_bytes(whole)
    refused("other vectors", vectors=V[:2999])
    refused("other vectors", vectors=clustered(ROWS, seed=9))
    refused("width is 64, and 32", vectors=V[:, :32])
    refused("score is 'cosine', and 'dot'", score="dot")
    for other in APPROXIMATE:
        if other != name and BACKENDS[other].installed:
            with pytest.raises(GamlensError, match="its engine is"):
                BACKENDS[other].load(file, V, "cosine")
    with pytest.raises(GamlensError, match="Cannot write"):
        built(name, "cosine").save(tmp_path / "nowhere" / "search.ann")


def test_a_fingerprint_reads_few_rows() -> None:
    changed = V.copy()
    changed[-1] += 1
    assert len({fingerprint(V), fingerprint(V[:-1]), fingerprint(changed)}) == 3
    assert fingerprint(V) == fingerprint(V.copy())


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_missing_extra(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = BACKENDS[name]
    for module in (entry.package, "usearch.index"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not entry.installed
    message = rf"needs the package '{entry.package}' .*pip install 'gamlens\[{entry.extra}\]'"
    with pytest.raises(GamlensError, match=message):
        entry.make(V, "cosine")
    with pytest.raises(GamlensError, match=message):
        entry.load(tmp_path / "search.ann", V, "cosine")


def test_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda package: object())
    assert [automatic_backend(rows) for rows in (0, 100_000, 100_001, 10**9)] == [
        "exact",
        "exact",
        "usearch",
        "usearch",
    ]
    monkeypatch.setattr(backends, "find_spec", lambda package: None)
    assert automatic_backend(10**9) == "exact"


def test_packages_are_imported_when_they_are_used() -> None:
    folder = Path(backends.__file__).parent
    assert {f"{name}_search.py" for name in BACKENDS} <= {path.name for path in folder.iterdir()}
    for path in folder.glob("*.py"):
        lines = [line.split() for line in path.read_text().splitlines()]
        assert not [
            words for words in lines if words[:1] in (["import"], ["from"]) and words[1] in ("usearch", "faiss")
        ]


@pytest.mark.parametrize("name", BACKENDS)
def test_two_threads(name: str) -> None:
    """Both search again and again while rows are added, and find what one alone would find."""
    search, wrong = make(name, V[:2500], "cosine"), []
    alone = [search.search(Q[part], TOP) for part in (slice(0, 1), slice(1, 12))]
    ready = threading.Barrier(3)

    def ask(part: slice, wanted: tuple[Array, Array]) -> None:
        ready.wait()
        for _ in range(30):
            found = search.search(Q[part], TOP)
            if found[0].max() < 2500 and search.rows == 2500 and not np.array_equal(found[1], wanted[1]):
                wrong.append(found)

    threads = [
        threading.Thread(target=ask, args=(part, wanted))
        for part, wanted in zip((slice(0, 1), slice(1, 12)), alone, strict=True)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    search.add(V)
    for thread in threads:
        thread.join()
    if BACKENDS[name].exact:  # the candidates of an engine may change while rows are added
        assert not wrong
    assert recall(search.search(Q, TOP)[0], naive("cosine", np.ones(ROWS, bool))) >= LEAST_RECALL


def test_a_score_of_the_user() -> None:
    """Any function of pairs can be searched exactly; only products and distances approximately."""

    def manhattan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -(x - y).abs().sum(dim=1)

    values = np.array([[-np.abs(x - y).sum() for y in V.astype(np.float64)] for x in Q[:2].astype(np.float64)])
    slots, found = ExactSearch(V, manhattan).search(Q[:2], TOP)
    np.testing.assert_array_equal(slots, np.argsort(-values, axis=1)[:, :TOP])
    np.testing.assert_allclose(found, np.take_along_axis(values, slots, axis=1), rtol=2e-7)
    undefined = ExactSearch(V[:4], lambda x, y: manhattan(x, y) * torch.nan)
    assert undefined.search(Q, 2)[0].tolist() == [[-1, -1]] * 12
    for name in APPROXIMATE:
        if BACKENDS[name].installed:
            with pytest.raises(GamlensError, match="not by 'manhattan': use the exact search"):
                BACKENDS[name].make(V, manhattan)


@pytest.mark.parametrize("name", BACKENDS)
def test_wrong_arguments(name: str) -> None:
    search = built(name, "cosine")
    for call, message in (
        (lambda: search.search(Q, 0), "top=0: give the number of images"),
        (lambda: search.search(Q, True), "top=True"),
        (lambda: search.search(Q[0], 1), r"Queries are a float32 array \(Q,D\); found float32 \(64,\)"),
        (lambda: search.search(Q[:, :5], 1), "queries have 5 values each, and the vectors 64"),
        (lambda: search.search(Q * np.float32(np.nan), 1), "not finite"),
        (lambda: search.search(Q, 1, np.ones(3001, bool)), r"each of the 3000 rows, .* found bool \(3001,\)"),
        (lambda: search.search(Q, 1, np.ones(ROWS)), "found float64"),
        (lambda: search.add(V[:10]), "3000 rows are searched already, and only 10 are given"),
        (lambda: search.add(V[:, :5]), "have 5 values each, and this search has vectors of 64"),
        (lambda: make(name, V.astype(np.float64), "cosine"), r"float32 array \(N,D\); found float64 \(3000, 64\)"),
        (lambda: make(name, V, "cosin"), "did you mean 'cosine'"),
    ):
        with pytest.raises(GamlensError, match=message):
            call()
    with pytest.raises(GamlensError, match="There is no backend 'exat': did you mean 'exact'"):
        BACKENDS["exat"]
