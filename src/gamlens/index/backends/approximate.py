"""Approximate search: an engine names candidates, which are then scored exactly, so that an answer's scores are exact.

What is the same for every engine:

- The engine is given directions for the cosine, and otherwise rows divided by the median of their lengths, which
  changes no order and keeps half precision in its range; a row more than LONGEST times as long is shortened to that.
  Rows that the score has no value for are not given to it.
- A filter is applied to the candidates. If M of N rows may be found, N/M times as many candidates are asked for; if too
  few of them are allowed (where a filter and the distance belong together), MORE times as many again.
- A candidate costs about as much as RELATIVE_COST rows of an exact search. So whenever all M rows are cheaper, they are
  searched exactly: few rows are allowed, few rows there are, or many are wanted. The answer is always full then.
- Rows are given to the engine only from ENOUGH_ROWS rows on, because fewer are always searched exactly.
- A saved search says which vectors it was made for (`search_file`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from gamlens import scores
from gamlens.errors import GamlensError, readable, reworded
from gamlens.index.backends.exact_search import ExactSearch
from gamlens.index.backends.product_candidates import SearchedRows, row_blocks, usable_rows
from gamlens.index.backends.product_forms import PRODUCT_FORMS, Lengths, ProductForm, inverse
from gamlens.index.backends.search_file import fingerprint, read_search, write_search
from gamlens.index.backends.vector_search import (
    NO_SLOT,
    RowStatus,
    Slots,
    checked_queries,
    checked_top,
    checked_vectors,
    no_status,
    nothing_found,
    without_value,
)

FEWEST_CANDIDATES, CANDIDATES_PER_HIT = 128, 8  # of these the engine's best SCORED_PER_HIT per hit are scored
SCORED_PER_HIT, FEWEST_SCORED = 4, 32
MORE = 8
RELATIVE_COST = 16
ENOUGH_ROWS = FEWEST_CANDIDATES * RELATIVE_COST
QUERIES_AT_ONCE = 256
LONGEST = 1000.0
ROWS_GIVEN_AT_ONCE = 1024  # a thread that searches waits while so many are added


class CandidateEngine(Protocol):
    """An index of some library. Only one thread calls it at a time."""

    def add(self, slots: Slots, rows: NDArray[np.float32]) -> None:
        """Add rows (n,D) under their slots (n,)."""
        ...

    def find(self, queries: NDArray[np.float32], wanted: int) -> Slots:
        """The slots (Q,wanted) that are probably nearest to the queries (Q,D), nearest first; -1 where none is left."""
        ...

    def write(self, out: IO[bytes]) -> None:
        """Write the index to the beginning of an open file that has a name."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class EngineKind:
    """How engines of one library are made.

    Attributes:
        name: Its name, in records of files.
        check: Raises a GamlensError that says how to install the library, if it is missing.
        make: A sample of rows (n,D), the number N of all of them, and whether the nearest rows are best, rather than
            those of the largest product -> an engine without rows.
        read: A file that begins with a written engine, the width D, and the same choice -> the engine.
        sample: How many rows `make` needs at most.
    """

    name: str
    check: Callable[[], None]
    make: Callable[[NDArray[np.float32], int, bool], CandidateEngine]
    read: Callable[[Path, int, bool], CandidateEngine]
    sample: int


@dataclass(frozen=True, eq=False)
class StoredSearch:
    """What a file of a search holds: the engine, the lengths of the rows (N,), and by what the rows were divided."""

    engine: CandidateEngine | None
    lengths: Lengths
    unit: float


