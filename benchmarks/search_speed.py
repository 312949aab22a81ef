"""The speed of an index's backends beside the bare libraries, for benchmarks/search.py.

Of each case one new process builds the backend's file, and another one opens the index and searches.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import real
from numpy.typing import NDArray
from search_vectors import Floats, filled_index, made_rows, projected, use_backend

from gamlens import Index
from gamlens.index.backends import BACKENDS
from gamlens.index.backends.approximate import CANDIDATES_PER_HIT, FEWEST_CANDIDATES
from gamlens.index.backends.exact_search import ExactSearch
from gamlens.index.backends.vector_search import NO_SLOT
from gamlens.index.queries import Query
from gamlens.index.snapshot import ApproximateFile

TOP = 10
CANDIDATES = max(FEWEST_CANDIDATES, CANDIDATES_PER_HIT * TOP)
SHARES = (0.5, 0.01, 0.0001)  # how many rows filters let through
FILTERED = 20  # queries with each filter
WARM = 5
PHOTOS = 50  # that are queries
MIB = 2**20
Slots = NDArray[np.int64]


@dataclass
class SpeedCase:
    """What was measured with one backend on one set of rows.

    Attributes:
        build_s, build_mib: How long the backend's file took, and by how much the process grew at most meanwhile.
        file_mib: Its size.
        open_s: From `Index.open` to the answer of the first search.
        private_mib, mapped_mib: By how much the process grew then: memory of its own, and pages of files.
        change_s: A search after another process has changed one image's metadata.
        times: Seconds of each call, by contender.
        recalls: The share of the exact ten best that each contender finds.
        filters: By share: seconds with a new filter, seconds with the same one again, recall.
        photo_times: Seconds from a photo's file to the hits, by contender; {} if the vectors are not the model's.
    """

    rows: int
    width: int
    backend: str
    build_s: float = 0.0
    build_mib: float = 0.0
    file_mib: float = 0.0
    open_s: float = 0.0
    private_mib: float = 0.0
    mapped_mib: float = 0.0
    change_s: float = 0.0
    times: dict[str, list[float]] = field(default_factory=dict)
    recalls: dict[str, float] = field(default_factory=dict)
    filters: dict[float, tuple[list[float], list[float], float]] = field(default_factory=dict)
    photo_times: dict[str, list[float]] = field(default_factory=dict)


def measured(
    model: str,
    photos: Sequence[str],
    photo_vectors: Floats,
    rows: int,
    width: int,
    backends: Sequence[str],
    queries: int,
    work: Path,
) -> Iterator[SpeedCase]:
    """All backends on made vectors (rows,width); `photos`, which gave the vectors, are queries, too."""
    lens = real.lens(model)
    base = projected(photo_vectors, width)
    place = filled_index(work, lens, base, rows)
    asked = np.concatenate(list(made_rows(base, queries, seed=2)))
    for name in backends:
        case = SpeedCase(rows, width, name)
        settings = use_backend(place, name)
        if not BACKENDS[name].exact:
            case = in_new_process(build, case, place, settings)
        case = in_new_process(search, case, place, asked)
        if width == photo_vectors.shape[1]:
            case = in_new_process(search_photos, case, place, model, photos[:PHOTOS])
        yield case


def in_new_process(fn: Callable[..., SpeedCase], *given: Any) -> SpeedCase:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(fn, given)


def build(case: SpeedCase, place: Path, settings: dict[str, Any]) -> SpeedCase:
    """Make the backend's file, as the end of `Index.add` does."""
    file = ApproximateFile(place, settings, case.backend)
    file.path.unlink(missing_ok=True)
    before, start = status_mib("VmRSS"), time.perf_counter()
    file.bring_up_to_date()
    case.build_s = time.perf_counter() - start
    case.build_mib = status_mib("VmHWM") - before
    case.file_mib = file.path.stat().st_size / MIB
    return case


