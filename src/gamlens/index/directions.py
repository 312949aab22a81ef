"""Vectors of an index as directions: divided by their lengths and read in blocks of bounded size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import GamlensError

MOST_BLOCK_ROWS = 2048
MOST_BLOCK_VALUES = 2**23  # values of a block: 32 MiB in float32

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class VectorDirections:
    """The M of N vectors (N,D) that are not zero, read in blocks as vectors of length 1.

    Attributes:
        vectors: All vectors, (N,D).
        numbers: Which of them are not zero, (M,).
        lengths: The lengths of these, (M,), in float64, where neither large nor small float32 numbers have squares out
            of range.
        step: The number of rows of a block.
    """

    vectors: NDArray[Any]
    numbers: Numbers
    lengths: Doubles
    step: int

    def blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.numbers), self.step):
            yield slice(start, min(start + self.step, len(self.numbers)))

    def doubles(self, rows: slice | Numbers) -> Doubles:
        """Rows of length 1 in float64, (B,D)."""
        return _as_float32(self.vectors[self.numbers[rows]]) / self.lengths[rows, None]

    def rows(self, rows: slice) -> Floats:
        """Rows of length 1 in float32, (B,D)."""
        return self.doubles(rows).astype(np.float32)


def vector_directions(vectors: NDArray[Any], *, beside: int = 1) -> VectorDirections:
    """Check vectors (N,D) and measure their lengths. Blocks will be compared with `beside` vectors at once."""
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise GamlensError(f"Vectors are an array of numbers (N,D); found {vectors.dtype} of shape {vectors.shape}.")
    step = max(1, min(MOST_BLOCK_ROWS, MOST_BLOCK_VALUES // max(1, vectors.shape[1], beside)))
    lengths = np.zeros(len(vectors))
    for start in range(0, len(vectors), step):
        part = _as_float32(vectors[start : start + step]).astype(np.float64)
        lengths[start : start + step] = np.sqrt(np.einsum("nd,nd->n", part, part))
    if len(wrong := np.flatnonzero(~np.isfinite(lengths))):
        raise GamlensError(
            f"Vector {wrong[0]} has values that are NaN, infinite or beyond float32 ({len(wrong)} of {len(vectors)} "
            "vectors have): leave these vectors out, or compute them again."
        )
    numbers = np.flatnonzero(lengths)
    return VectorDirections(vectors=vectors, numbers=numbers, lengths=lengths[numbers], step=step)


def _as_float32(values: NDArray[Any]) -> Floats:
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite, which is an error later
        return np.asarray(values, dtype=np.float32)