class ApproximateSearch:
    """Search of the rows (N,D) that an engine holds.

    Args:
        vectors: (N,D), float32; they stay where they are and are read for the exact scores.
        score: A pair score that has a product form: cosine, dot or euclidean.
        kind: The kind of engine.
        stored: What the file of an earlier search says, which is continued then.
        status: Called with the number of rows that the engine was given, and of all.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        score: str | scores.PairScoreFunction,
        kind: EngineKind,
        *,
        stored: StoredSearch | None = None,
        status: RowStatus = no_status,
    ) -> None:
        self.kind, self.form, self.score_name = kind, product_form(score, kind), scores.score_name(score)
        self._lock, self._adding = threading.Lock(), threading.Lock()  # for each use of the engine; for the writer
        self._engine: CandidateEngine | None = None
        self._given, self._unit = 0, 1.0  # rows that the engine was given; by what they were divided
        if stored is None:
            self._exact = ExactSearch(vectors, score)
            self._give(self._exact.now, status)
        else:
            self._exact = ExactSearch(vectors[: len(stored.lengths)], score, lengths=stored.lengths)
            self._engine, self._unit = stored.engine, stored.unit
            self._given = 0 if stored.engine is None else len(stored.lengths)

    @property
    def rows(self) -> int:
        """The number N of rows that are searched."""
        return self._exact.rows

    def add(self, vectors: NDArray[np.float32], *, status: RowStatus = no_status) -> None:
        """Search more rows; nothing is built anew. They are found when all of them are added.

        Args:
            vectors: All rows (N',D): the N rows from before, unchanged, and the new ones behind them.
            status: Called with the number of rows that the engine was given, and of all.
        """
        with self._adding:
            grown = self._exact.grown(vectors)
            self._give(grown, status)
            self._exact.now = grown

    def search(
        self, queries: NDArray[np.float32], top: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` rows of highest score for each query: slots and scores (Q,top), as in `VectorSearch.search`.

        The scores are exact, and every row is allowed; of the rows that an exact search finds, a few may be missing.
        """
        now = self._exact.now
        wide, wanted = checked_queries(queries, now.vectors.shape[1]), checked_top(top)
        usable = usable_rows(now, allowed)
        slots, values = nothing_found(len(wide), wanted)
        left = np.flatnonzero(~without_value(self._exact.entry, wide))
        count = int(np.count_nonzero(usable))
        candidates = max(FEWEST_CANDIDATES, CANDIDATES_PER_HIT * wanted) * len(usable) // max(1, count)
        while len(left) and candidates * RELATIVE_COST < count:
            full = np.zeros(len(left), bool)
            for start in range(0, len(left), QUERIES_AT_ONCE):
                part = left[start : start + QUERIES_AT_ONCE]
                pairs = self._candidates(wide[part], candidates, wanted, usable)
                found = self._exact.best(now, wide[part], pairs, wanted)
                enough = found[0][:, -1] != NO_SLOT
                slots[part[enough]], values[part[enough]] = found[0][enough], found[1][enough]
                full[start : start + len(part)] = enough
            left, candidates = left[~full], candidates * MORE
        if len(left):
            slots[left], values[left] = self._exact.search_rows(now, wide[left], wanted, usable)
        return slots, values

    def save(self, path: Path) -> None:
        """Write the engine and the lengths of the rows to one file, atomically. Searches wait meanwhile."""
        with self._adding, reworded(f"Cannot write {readable(str(path))!r}", OSError, RuntimeError, ValueError):
            now, engine = self._exact.now, self._engine
            record = {
                "engine": self.kind.name,
                "score": self.score_name,
                "width": now.vectors.shape[1],
                "held": 0 if engine is None else len(engine),
                "unit": self._unit,
                "fingerprint": fingerprint(now.vectors),
            }
            with self._lock:
                write_search(path, no_engine if engine is None else engine.write, now.lengths, record)

    def _give(self, now: SearchedRows, status: RowStatus) -> None:
        """Give the engine the rows that it does not have. There is no engine before there are enough rows."""
        count, usable = len(now.lengths), np.flatnonzero(now.findable)
        if len(usable) < ENOUGH_ROWS:
            return
        if self._engine is None:
            self._unit = float(np.median(now.lengths[usable])) or 1.0
            chosen = usable[np.linspace(0, len(usable) - 1, min(self.kind.sample, len(usable))).astype(np.int64)]
            self._engine = self.kind.make(self._prepared_rows(now, chosen), len(usable), self.form.by_distance)
        for start in range(self._given, count, ROWS_GIVEN_AT_ONCE):
            stop = min(start + ROWS_GIVEN_AT_ONCE, count)
            slots = usable[slice(*np.searchsorted(usable, [start, stop]))]
            rows = self._prepared_rows(now, slots)
            with self._lock:
                self._engine.add(slots, rows)
            self._given = stop
            status(stop, count)

    def _candidates(
        self, queries: NDArray[np.float64], candidates: int, top: int, usable: NDArray[np.bool_]
    ) -> tuple[Slots, Slots]:
        """The best usable rows of the engine, as pairs for `ExactSearch.best`: enough to find the `top` among them."""
        assert self._engine is not None
        lengths = np.sqrt(np.einsum("qd,qd->q", queries, queries))
        factor = self._factor(lengths) if self.form.by_distance else inverse(lengths)
        with self._lock:
            slots = self._engine.find((queries * factor[:, None]).astype(np.float32), candidates)
        good = (slots >= 0) & (slots < len(usable))  # another thread may be adding rows
        good &= usable[np.where(good, slots, 0)]
        good &= np.cumsum(good, axis=1) <= max(FEWEST_SCORED, SCORED_PER_HIT * top)
        query, column = np.nonzero(good)
        return query, slots[query, column]

    def _factor(self, lengths: Lengths) -> Lengths:
        """By what vectors of these lengths (n,) are multiplied, if more than their directions matters, (n,)."""
        return 1 / np.maximum(self._unit, lengths / LONGEST)

    def _prepared_rows(self, now: SearchedRows, slots: Slots) -> NDArray[np.float32]:
        """Rows as the engine gets them, (n,D)."""
        rows = np.empty((len(slots), now.vectors.shape[1]), np.float32)
        for part in row_blocks(*rows.shape):
            lengths = now.lengths[slots[part]]
            factor = inverse(lengths) if self.form.unit_rows else self._factor(lengths)
            rows[part] = now.vectors[slots[part]] * factor[:, None]
        return rows


def load_approximate(
    path: Path, vectors: NDArray[np.float32], score: str | scores.PairScoreFunction, kind: EngineKind
) -> ApproximateSearch:
    """Continue the search that `ApproximateSearch.save` wrote; anything wrong with the file is a GamlensError.

    Args:
        path: The file.
        vectors: The vectors that it was made for; rows may have been appended since, which `add` makes known.
        score: The score that it was made for.
        kind: The kind of engine.
    """
    kind.check()
    form, found = product_form(score, kind), checked_vectors(vectors)
    name = readable(str(path))
    wanted = {"engine": kind.name, "score": scores.score_name(score), "width": found.shape[1]}
    try:
        record, lengths = read_search(path, wanted)
        if len(lengths) > len(found) or record["fingerprint"] != fingerprint(found[: len(lengths)]):
            raise ValueError("it was made for other vectors")
        held, unit = int(record["held"]), float(record["unit"])
        engine = kind.read(path, found.shape[1], form.by_distance) if held else None
        if engine is not None and len(engine) != held:
            raise ValueError(f"it has {len(engine)} of {held} rows")
        return ApproximateSearch(found, score, kind, stored=StoredSearch(engine, lengths, unit))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise GamlensError(
            f"{name!r} cannot be used as a search file: {why}. It follows from the vectors alone, so "
            "it can be built again."
        ) from error


def product_form(score: str | scores.PairScoreFunction, kind: EngineKind) -> ProductForm:
    """The product form of a score, or a GamlensError if it has none and so cannot be searched approximately."""
    form = PRODUCT_FORMS.get(scores.find_pair_score(score).fn)
    if form is None:
        raise GamlensError(
            f"The search {kind.name!r} can only order images by a product or a distance, and not by "
            f"{scores.score_name(score)!r}: use the exact search, which takes any score."
        )
    return form


def no_engine(out: IO[bytes]) -> None:
    """Write nothing, since there are too few rows for an engine."""
