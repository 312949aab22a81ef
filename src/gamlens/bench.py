"""Measure any explainer like ours: functions of yours, methods of other packages, and maps from files.

    from gamlens import Lens, bench

    mine = bench.external(my_function)                      # (model, batch, targets) -> maps (B,H,W)
    peer = bench.find("captum:IntegratedGradients")         # as on the command line
    protocol = bench.Protocol("objective", methods=("gam", mine, peer), n=(2,), cost=True)
    run = bench.measure(lens, bench.load("ilsvrc", "ILSVRC"), protocol, limit=200)
    board = bench.board(run)                                # means, intervals, ranks, which metrics agree
    bench.write_board("board", [("my network", board)])     # leaderboard.html, .md, .csv, .json

`gamlens leaderboard` and `gamlens evaluate` do the same from the command line, in folders that resume.
"""

from __future__ import annotations

from gamlens.data import Dataset, align, load
from gamlens.evaluation import results
from gamlens.evaluation.explainers import Explainer, external, find
from gamlens.evaluation.leaderboard import Board, board
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.results import Run
from gamlens.evaluation.runs import set_input
from gamlens.lens import Lens
from gamlens.report.leaderboard_page import write_board

__all__ = ["Board", "Explainer", "Protocol", "Run", "board", "external", "find", "load", "measure", "write_board"]


def measure(lens: Lens, dataset: Dataset, protocol: Protocol, *, limit: int | None = None, batch: int = 16) -> Run:
    """Measure every method and explainer of a protocol on a data set, in this process and in memory.

    Args:
        lens: The model. Its transform squashes or crops images from now on, as the protocol says.
        dataset: The images with their labels, and boxes or masks: `load("ilsvrc", root)`.
        protocol: What is measured, and of which methods.
        limit: Measure only the first items.
        batch: Items per forward.

    Returns:
        A Run, for `board` and the tables of `gamlens.evaluation`. Items that failed are in `errors`.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:  # one folder of images per class
        ...     for name, image in (("cat", photo), ("dog", other)):
        ...         (Path(folder) / name).mkdir()
        ...         image.save(Path(folder) / name / "1.png")
        ...     images = load("folder", folder)
        ...     run = measure(lens, images, Protocol("objective", methods=("gam",), n=(1,)))
        >>> len(run.errors)
        0
    """
    set_input(lens, protocol)
    own = align(dataset, lens.labels) if protocol.task == "classification" else dataset
    items = units(own, protocol)[:limit]
    rows = [row for part in evaluate(lens, items, protocol, batch=batch) for row in part]
    return results.collect(results.describe(lens, own, protocol, len(items)), rows)
