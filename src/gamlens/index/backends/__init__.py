"""How vectors are searched: exactly, or approximately by an index of another package.

    search = BACKENDS["exact"].make(vectors, "cosine")
    slots, values = search.search(queries, top=10, allowed=mask)

`vector_search.VectorSearch` says what each of them can do.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import Registry
from gamlens.index.backends.exact_search import ExactSearch, load_exact, make_exact
from gamlens.index.backends.faiss_search import load_faiss, make_faiss
from gamlens.index.backends.usearch_search import load_usearch, make_usearch
from gamlens.index.backends.vector_search import RowStatus, VectorSearch, no_status
from gamlens.scores import PairScoreFunction


class MakeSearch(Protocol):
    """Build a search of the rows (N,D); `status` is called with the number of rows that are done, and of all."""

    def __call__(
        self, vectors: NDArray[np.float32], score: str | PairScoreFunction, *, status: RowStatus = no_status
    ) -> VectorSearch: ...


class LoadSearch(Protocol):
    """Continue a saved search of the rows (N,D), to which more rows may have been appended since."""

    def __call__(self, path: Path, vectors: NDArray[np.float32], score: str | PairScoreFunction) -> VectorSearch: ...


@dataclass(frozen=True)
class Backend:
    """A way to search vectors.

    Attributes:
        title: Its name in menus.
        exact: Whether it finds every row that it should, takes any score, and writes no file. The others take the
            scores that are a product or a distance; their answers have exact scores, too, but may miss a few rows.
        make: Builds a search of vectors.
        load: Continues a search that was saved. Its `rows` may then be fewer than the vectors: `add` them.
        package: The package that it needs; "" for none.
        extra: The extra of gamlens that installs the package.
        automatic: `automatic_backend` takes it for at most so many rows.
    """

    title: str
    exact: bool
    make: MakeSearch
    load: LoadSearch
    package: str = ""
    extra: str = ""
    automatic: int = 0

    @property
    def installed(self) -> bool:
        """Whether its package is there. Nothing is imported."""
        return not self.package or find_spec(self.package) is not None


BACKENDS: dict[str, Backend] = Registry(
    "backend",
    {
        "exact": Backend("Exact", exact=True, make=make_exact, load=load_exact, automatic=100_000),
        "usearch": Backend(
            "usearch (HNSW)",
            exact=False,
            make=make_usearch,
            load=load_usearch,
            package="usearch",
            extra="search",
            automatic=sys.maxsize,
        ),
        "faiss": Backend("faiss (IVF)", exact=False, make=make_faiss, load=load_faiss, package="faiss", extra="faiss"),
    },
)


def automatic_backend(rows: int) -> str:
    """The name of the backend for so many rows: exact up to 100,000; usearch beyond that, if it is installed.

    >>> automatic_backend(20_000)
    'exact'
    """
    fitting = (name for name, entry in BACKENDS.items() if rows <= entry.automatic and entry.installed)
    return next(fitting, next(name for name, entry in BACKENDS.items() if entry.exact))
