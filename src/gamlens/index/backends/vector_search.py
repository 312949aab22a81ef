"""What every search of vectors has in common: its protocol, and the checks of what it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gamlens.errors import GamlensError
from gamlens.scores import PairScore

NO_SLOT = -1  # in place of a slot where there are fewer hits than wanted; its score is -inf
Slots = NDArray[np.int64]
RowStatus = Callable[[int, int], None]


def no_status(done: int, rows: int) -> None:
    """Tell nobody how far it is."""


class VectorSearch(Protocol):
    """A search of N vectors of width D, the rows of an array (N,D). The number of a row is called its slot.

    Several threads may search at the same time, also while another one adds rows.
    """

    @property
    def rows(self) -> int:
        """The number N of rows that are searched. Rows that `add` was not told of are not found."""
        ...

    def search(
        self, queries: NDArray[np.float32], top: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` rows of highest score for each query.

        Args:
            queries: One vector per row, (Q,D), all values finite.
            top: How many rows are wanted for each query, at least 1. It may be larger than N.
            allowed: Which rows may be found, (N,), or of the first rows alone; None for all. Removed rows are rows that
                are not allowed.

        Returns:
            Slots and scores, (Q,top) each, best first; among equal scores the lower slot is first. Where fewer rows
            can be found, the slots are -1 and the scores -inf. A score is never NaN: rows with values that are not
            finite are not found, nor rows that the score has no value for (a vector of zeros has no cosine). A query
            without a value finds nothing.
        """
        ...

    def add(self, vectors: NDArray[np.float32], *, status: RowStatus = no_status) -> None:
        """Search more rows; nothing is built anew. They are found when all of them are added.

        Args:
            vectors: All rows (N',D): the N rows from before, unchanged, and the new ones behind them.
            status: Called with the number of rows that are done, and of all.
        """
        ...

    def save(self, path: Path) -> None:
        """Write one file, atomically, from which the search can be continued. An exact search writes none."""
        ...


def checked_vectors(vectors: Any, *, width: int | None = None, least: int = 0) -> NDArray[np.float32]:
    """The vectors (N,D) as a plain view, or a GamlensError if they are no rows of float32 numbers.

    Args:
        vectors: The array; it may be a memory map that can only be read.
        width: The D that they must have; None for any.
        least: The number of rows that they must have at least.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype != np.float32 or not vectors.shape[1]:
        raise GamlensError(f"Vectors are a float32 array (N,D); found {_described(vectors)}.")
    if width is not None and vectors.shape[1] != width:
        raise GamlensError(f"The vectors have {vectors.shape[1]} values each, and this search has vectors of {width}.")
    if len(vectors) < least:
        raise GamlensError(
            f"{least} rows are searched already, and only {len(vectors)} are given: give all rows, the old ones first."
        )
    return np.asarray(vectors)


def checked_queries(queries: Any, width: int) -> NDArray[np.float64]:
    """The queries (Q,D) in float64, or a GamlensError if they are no finite vectors of the right width."""
    if not isinstance(queries, np.ndarray) or queries.ndim != 2 or queries.dtype.kind != "f":
        raise GamlensError(f"Queries are a float32 array (Q,D); found {_described(queries)}.")
    if queries.shape[1] != width:
        raise GamlensError(
            f"The queries have {queries.shape[1]} values each, and the vectors {width}: use the same model for both."
        )
    if not np.isfinite(queries).all():
        raise GamlensError("A query has values that are not finite (NaN or infinite), so it has no score.")
    return queries.astype(np.float64)


def checked_top(top: Any) -> int:
    """The number of wanted rows, or a GamlensError."""
    if isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1:
        raise GamlensError(f"top={top!r}: give the number of images wanted for each query, at least 1.")
    return int(top)


def checked_mask(allowed: Any, rows: int) -> NDArray[np.bool_]:
    """The mask of allowed rows (N,), or a GamlensError. A shorter one does not allow the rows behind its end.

    A search that began before rows were added has such a mask.
    """
    if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.ndim != 1 or len(allowed) > rows:
        raise GamlensError(
            f"allowed= has one True or False for each of the {rows} rows, in a bool array; found {_described(allowed)}."
        )
    return allowed if len(allowed) == rows else np.pad(allowed, (0, rows - len(allowed)))


def nothing_found(queries: int, top: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Slots and scores (Q,top) that hold no hits yet."""
    return np.full((queries, top), NO_SLOT, np.int64), np.full((queries, top), -np.inf, np.float32)


def without_value(entry: PairScore, vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """For which vectors (N,D) the score has no value, (N,): those not finite, and those `PairScore.undefined` names."""
    missing = np.asarray(~np.isfinite(vectors).all(axis=1))
    if entry.undefined is not None:
        missing |= entry.undefined(torch.from_numpy(vectors)).numpy()
    return missing


def _described(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{type(value).__name__}"
