"""Approximate search with usearch: a graph of near neighbours (HNSW), to which rows are added one by one.

Y. Malkov and D. Yashunin, Efficient and Robust Approximate Nearest Neighbor Search Using Hierarchical Navigable Small
World Graphs, TPAMI 2020.

A query walks through the graph, from neighbour to neighbour, towards the best rows. Nothing is trained, so later rows
may be of another kind than earlier ones. The graph keeps its own copy of the rows in half precision, in memory. Threads
add rows in an order that differs from run to run, so that two builds may miss different rows.

On 40,800 pooled features of photos (EfficientNet-Lite0, D = 1,280, crops of 1,000 photos), the share of the true ten
best among 160 candidates was 1.00 for the cosine, 0.99 for the dot product and 0.98 for the Euclidean distance. With 16
neighbours per row, usearch's default, it was 1.00, 0.92 and 0.97: a long row, or for the distance a short one, is near
to very many others, and too few of them can point to it. Where the lengths of rows differ by orders of magnitude, use
the cosine; for the Euclidean distance (0.91 and 0.94 on rows whose lengths spread over four orders) also faiss, which
has 1.00 there, but not for the dot product (see `faiss_search`).
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gamlens import scores
from gamlens.data.reading import import_extra
from gamlens.index.backends.approximate import ApproximateSearch, EngineKind, load_approximate
from gamlens.index.backends.vector_search import NO_SLOT, RowStatus, Slots, no_status

USEARCH = "usearch"
NEIGHBOURS = 32  # of each row in the graph
ADDING_BREADTH = 128  # how many rows are looked at to find the neighbours of a new one


class UsearchEngine:
    """A graph of usearch, as a `CandidateEngine`. Lengths of rows are at most 1 or so, for half precision."""

    def __init__(self, width: int, by_distance: bool) -> None:
        self.graph: Any = _library().Index(
            ndim=width,
            metric="l2sq" if by_distance else "ip",
            dtype="f16",
            connectivity=NEIGHBOURS,
            expansion_add=ADDING_BREADTH,
        )

    def __len__(self) -> int:
        return len(self.graph)

    def add(self, slots: Slots, rows: NDArray[np.float32]) -> None:
        """Add rows (n,D) under their slots (n,). Those that are there already, after an interruption, are left out."""
        keys = slots.astype(np.uint64)
        if len(keys) and (fresh := ~self.graph.contains(keys)).any():
            self.graph.add(keys[fresh], rows[fresh])

    def find(self, queries: NDArray[np.float32], wanted: int) -> Slots:
        """The slots (Q,wanted) that are probably nearest to the queries (Q,D); -1 where none is left.

        The lock of the caller is needed: usearch gives the memory of its first search thread to every call.
        """
        slots = np.full((len(queries), wanted), NO_SLOT, np.int64)
        found = self.graph.search(queries, wanted, threads=1 if len(queries) == 1 else 0)
        for number, row in enumerate([found] if len(queries) == 1 else found):
            slots[number, : len(row.keys)] = row.keys
        return slots

    def write(self, out: IO[bytes]) -> None:
        """Write the graph to the beginning of an open file."""
        self.graph.save(out.name)


def make_usearch(
    vectors: NDArray[np.float32], score: str | scores.PairScoreFunction, *, status: RowStatus = no_status
) -> ApproximateSearch:
    """Build the graph of these rows (N,D); `status` is called with the number of rows that are in it, and of all."""
    return ApproximateSearch(vectors, score, USEARCH_KIND, status=status)


def load_usearch(path: Path, vectors: NDArray[np.float32], score: str | scores.PairScoreFunction) -> ApproximateSearch:
    """Read a graph that was saved, for the same vectors (N,D) or for more of them."""
    return load_approximate(path, vectors, score, USEARCH_KIND)


def _library() -> Any:
    return import_extra("usearch.index", "This search", extra="search")


def _check() -> None:
    _library()


def _make(sample: NDArray[np.float32], rows: int, by_distance: bool) -> UsearchEngine:
    return UsearchEngine(sample.shape[1], by_distance)


def _read(path: Path, width: int, by_distance: bool) -> UsearchEngine:
    engine = UsearchEngine(width, by_distance)
    engine.graph.load(str(path))
    return engine


USEARCH_KIND = EngineKind(name=USEARCH, check=_check, make=_make, read=_read, sample=1)
