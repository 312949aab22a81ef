"""Approximate search with faiss, for millions of rows: lists of rows around centres (IVF), in 8 or 16 bits per value.

J. Johnson, M. Douze and H. Jégou, Billion-scale similarity search with GPUs, IEEE Transactions on Big Data 2021.

k-means on a sample of rows finds the centres; each row is in the list of its nearest centre, as a difference from it,
rounded to 8 bits per value. A query looks through the lists of the nearest centres.

8 bits cover the range from the smallest to the largest difference, in equal steps. So if a few rows are far longer than
the others, the steps are too coarse for the Euclidean distance of the short ones: values are then rounded to half
precision, in 2 D bytes per row, whose steps are in proportion to the value.

Why not HNSW, which faiss has, too: for millions of rows on few cores the lists are built several times faster (a row is
compared with at most 4,096 centres, in a matrix product, instead of walking through a graph of millions), and they take
D bytes per row instead of 2 D and a graph. On the features that `usearch_search` names, the share of the true ten best
was 1.00 for the cosine and 0.999 for the other scores, and the lists were made in 3 to 8 s; the graph took 10 to 15 s.

Where lengths differ very much, the dot product suits lists badly: a long row is a good hit at almost any angle, so it
lies in lists that are not looked through. On 20,000 rows around 60 centres (D = 64 and 256), of which 1 % were ten
times as long, the share of the true ten best was 0.85 and 0.92 for the dot product (1.00 and 0.96 by usearch), and 1.00
for the cosine and the Euclidean distance; with 1 % a thousand times as long, the distance had 0.10 and 0.20 in 8 bits,
and has 1.00 in half precision.

Training takes a bounded time, however many rows there are: at most MOST_CENTRES centres, SAMPLE_PER_CENTRE rows for
each of them and TRAINING_STEPS steps, which is 90 s of processor time at D = 1,280. Rows are added without training.
When there are ten times as many as before, the lists are long and searches slow: delete the file, and build it again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gamlens import scores
from gamlens.data.reading import import_extra
from gamlens.index.backends.approximate import ApproximateSearch, EngineKind, load_approximate
from gamlens.index.backends.vector_search import RowStatus, Slots, no_status

FAISS = "faiss"
MOST_CENTRES, SAMPLE_PER_CENTRE, TRAINING_STEPS = 4096, 24, 8
FEWEST_PROBES, PROBED_SHARE = 32, 16  # lists that are looked through: one in PROBED_SHARE, at least FEWEST_PROBES
MOST_UNEVEN = 4.0  # for distances in 8 bits per value: how many times as long as the shortest row the longest may be
ROWS_PER_CANDIDATE = 16  # and so many that they hold at least this many rows for each candidate


class FaissEngine:
    """Lists of faiss, as a `CandidateEngine`."""

    def __init__(self, lists: Any) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return int(self.lists.ntotal)

    def add(self, slots: Slots, rows: NDArray[np.float32]) -> None:
        """Add rows (n,D) under their slots (n,)."""
        if len(slots):
            self.lists.add_with_ids(rows, slots)

    def find(self, queries: NDArray[np.float32], wanted: int) -> Slots:
        """The slots (Q,wanted) that are probably nearest to the queries (Q,D); -1 where none is left."""
        count = self.lists.nlist
        needed = math.ceil(ROWS_PER_CANDIDATE * wanted * count / max(1, len(self)))
        probes = min(count, max(FEWEST_PROBES, count // PROBED_SHARE, needed))
        found: Slots = self.lists.search(queries, wanted, params=_library().SearchParametersIVF(nprobe=probes))[1]
        return found

    def write(self, out: IO[bytes]) -> None:
        """Write the lists to an open file."""
        library = _library()
        library.write_index(self.lists, library.PyCallbackIOWriter(out.write))


def make_faiss(
    vectors: NDArray[np.float32], score: str | scores.PairScoreFunction, *, status: RowStatus = no_status
) -> ApproximateSearch:
    """Build the lists of these rows (N,D); `status` is called with the number of rows that are in them, and of all."""
    return ApproximateSearch(vectors, score, FAISS_KIND, status=status)


def load_faiss(path: Path, vectors: NDArray[np.float32], score: str | scores.PairScoreFunction) -> ApproximateSearch:
    """Read lists that were saved, for the same vectors (N,D) or for more of them."""
    return load_approximate(path, vectors, score, FAISS_KIND)


def _library() -> Any:
    return import_extra("faiss", "This search", extra="faiss")


def _check() -> None:
    _library()


def _make(sample: NDArray[np.float32], rows: int, by_distance: bool) -> FaissEngine:
    library = _library()
    metric = library.METRIC_L2 if by_distance else library.METRIC_INNER_PRODUCT
    count = min(MOST_CENTRES, 4 * math.isqrt(rows), len(sample))
    lengths = np.linalg.norm(sample, axis=1)
    values = "SQfp16" if by_distance and lengths.max() > MOST_UNEVEN * lengths.min() else "SQ8"
    lists = library.index_factory(sample.shape[1], f"IVF{count},{values}", metric)
    lists.cp.niter = TRAINING_STEPS
    lists.cp.min_points_per_centroid, lists.cp.max_points_per_centroid = 1, SAMPLE_PER_CENTRE
    lists.train(sample)
    return FaissEngine(lists)


def _read(path: Path, width: int, by_distance: bool) -> FaissEngine:
    return FaissEngine(_library().read_index(str(path)))


FAISS_KIND = EngineKind(name=FAISS, check=_check, make=_make, read=_read, sample=MOST_CENTRES * SAMPLE_PER_CENTRE)
