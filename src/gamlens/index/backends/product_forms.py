"""How pair scores are ordered by a matrix product, and how far rounding can move that order.

Within the answers to one query q, a score s(q, x) of rows x grows with a key that needs one product of a matrix:

    score       key                        error of the key, at most
    cosine      <q / |q|, x> / |x|         c
    dot         <q / |q|, x>               c |x|
    euclidean   <2 q, x> - |x|^2           c (|q|^2 + 2 |x|^2)

The last key is |q|^2 - |q - x|^2. A dot product of D numbers, summed in any order with the machine precision eps, is
wrong by at most D/2 eps |q| |x| (and 2 |q| |x| <= |q|^2 + |x|^2). c = (D/2 + 8) eps has room for the other roundings:
of q / |q|, of 1 / |x| and |x|^2, of the last operation, and of the score in the answer to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens import scores
from gamlens.scores import PairScoreFunction

Lengths = NDArray[np.float64]
WIDE_RANGE = (1e-12, 1e12)  # vectors of other lengths may leave the range of float32 when they are multiplied


@dataclass(frozen=True)
class ProductForm:
    """A score as the key scale(|x|) <u, x> + offset(|x|), where u is the query or a multiple of it.

    Attributes:
        multiple: |q| (Q,) -> by how much the queries are multiplied, (Q,).
        scale: |x| (N,) -> (N,); None for 1.
        offset: |x| (N,) -> (N,); None for 0.
        query_error: |q| (Q,) -> the part of the error of the key that is the query's, divided by c, (Q,).
        row_error: |x| (N,) -> the row's part, (N,); None for 0.
        unit_rows: Whether only the directions of the rows matter.
        by_distance: Whether the nearest rows are best, rather than those of the largest product.
    """

    multiple: Callable[[Lengths], Lengths]
    scale: Callable[[Lengths], Lengths] | None
    offset: Callable[[Lengths], Lengths] | None
    query_error: Callable[[Lengths], Lengths]
    row_error: Callable[[Lengths], Lengths] | None
    unit_rows: bool = False
    by_distance: bool = False


def inverse(lengths: Lengths) -> Lengths:
    """1 / |x|, and 0 where there is no length."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def product_error(width: int, kind: type[np.floating[Any]]) -> float:
    """The c of the table above, for vectors of this width and products in this type."""
    return float((width / 2 + 8) * np.finfo(kind).eps)


PRODUCT_FORMS: Mapping[PairScoreFunction, ProductForm] = {
    scores.cosine: ProductForm(
        multiple=inverse, scale=inverse, offset=None, query_error=np.ones_like, row_error=None, unit_rows=True
    ),
    scores.dot: ProductForm(
        multiple=inverse, scale=None, offset=None, query_error=np.zeros_like, row_error=lambda lengths: lengths
    ),
    scores.euclidean: ProductForm(
        multiple=lambda lengths: np.full_like(lengths, 2.0),
        scale=None,
        offset=lambda lengths: -(lengths**2),
        query_error=np.square,
        row_error=lambda lengths: 2 * lengths**2,
        by_distance=True,
    ),
}
