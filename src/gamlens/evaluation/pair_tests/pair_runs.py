"""A run of the tests of pairs: its worker, its folder that resumes, and its rows, one per case."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gamlens.data import Dataset, Sample
from gamlens.engine import Job, ResultRow, RunFolder, pieces, run_local
from gamlens.engine.part_files import part_name
from gamlens.errors import GamlensError, attempt, readable, warn
from gamlens.evaluation import results
from gamlens.evaluation.pair_tests.case_images import ReadyCase, load_case
from gamlens.evaluation.pair_tests.pair_cases import PairCase, cases_sha256, manifest_text
from gamlens.evaluation.pair_tests.pair_explainers import PairExplainers
from gamlens.evaluation.pair_tests.pair_measures import CaseNumbers, measure_patch, measure_photos, measure_scene
from gamlens.evaluation.pair_tests.pair_plan import PATCHES, PHOTO_PAIRS, SCENES, PairPlan
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.metrics import THRESHOLDS

ROWS_SUFFIX = ".jsonl"
CASES_FILE = "cases.json"
FORWARD = "forward"  # the name of the plain forward among the times


@dataclass
class PairTester:
    """The worker of a run: makes the images of cases, then measures them.

    A case whose photo cannot be read becomes an error row. So does one that fails while it is measured, but not before
    any case was measured (`measured`): then the cause is likely to affect all of them, and the error is raised.
    """

    lens: Lens
    plan: PairPlan
    samples: Mapping[str, Sample]
    measured: bool = False
    maker: PairExplainers = field(init=False)

    def __post_init__(self) -> None:
        self.maker = PairExplainers(self.lens, self.plan)

    def load(self, items: Sequence[PairCase]) -> list[ReadyCase | tuple[PairCase, GamlensError]]:
        found: list[ReadyCase | tuple[PairCase, GamlensError]] = []
        for case in items:
            ready = attempt(load_case, case, self.samples, self.maker.transform)
            found.append((case, ready) if isinstance(ready, GamlensError) else ready)
        return found

    def work(self, loaded: list[ReadyCase | tuple[PairCase, GamlensError]]) -> list[ResultRow]:
        rows = []
        for one in loaded:
            if isinstance(one, tuple):
                rows.append({**_head(one[0]), "error": str(one[1])})
                continue
            row = attempt(self.measure, one)
            if isinstance(row, GamlensError):
                if not self.measured:
                    raise row
                row = {**_head(one.case), "error": str(row)}
            self.measured = True
            rows.append(row)
        return rows

    def measure(self, ready: ReadyCase) -> ResultRow:
        """Explain a case by every explainer, and measure all that the plan asks of its kind."""
        case, maker = ready.case, self.maker
        explained = maker.explain(ready.images[0], ready.images[1], seeding_names(case))
        measures: dict[str, Callable[[], CaseNumbers]] = {
            PHOTO_PAIRS: partial(measure_photos, maker, ready, explained),
            SCENES: partial(measure_scene, maker, ready, explained),
            PATCHES: partial(measure_patch, ready, explained),
        }
        found = measures[case.kind]()
        seconds = {FORWARD: explained.forward, **explained.seconds}
        return {
            **_head(case), "error": "", "values": found.values, "chance": found.chance, "exact": found.exact,
            "seconds": seconds,
        }  # fmt: skip


def seeding_names(case: PairCase) -> tuple[str, str]:
    """The names of x and y that seed the random control: of photos their own, so that it does not see the partner."""
    return (case.images[0], case.images[1]) if case.kind == PHOTO_PAIRS else (f"{case.name} x", f"{case.name} y")


def run_pair_tests(
    lens: Lens,
    dataset: Dataset,
    cases: Sequence[PairCase],
    plan: PairPlan,
    place: str | Path,
    *,
    chunk: int = 4,
    fresh: bool = False,
    workers: int | None = None,
    status: Callable[[int, int], None] = lambda items, errors: None,
) -> dict[str, Any]:
    """Measure cases into a run folder. If the folder holds a part of this run, only the rest is measured.

    Args:
        lens: The model; its transform is set to show whole photos ("squash").
        dataset: The data set that the cases were drawn from.
        cases: The cases, from `pair_cases`.
        plan: The plan.
        place: The run folder.
        chunk: Cases per file of rows; a run that is stopped repeats at most this many.
        fresh: Whether to delete a run that the folder holds.
        workers: The number of threads that decode photos.
        status: Called with the number of cases and of errors so far.

    Returns:
        The summary of the run (done.json), and as `measured` how many cases this call measured.
    """
    if chunk < 1:
        raise GamlensError(f"chunk={chunk}: give at least 1.")
    if isinstance(lens.transform, Transform):
        lens.transform = lens.transform.using("squash")
    sources = PairExplainers(lens, plan).sources  # finds mistakes before the folder is touched
    about = _about(lens, dataset, cases, plan, chunk) | ({"explainers": sources} if sources else {})
    opened = RunFolder(place, about, suffix=ROWS_SUFFIX, fresh=fresh)
    with opened as folder:
        chunks = pieces(cases, chunk)
        if damaged := folder.find_damaged(names=[[case.name for case in part] for part in chunks]):
            named = ", ".join(f"{part_name(number, ROWS_SUFFIX)} ({why})" for number, why in sorted(damaged.items()))
            warn(f"{len(damaged)} parts of the run in {str(place)!r} are measured again: {named}.")
            folder.drop(damaged)
        folder.store.write(CASES_FILE, manifest_text(dataset, plan, cases).encode(errors="backslashreplace"))
        written = folder.written()
        already = sum(len(part) for number, part in enumerate(chunks) if number in written)
        errors, seen = sum(bool(row["error"]) for row in _rows_in(folder)), already
        status(seen, errors)
        if folder.summary() is None:
            samples = {sample.name: sample for sample in dataset}
            job = Job(partial(PairTester, lens, plan, samples, bool(written)), encode_rows, chunk, 1, _name)
            with closing(_local(job, cases, folder, workers)) as parts:
                for done in parts:
                    seen, errors = seen + done.items, errors + done.errors
                    status(seen, errors)
            folder.finish({"items": len(cases), "errors": errors})
        return {"items": len(cases), "errors": errors, "measured": len(cases) - already}


def read_rows(place: str | Path) -> tuple[dict[str, Any], list[ResultRow]]:
    """The description of a finished run of the tests of pairs, and its rows in the order of the cases."""
    folder = RunFolder.finished(place, suffix=ROWS_SUFFIX, make="gamlens evaluate pairs --out FOLDER")
    return dict(folder.about), _rows_in(folder)


def encode_rows(rows: Sequence[ResultRow]) -> bytes:
    """Rows as lines of JSON; a number that is not finite becomes null."""
    return "".join(json.dumps(_finite(row), ensure_ascii=False) + "\n" for row in rows).encode(
        errors="backslashreplace"
    )


def _rows_in(folder: RunFolder) -> list[ResultRow]:
    return [json.loads(line) for contents in folder.parts() for line in contents.decode().splitlines()]


def _local(job: Job, cases: Sequence[PairCase], folder: RunFolder, workers: int | None) -> Any:
    return run_local(job, cases, folder, workers=workers)


def _about(lens: Lens, dataset: Dataset, cases: Sequence[PairCase], plan: PairPlan, chunk: int) -> dict[str, Any]:
    """The contents of run.json; another run in the same folder is told apart by them."""
    known = results.describe(lens, dataset, plan.masking(), len(cases))
    own = {
        "protocol": plan.record(), "cases_sha256": cases_sha256(cases), "thresholds": list(THRESHOLDS), "chunk": chunk,
        "chunks": len(pieces(cases, chunk)),
    }  # fmt: skip
    return dict(json.loads(json.dumps({**known, **own})))


def _head(case: PairCase) -> ResultRow:
    return {"case": case.name, "kind": case.kind, "objects": case.objects, "held_out": case.held_out}


def _name(case: PairCase) -> str:
    return readable(case.name)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(own) for name, own in value.items()}
    if isinstance(value, list):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
