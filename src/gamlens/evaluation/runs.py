"""An evaluation as a run: its description, its workers on one of the engines, and its rows in a folder."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gamlens.data import Dataset
from gamlens.engine import ENGINES, Done, Job, RunFolder, pieces, run_local, run_ray
from gamlens.engine.json_objects import misfit
from gamlens.engine.part_files import part_name
from gamlens.engine.run_folder import VARIES
from gamlens.errors import GamlensError, near, readable, warn
from gamlens.evaluation import results
from gamlens.evaluation.measure import Measurer, costed_items
from gamlens.evaluation.metric_columns import left_out_note
from gamlens.evaluation.protocol import UNSAID, Protocol, Unit
from gamlens.evaluation.run_checks import PartCheck, other_columns
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.scores import PAIR_SCORES


@dataclass(frozen=True)
class Engine:
    """Where a run happens.

    Attributes:
        name: "local" for this process, or "ray" for a cluster.
        workers: The number of decoding threads (local), or of processes with a model each (ray). None for a default.
        address: The address of a Ray cluster. None starts one on this machine.
    """

    name: str = "local"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise GamlensError(f"There is no engine {self.name!r}: {near(self.name, ENGINES)}")
        if self.workers is not None and self.workers < 1:
            raise GamlensError(f"workers={self.workers}: give at least 1.")
        if self.address is not None and self.name != "ray":
            raise GamlensError("An address is that of a Ray cluster: use it with --engine ray.")

    def run(self, job: Job, items: Sequence[Any], folder: RunFolder) -> Generator[Done, None, None]:
        """Yield the chunks as they are finished. Closing the generator ends what was started for the run."""
        if self.name == "ray":
            yield from run_ray(job, items, folder, workers=self.workers, address=self.address)
        else:
            yield from run_local(job, items, folder, workers=self.workers)


def make_measurer(
    make: Callable[[], Lens], protocol: Protocol, measured: bool = False, threads: int | None = None
) -> Measurer:
    """Make the worker of a process.

    Args:
        make: Builds the lens, or returns one that exists already.
        protocol: The protocol.
        measured: Whether an earlier part of the run measured items; see `Measurer`.
        threads: With how many CPU threads torch computes in this process from now on; None leaves it as it is.
    """
    lens = make()
    if threads is not None:
        torch.set_num_threads(threads)
    set_input(lens, protocol)
    return Measurer(lens, protocol, measured)


def set_input(lens: Lens, protocol: Protocol) -> None:
    """Make the lens squash or crop images, as the protocol says."""
    if isinstance(lens.transform, Transform):
        lens.transform = lens.transform.using(protocol.input)


def evaluate_run(
    make: Callable[[], Lens],
    dataset: Dataset,
    items: Sequence[Unit],
    protocol: Protocol,
    place: str | Path,
    *,
    batch: int = 16,
    chunk: int = 64,
    engine: Engine | None = None,
    fresh: bool = False,
    about: dict[str, Any] | None = None,
    status: Callable[[int, int], None] = lambda items, errors: None,
) -> dict[str, Any]:
    """Measure items into a run folder. If the folder holds a part of this run, only the rest is measured.

    Args:
        make: Builds the lens. It is called once here, and once in every worker of a cluster.
        dataset: The data set of the items.
        items: The items, from `units`.
        protocol: The protocol.
        place: The run folder, or a URI such as s3://bucket/run.
        batch: Items per forward.
        chunk: Items per file of results.
        engine: Where the run happens; by default in this process.
        fresh: Whether to delete a run that the folder holds.
        about: Further entries for run.json.
        status: Called with the number of items and of errors so far.

    Returns:
        The summary of the run (done.json), and as `measured` how many items this call measured.
    """
    if protocol.fusions:
        raise GamlensError("A run folder holds one way to join blocks, the mean: gamlens ablate varies them.")
    lens = make()
    if batch < 1 or chunk < 1:
        raise GamlensError(f"batch={batch}, chunk={chunk}: give at least 1.")
    where = engine or Engine()
    opened = run_folder(
        lens, dataset, items, protocol, place, batch=batch, chunk=chunk, engine=where, fresh=fresh, about=about
    )
    if protocol.task in PAIR_SCORES and not PAIR_SCORES[protocol.task].positive:
        warn(left_out_note(opened.about))
    with opened as folder:
        errors = _check_parts(folder, pieces(items, chunk))
        if (known := _summary(folder)) is not None:
            if not folder.sealed():
                folder.finish(known)
            return {**known, "measured": 0}
        threads = folder.recorded("threads") or torch.get_num_threads()
        written = folder.written()
        already = sum(len(part) for number, part in enumerate(pieces(items, chunk)) if number in written)
        seen = already
        status(seen, errors)
        items = costed_items(items, protocol, batch=batch, chunk=chunk)
        own = (lambda: lens) if where.name == "local" else make
        job = Job(partial(make_measurer, own, protocol, bool(written), threads), results.encode, chunk, batch, _name)
        with _thread_count(threads), closing(where.run(job, items, folder)) as chunks:
            for done in chunks:
                seen, errors = seen + done.items, errors + done.errors
                status(seen, errors)
        summary = {"items": len(items), "errors": results.errors_in(folder), "resumed_at": already}
        folder.finish(summary)
        return {**summary, "measured": len(items) - already}


def run_folder(
    lens: Lens,
    dataset: Dataset,
    items: Sequence[Unit],
    protocol: Protocol,
    place: str | Path,
    *,
    batch: int,
    chunk: int,
    engine: Engine,
    fresh: bool = False,
    about: dict[str, Any] | None = None,
) -> RunFolder:
    """The folder of a run with the configuration of this one, not locked yet. Arguments are as in `evaluate_run`.

    On a cluster the device is that of each worker, so a run may be continued there and here.
    """
    set_input(lens, protocol)
    found = {
        **results.describe(lens, dataset, protocol, len(items)),
        **(about or {}),
        "batch": batch,
        "chunk": chunk,
        "chunks": len(pieces(items, chunk)),
        "threads": torch.get_num_threads(),
    }
    if engine.name != Engine().name:
        found["device"] = VARIES
    unsaid = {"device": found["device"], "protocol": _unsaid(lens, protocol)}
    return RunFolder(place, found, suffix=results.SUFFIX, fresh=fresh, unsaid=unsaid)


def _unsaid(lens: Lens, protocol: Protocol) -> dict[str, Any]:
    """What a run was measured with whose run.json lacks a field. Where a field makes no difference, any value will do.

    The hold-out of pairs makes none for classes, and the reading of lattices none for a network without any. Earlier
    versions had no ADP of equal mass; a finished run of theirs is as good without it.
    """
    same = ["equal_mass", *(["hold_out_by"] if protocol.task == "classification" else [])]
    same += [] if lens.lattices else ["lattice"]
    return UNSAID | {name: getattr(protocol, name) for name in same}


def _check_parts(folder: RunFolder, chunks: Sequence[Sequence[Unit]]) -> int:
    """Delete damaged parts, with a warning that names them; returns how many items failed in the other parts.

    Parts with other columns than this version writes are an error, unless the run is finished and whole.
    """
    finished = folder.summary() is not None
    names = [[_name(unit) for unit in chunk] for chunk in chunks]
    check = PartCheck(names, () if finished else results.part_columns())
    found = folder.find_damaged(check, names=names)
    if not found:
        return check.errors
    if check.columns and check.columns != results.part_columns():
        raise other_columns("a part that is measured again", results.part_columns(), check.columns)
    listed = [f"part {number} ({part_name(number, folder.suffix)}): {why}" for number, why in sorted(found.items())]
    more = f"; and {len(listed) - 5} more" if len(listed) > 5 else ""
    warn(
        f"{len(found)} of {len(chunks)} parts of the run in {folder.store.place!r} are measured again: "
        f"{'; '.join(listed[:5])}{more}."
    )
    folder.drop(found)
    return check.errors


def _summary(folder: RunFolder) -> dict[str, Any] | None:
    """The summary of a finished run; None if it is not finished, or if the summary is not one of ours."""
    known = folder.summary()
    return None if known is None or misfit(known, {"items": int, "errors": int}) else known


def _name(unit: Unit) -> str:
    """The name of an item as its rows have it."""
    return readable(unit.name)


@contextmanager
def _thread_count(count: int) -> Iterator[None]:
    """Let torch compute with `count` CPU threads in this process, and afterwards with as many as before.

    Sums are added up in another order with another number of threads. So every process that works on a run, now or
    when it is continued, uses the number that run.json records; otherwise rows would differ in the last bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
