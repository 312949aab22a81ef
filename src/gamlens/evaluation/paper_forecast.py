"""What a dry run of a table says of its runs: what is done, what would be refused, and how long the rest takes."""

import time
from pathlib import Path

from gamlens.engine import RunFolder, pieces
from gamlens.evaluation import results
from gamlens.evaluation.measure import Measurer
from gamlens.evaluation.paper_runs import PaperRun, folder_of
from gamlens.evaluation.runs import Engine, run_folder, set_input

TIMED_SECONDS = 2.0  # about how long a dry run measures items of each run


def finished_items(run: PaperRun, out: Path, chunk: int) -> int:
    """How many items of a run its folder already holds, if it was made with the same size of chunks."""
    about = {"chunks": len(pieces(run.items, chunk))}
    written = RunFolder(folder_of(run, out), about, suffix=results.SUFFIX).written()
    return sum(len(part) for number, part in enumerate(pieces(run.items, chunk)) if number in written)


def other_run(run: PaperRun, out: Path, *, batch: int, chunk: int, engine: Engine) -> str:
    """The settings in which the run in a run's folder differs, so that `measure_run` refuses it; "" if it goes on."""
    place = folder_of(run, out)
    if not place.is_dir():
        return ""
    return run_folder(
        run.lens, run.dataset, run.items, run.protocol, place, batch=batch, chunk=chunk, engine=engine,
        about=run.about(),
    ).other_settings()  # fmt: skip


def seconds_per_item(run: PaperRun, *, most: int) -> float:
    """Measure a few items of a run, and return the seconds per item.

    The first item is not counted, because much is made ready there; how long it takes decides how many follow, up to
    `most`, so that this takes about TIMED_SECONDS.
    """
    set_input(run.lens, run.protocol)
    worker, items = Measurer(run.lens, run.protocol), run.items
    seconds, count = 0.0, 1
    for again in range(2):
        start, few = time.perf_counter(), items[again : again + count] or items[:1]
        worker.work(worker.load(few))
        seconds = (time.perf_counter() - start) / len(few)
        count = max(1, min(most, int(TIMED_SECONDS / seconds)))
    return seconds