def search(case: SpeedCase, place: Path, asked: Floats) -> SpeedCase:
    """Open the index, and let its search and the bare library take turns, each with another query."""
    queries = [Query(vector, f"query {number}") for number, vector in enumerate(asked)]
    before, start = held(), time.perf_counter()
    index = Index.open(place)
    index.search(queries[0], top=TOP)
    case.open_s = time.perf_counter() - start
    case.private_mib, case.mapped_mib = (after - own for after, own in zip(held(), before, strict=True))
    now = index.snapshot()
    vectors = np.asarray(now.vectors)
    truth = ExactSearch(vectors, "cosine").search(asked, TOP)[0]
    contenders: dict[str, Callable[[int], Slots]] = {
        "Index.search": lambda at: np.array([hit.slot for hit in index.search(queries[at], top=TOP)]),
        "our backend": lambda at: now.search.search(asked[at][None], TOP)[0][0],
        **BARE[case.backend](place, now.settings, vectors, asked / np.linalg.norm(asked, axis=1, keepdims=True)),
    }
    answers = take_turns(contenders, len(asked), case.times)
    case.recalls = {name: recall(truth, found) for name, found in answers.items()}
    for share in SHARES:
        case.filters[share] = filtered(index, queries[:FILTERED], share)
    with Index.open(place) as other:
        path = next(iter(other.catalogue.images([0]).values())).path
        other.annotate({path: {"price": time.time_ns()}})  # the same value again would be no change
    start = time.perf_counter()
    index.search(queries[0], top=TOP)
    case.change_s = time.perf_counter() - start
    index.close()
    return case


def search_photos(case: SpeedCase, place: Path, model: str, files: Sequence[str]) -> SpeedCase:
    """Search for photos by their files, beside a plain forward of the same photo and the bare library."""
    lens = real.lens(model)
    index = Index.open(place, lens)
    now = index.snapshot()
    vectors = np.asarray(now.vectors)
    units = np.zeros((len(files), vectors.shape[1]), np.float32)
    _, bare = next(iter(BARE[case.backend](place, now.settings, vectors, units).items()))

    def embedded_and_bare(at: int) -> Slots:
        vector = lens.embed(files[at])[0]
        units[at] = (vector / vector.norm()).numpy()
        return bare(at)

    contenders = {
        "Index.search": lambda at: np.array([hit.slot for hit in index.search(files[at], top=TOP)]),
        "embed, then bare": embedded_and_bare,
    }
    take_turns(contenders, len(files), case.photo_times)
    index.close()
    return case


