"""The candidates of an exact search: the rows that, by one matrix product, may be among the best of a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.index.backends.product_forms import WIDE_RANGE, Lengths, ProductForm, product_error
from gamlens.index.backends.vector_search import Slots, checked_mask

COPIED_VALUES = 1 << 17  # how many values of rows are copied at once: half a megabyte, which stays in the cache
GATHERED_SHARE = 4  # usable rows are copied if there are fewer than one in so many
SPARE = 1024  # how many candidates a query has at most beyond those that are wanted, in both orders
Pairs = tuple[Slots, Slots]  # for each candidate the number of its query, ascending, and its slot


@dataclass(frozen=True, eq=False)
class SearchedRows:
    """The rows of a search at one time; adding rows makes another one.

    Attributes:
        vectors: (N,D), float32.
        lengths: |x| of each row in float64, (N,); NaN for rows that the score has no value for.
        form: How the score is ordered by a product; None if it is not.
    """

    vectors: NDArray[np.float32]
    lengths: Lengths
    form: ProductForm | None

    @cached_property
    def findable(self) -> NDArray[np.bool_]:
        """Which rows the score has a value for, (N,)."""
        return ~np.isnan(self.lengths)

    @cached_property
    def findable_slots(self) -> Slots:
        """The slots of these rows, ascending."""
        return np.flatnonzero(self.findable)

    @cached_property
    def kind(self) -> type[np.floating[Any]]:
        """The type in which products are computed: float32, unless a row is so long or short that it overflows."""
        return np.float64 if outside_float32(self.lengths) else np.float32

    @cached_property
    def key_terms(self) -> tuple[Lengths | None, Lengths | None, Lengths | None]:
        """Scale, offset and error of each row, (N,) each; None for one that changes nothing."""
        assert self.form is not None
        known = np.nan_to_num(self.lengths, nan=0.0)
        scale, offset, error = (
            None if term is None else term(known) for term in (self.form.scale, self.form.offset, self.form.row_error)
        )
        return scale, offset, error

    @cached_property
    def _terms_by_type(self) -> dict[Any, tuple[NDArray[Any] | None, NDArray[Any] | None]]:
        return {}

    def terms_in(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Scale and offset of each row in the type of the products; kept, since every search needs them."""
        if dtype not in self._terms_by_type:
            scale, offset = (None if term is None else term.astype(dtype) for term in self.key_terms[:2])
            self._terms_by_type[dtype] = scale, offset
        return self._terms_by_type[dtype]


def usable_rows(now: SearchedRows, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Which rows may be found, (N,): those that are allowed and that the score has a value for."""
    return now.findable if allowed is None else now.findable & checked_mask(allowed, len(now.lengths))


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Blocks of rows that are small enough to be copied."""
    at_once = max(1, COPIED_VALUES // width)
    return (slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once))


def are_copied(usable: Slots, rows: int) -> bool:
    """Whether usable rows are so few of all rows that they are copied to be multiplied."""
    return GATHERED_SHARE * len(usable) < rows


def outside_float32(lengths: Lengths) -> bool:
    """Whether products of vectors of these lengths may be too large or too small for float32."""
    least, most = WIDE_RANGE
    return bool(((lengths > 0) & (lengths < least) | (lengths > most)).any())


def product_candidates(now: SearchedRows, queries: NDArray[np.float64], top: int, usable: Slots) -> Pairs:
    """The pairs of each query (Q,D) and the usable rows (M,) that may be among its `top` best."""
    if now.form is None or len(usable) <= top:
        return np.repeat(np.arange(len(queries)), len(usable)), np.tile(usable, len(queries))
    lengths = np.sqrt(np.einsum("qd,qd->q", queries, queries))
    kind = np.float64 if outside_float32(lengths) else now.kind
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        keys, gathered = _keys(now, (queries * now.form.multiple(lengths)[:, None]).astype(kind), usable)
    slack = 2 * product_error(queries.shape[1], kind)
    error = now.key_terms[2]
    if error is not None:  # from here on the key is its lower limit, but for the query's part of the error
        error = (error[usable] if gathered else error) * slack
        keys -= (error / 2).astype(kind)
    last = np.partition(keys, keys.shape[1] - top, axis=1)[:, keys.shape[1] - top].astype(np.float64)
    last -= slack * now.form.query_error(lengths)
    above = keys >= (last if error is None else last - error.max())[:, None]
    query, column = np.divmod(np.flatnonzero(above), keys.shape[1])  # several times faster than nonzero(above)
    if error is not None:
        reach = keys[query, column] + error[column] >= last[query]
        query, column = query[reach], column[reach]
    query, column = _not_too_many(query, column, keys, top)
    return query, usable[column] if gathered else column


def _keys(
    now: SearchedRows, multiples: NDArray[np.floating[Any]], usable: Slots
) -> tuple[NDArray[np.floating[Any]], bool]:
    """The keys of queries that are multiplied already, and whether their columns are only the usable rows.

    Usable rows are gathered if they are few. Otherwise all rows are multiplied where they are, which is cheaper than to
    copy them, and the keys of the others are set to -inf.
    """
    count = len(now.lengths)
    gathered = are_copied(usable, count)
    columns = len(usable) if gathered else count
    keys = np.empty((len(multiples), columns), multiples.dtype)
    plain = not gathered and multiples.dtype == now.vectors.dtype
    for part in [slice(0, columns)] if plain else row_blocks(columns, now.vectors.shape[1]):
        block = now.vectors[usable[part]] if gathered else now.vectors[part]
        np.matmul(multiples, block.T.astype(multiples.dtype, copy=False), out=keys[:, part])
    terms = now.terms_in(multiples.dtype)
    scale, offset = (None if term is None else term[usable] if gathered else term for term in terms)
    if scale is not None:
        keys *= scale
    if offset is not None:
        keys += offset
    if not gathered and len(usable) < count:
        others = np.ones(count, bool)
        others[usable] = False
        keys[:, others] = -np.inf
    return keys, gathered


def _not_too_many(query: Slots, column: Slots, keys: NDArray[np.floating[Any]], top: int) -> Pairs:
    """Keep of each query's candidates the top + SPARE of the highest keys, and as many of the lowest slots."""
    counts, most = np.bincount(query, minlength=len(keys)), top + SPARE
    kept = np.repeat(counts <= 2 * most, counts)
    for number in np.flatnonzero(counts > 2 * most):
        start, stop = np.searchsorted(query, [number, number + 1])
        highest = np.argpartition(-keys[number, column[start:stop]], most)[:most]
        kept[start + highest] = True
        kept[start : start + most] = True
    return query[kept], column[kept]
