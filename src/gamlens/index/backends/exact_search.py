"""Exact search: one matrix product in float32 finds the candidates, and their scores are computed again in float64.

The product (Q,D) x (D,N) runs at the speed of the processor, but its last digits depend on how many queries run
together and on the number of threads. So every row is a candidate whose product, by the error bounds of
`product_forms`, may belong to the `top` best; the scores of the candidates are then those of `gamlens.scores` in
float64, rounded to float32. The answer is the same as that of a loop over all rows in float64, whatever runs together.
There is one limit: if more than SPARE rows are closer to the last place than rounding, as in a thousand copies of one
image, then of these the best by their products, and those of the lowest slots, are candidates.

numpy multiplies: on the CPU it is as fast as torch (20,000 rows of width 1,280, one query: 2 ms against 5 ms), and no
setting of torch, such as a lower precision of products or its number of threads, changes it.
A score that has no product form (a function of the user) is computed for every row in float64, one query at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gamlens import scores
from gamlens.index.backends.product_candidates import (
    Pairs,
    SearchedRows,
    are_copied,
    product_candidates,
    row_blocks,
    usable_rows,
)
from gamlens.index.backends.product_forms import PRODUCT_FORMS, Lengths
from gamlens.index.backends.vector_search import (
    RowStatus,
    checked_queries,
    checked_top,
    checked_vectors,
    no_status,
    nothing_found,
    without_value,
)

KEYS_AT_ONCE = 1 << 24  # how many products of queries and rows are held at once: 64 MB
SCORED_AT_ONCE = 1 << 15  # how many values of candidates: so few stay in the cache, and torch starts no threads


class ExactSearch:
    """Search of all rows (N,D), by any pair score. Nothing is kept on disk.

    Args:
        vectors: (N,D), float32; it may be a memory map, which is then read once for the lengths of its rows.
        score: A name of PAIR_SCORES, or a function of two batches (P,D) of vectors in float64 to their scores (P,).
        lengths: |x| of each row, (N,), if they are known (`ExactSearch.lengths`).
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        score: str | scores.PairScoreFunction,
        *,
        lengths: Lengths | None = None,
    ) -> None:
        self.entry = scores.find_pair_score(score)
        form = PRODUCT_FORMS.get(self.entry.fn)
        found = checked_vectors(vectors)
        self.now = SearchedRows(found, self._lengths(found) if lengths is None else lengths, form)

    @property
    def rows(self) -> int:
        """The number N of rows that are searched."""
        return len(self.now.lengths)

    @property
    def lengths(self) -> Lengths:
        """|x| of each row, (N,); NaN for rows that the score has no value for."""
        return self.now.lengths

    def add(self, vectors: NDArray[np.float32], *, status: RowStatus = no_status) -> None:
        """Search more rows: all rows (N',D), the N rows from before first. `status` is called once."""
        self.now = self.grown(vectors)
        status(self.rows, self.rows)

    def grown(self, vectors: NDArray[np.float32]) -> SearchedRows:
        """The rows that `add` would search."""
        now = self.now
        found = checked_vectors(vectors, width=now.vectors.shape[1], least=len(now.lengths))
        lengths = np.concatenate([now.lengths, self._lengths(found[len(now.lengths) :])])
        return SearchedRows(found, lengths, now.form)

    def save(self, path: Path) -> None:
        """Write nothing: the vectors are all that is needed."""

    def search(
        self, queries: NDArray[np.float32], top: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` rows of highest score for each query: slots and scores (Q,top), as in `VectorSearch.search`."""
        now = self.now
        wide, wanted = checked_queries(queries, now.vectors.shape[1]), checked_top(top)
        return self.search_rows(now, wide, wanted, usable_rows(now, allowed))

    def search_rows(
        self, now: SearchedRows, queries: NDArray[np.float64], top: int, usable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` best of the usable rows, a mask (N,), for each query (Q,D)."""
        slots, values = nothing_found(len(queries), top)
        chosen = now.findable_slots if usable is now.findable else np.flatnonzero(usable)
        asking = np.flatnonzero(~without_value(self.entry, queries))
        columns = len(chosen) if are_copied(chosen, len(usable)) else len(usable)
        at_once = 1 if now.form is None else max(1, KEYS_AT_ONCE // max(1, columns))
        for start in range(0, len(asking) if len(chosen) else 0, at_once):
            part = asking[start : start + at_once]
            pairs = product_candidates(now, queries[part], top, chosen)
            slots[part], values[part] = self.best(now, queries[part], pairs, top)
        return slots, values

    def best(
        self, now: SearchedRows, queries: NDArray[np.float64], pairs: Pairs, top: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` best of given candidates, by their scores in float64, as (Q,top) slots and scores.

        Args:
            now: The rows.
            queries: (Q,D).
            pairs: The candidates. A pair that is named twice counts once.
            top: How many are wanted for each query.
        """
        slots, values = nothing_found(len(queries), top)
        found = self._scores(now, queries, pairs)
        scored = ~np.isnan(found)
        query, slot, score = pairs[0][scored], pairs[1][scored], found[scored]
        order = np.lexsort((slot, -score, query))
        query, slot, score = query[order], slot[order], score[order]
        once = np.ones(len(query), bool)
        once[1:] = (query[1:] != query[:-1]) | (slot[1:] != slot[:-1])
        query, slot, score = query[once], slot[once], score[once]
        place = np.arange(len(query)) - np.searchsorted(query, query)
        kept = place < top
        slots[query[kept], place[kept]] = slot[kept]
        values[query[kept], place[kept]] = score[kept]
        return slots, values

    def _scores(self, now: SearchedRows, queries: NDArray[np.float64], pairs: Pairs) -> NDArray[np.float32]:
        """The scores of pairs (P,), computed in float64. Those beyond float32 are its largest and lowest numbers."""
        found = np.empty(len(pairs[0]), np.float64)
        at_once = max(1, SCORED_AT_ONCE // queries.shape[1])
        for start in range(0, len(found), at_once):
            query, slot = (side[start : start + at_once] for side in pairs)
            x, y = torch.from_numpy(queries[query]), torch.from_numpy(now.vectors[slot].astype(np.float64))
            with torch.no_grad():
                found[start : start + at_once] = self.entry.fn(x, y).numpy()
        limit = np.finfo(np.float32).max
        return np.clip(found, -limit, limit).astype(np.float32)

    def _lengths(self, vectors: NDArray[np.float32]) -> Lengths:
        found = np.empty(len(vectors), np.float64)
        for part in row_blocks(len(vectors), vectors.shape[1]):
            block = vectors[part].astype(np.float64)
            found[part] = np.sqrt(np.einsum("nd,nd->n", block, block))
            found[part][without_value(self.entry, block)] = np.nan
        return found


def make_exact(
    vectors: NDArray[np.float32],
    score: str | scores.PairScoreFunction,
    *,
    status: RowStatus = no_status,
) -> ExactSearch:
    """Search these rows (N,D); `status` is called once."""
    found = ExactSearch(vectors, score)
    status(found.rows, found.rows)
    return found


def load_exact(path: Path, vectors: NDArray[np.float32], score: str | scores.PairScoreFunction) -> ExactSearch:
    """Search these rows (N,D). No file is read, because none is written."""
    return ExactSearch(vectors, score)