def take_turns(
    contenders: dict[str, Callable[[int], Slots]], queries: int, times: dict[str, list[float]]
) -> dict[str, list[Slots]]:
    """Time each contender with each query. They take turns in random order; at each step all have different queries."""
    answers: dict[str, list[Slots]] = {name: [np.zeros(0, np.int64)] * queries for name in contenders}
    random, names = np.random.default_rng(0), list(contenders)
    for step in range(-WARM, queries):
        for number in random.permutation(len(names)):
            name, at = names[number], (step + number * queries // len(names)) % queries
            start = time.perf_counter()
            found = contenders[name](at)
            taken = time.perf_counter() - start
            answers[name][at] = found
            if step >= 0:
                times.setdefault(name, []).append(taken)
    return answers


def filtered(index: Index, queries: Sequence[Query], share: float) -> tuple[list[float], list[float], float]:
    """Seconds of searches with a filter that was never asked before, and with the same one again; recall@10."""
    now, times = index.snapshot(), ([], [])  # type: Any
    exact = ExactSearch(np.asarray(now.vectors), "cosine")
    truth, answers = [], []
    for number, query in enumerate(queries):
        where = f"share < {share + number * 1e-9:.12f}"
        for own in times:
            start = time.perf_counter()
            hits = index.search(query, top=TOP, where=where)
            own.append(time.perf_counter() - start)
        answers.append(np.array([hit.slot for hit in hits]))
        mask = np.zeros(exact.rows, bool)
        mask[index.catalogue.matching(where)] = True
        truth.append(exact.search(query.vector[None], TOP, mask)[0][0])
    return *times, recall(np.array(truth), answers)


def bare_products(place: Path, settings: dict[str, Any], vectors: Floats, units: Floats) -> dict[str, Any]:
    """The product of a numpy matrix in memory and each query, and faiss's own exact search."""
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def product(at: int) -> Slots:
        values = rows @ units[at]
        best = np.argpartition(values, len(values) - TOP)[-TOP:]
        return np.asarray(best[np.argsort(-values[best])])

    flat = importlib.import_module("faiss").IndexFlatIP(rows.shape[1])
    flat.add(rows)
    return {"bare: numpy product": product, "faiss IndexFlatIP": lambda at: flat.search(units[at : at + 1], TOP)[1][0]}


def bare_usearch(place: Path, settings: dict[str, Any], vectors: Floats, units: Floats) -> dict[str, Any]:
    """The same graph, opened by usearch itself: with as many candidates as ours, and with usearch's own settings."""
    file = ApproximateFile(place, settings, "usearch").path
    graph = importlib.import_module("usearch.index").Index(ndim=units.shape[1], metric="ip", dtype="f16")
    graph.load(str(file))

    def ask(at: int, wanted: int) -> Slots:
        return np.asarray(graph.search(units[at], wanted, threads=1).keys[:TOP].astype(np.int64))

    return {
        f"bare: usearch, {CANDIDATES} candidates": lambda at: ask(at, CANDIDATES),
        f"usearch, {TOP} hits": lambda at: ask(at, TOP),
    }


def bare_faiss(place: Path, settings: dict[str, Any], vectors: Floats, units: Floats) -> dict[str, Any]:
    """The same lists, opened by faiss itself, of which as many are looked through as ours does."""
    faiss = importlib.import_module("faiss")
    from gamlens.index.backends import faiss_search as ours

    lists = faiss.read_index(str(ApproximateFile(place, settings, "faiss").path))
    if not hasattr(lists, "nlist"):  # there is no engine for few rows
        return {}
    needed = -(-ours.ROWS_PER_CANDIDATE * CANDIDATES * lists.nlist // lists.ntotal)
    lists.nprobe = min(lists.nlist, max(ours.FEWEST_PROBES, lists.nlist // ours.PROBED_SHARE, needed))

    def ask(at: int, wanted: int) -> Slots:
        return np.asarray(lists.search(units[at : at + 1], wanted)[1][0, :TOP])

    return {
        f"bare: faiss, {CANDIDATES} candidates": lambda at: ask(at, CANDIDATES),
        f"faiss, {TOP} hits": lambda at: ask(at, TOP),
    }


BARE: dict[str, Callable[..., dict[str, Any]]] = {
    "exact": bare_products, "usearch": bare_usearch, "faiss": bare_faiss,
}  # fmt: skip


def recall(truth: Slots, found: Sequence[Slots]) -> float:
    """The mean share of the true slots (Q,10) that are among those found; -1 stands for none."""
    sets = [({*true} - {NO_SLOT}, {*own.tolist()}) for true, own in zip(truth.tolist(), found, strict=True)]
    shares = [len(true & own) / len(true) for true, own in sets if true]
    return float(np.mean(shares)) if shares else 1.0


def held() -> tuple[float, float]:
    """The memory of this process in MiB: its own, and pages of files."""
    return status_mib("RssAnon"), status_mib("RssFile")


def status_mib(name: str) -> float:
    """A number of this process that Linux gives, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def tables(cases: Sequence[SpeedCase]) -> list[list[tuple[str, ...]]]:
    """Tables of what each backend takes, of how long searches take, of photos as queries, and of filters."""
    costs: list[tuple[str, ...]] = [
        ("rows x width", "backend", "build s", "peak MiB while building", "file MiB", "open and first search s",
         "own MiB", "mapped MiB", "after a change s"),
    ]  # fmt: skip
    speeds: list[tuple[str, ...]] = [("rows x width", "backend", "call", "p50 ms", "p99 ms", "over bare", "recall@10")]
    photos: list[tuple[str, ...]] = [
        ("rows x width", "backend", "call with a photo's file", "p50 ms", "p99 ms", "over bare")
    ]
    filters: list[tuple[str, ...]] = [
        ("rows x width", "backend", "let through", "new filter p50 ms", "same filter p50 ms", "p99 ms", "recall@10")
    ]
    for case in cases:
        head = f"{case.rows:,} x {case.width:,}", case.backend
        made = (f"{case.build_s:.0f}", f"{case.build_mib:.0f}", f"{case.file_mib:.0f}") if case.build_s else ("-",) * 3
        grown = f"{case.private_mib:.0f}", f"{case.mapped_mib:.0f}"
        costs.append((*head, *made, f"{case.open_s:.2f}", *grown, f"{case.change_s:.3f}"))
        bare = next((float(np.median(own)) for name, own in case.times.items() if name.startswith("bare")), np.nan)
        for name, own in case.times.items():
            middle, slow = np.percentile(own, (50, 99))
            over = "1" if name.startswith("bare") else f"{100 * (middle / bare - 1):+.0f} %"
            speeds.append((*head, name, ms(middle), ms(slow), over, f"{case.recalls[name]:.3f}"))
        for name, own in case.photo_times.items():
            bare, (middle, slow) = float(np.median(case.photo_times["embed, then bare"])), np.percentile(own, (50, 99))
            over = f"{100 * (middle / bare - 1):+.0f} %" if name == "Index.search" else "1"
            photos.append((*head, name, ms(middle), ms(slow), over))
        for share, (new, same, right) in case.filters.items():
            values = ms(np.median(new)), ms(np.median(same)), ms(np.percentile(same, 99))
            filters.append((*head, f"{100 * share:g} %", *values, f"{right:.3f}"))
    return [costs, speeds, photos, filters]


def ms(seconds: Any) -> str:
    return f"{1000 * float(seconds):.3g}"
