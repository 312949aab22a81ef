"""Explains files one after another, for `gamlens classify`. A file that fails is reported, and the others go on."""

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gamlens import render
from gamlens._version import __version__
from gamlens.engine import Job, RunFolder, run_local
from gamlens.engine.folder_lock import LOCK
from gamlens.engine.part_files import PARTS_FOLDER, RECORDS
from gamlens.engine.run_folder import RUN
from gamlens.errors import GamlensError, attempt, readable
from gamlens.explanation import Explanation
from gamlens.explanation.saving import is_whole
from gamlens.files import claimed, is_disk_full, remove_empty
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ModelInput
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.refine import Refinement
from gamlens.render import Bars, Grid, Page, Panel, Section, Text, thumbnail
from gamlens.report.image_files import (
    PAGE_FILE,
    guess_bars,
    limited_page,
    record_of_maps,
    result_folders,
    small_overlay,
)
from gamlens.retrieval.gallery import weights_sha256
from gamlens.streaming.failures import Witness
from gamlens.streaming.stream import StreamResult, explain_group
from gamlens.trace import Guess, Trace

FILES_SHOWN, FILE_SIDE = 200, 480
CLASSES_TITLE = "Why this class?"
NOTES = ".runs"  # the folder in the folder of results that says what is done
# What notes mean that do not have these entries, because they were written before there were such options.
NOT_NOTED: dict[str, Any] = {"refine": None, "views": [], "sign": None, "against": None}

FileToExplain: TypeAlias = tuple[str, str]  # an image file, and the folder that its explanation goes to


@dataclass(frozen=True)
class ClassifyOptions:
    """What is explained and how: the classes (None for the top one), and the options of `Lens.classify`."""

    target: list[str | int] | None = None
    method: str = "gam"
    n: int | str = 2
    fuse: Fusion = "mean"
    score: str = "logit"
    temperature: float = 1.0
    lattice: str = "read"
    refine: Refinement | None = None
    views: tuple[str | float, ...] = ()
    sign: str | None = None
    against: str | int | None = None


@dataclass(frozen=True)
class FileResult:
    """The result of one file, without its maps.

    Attributes:
        file: The image file.
        folder: The folder that its explanation was saved in.
        names: The names of the explained classes.
        scores: Their scores.
        top: The best guesses of the model.
        record: Everything above and more, as it is written to JSON.
        error: Why the file was not explained; "" if it was.
    """

    file: str
    folder: str = ""
    names: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    top: tuple[Guess, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass
class FileExplainer:
    """The worker of `classify_files`: decodes files, explains them, and saves each explanation in its folder.

    A file that fails gives a row with its error. `witness` knows whether any file was explained before.
    """

    lens: Lens
    options: ClassifyOptions
    witness: Witness = field(default_factory=Witness)

    def load(self, items: Sequence[FileToExplain]) -> tuple[Sequence[FileToExplain], list[ModelInput | GamlensError]]:
        """Decode and transform files. Returns the files, and for each its input, or the error if it cannot be read."""
        pictures = (Picture(Path(path).name, path=path) for path, _ in items)
        prepare = partial(self.lens.prepare, views=self.options.views)
        return items, [attempt(prepare, picture) for picture in pictures]

    def work(self, loaded: tuple[Sequence[FileToExplain], list[ModelInput | GamlensError]]) -> list[dict[str, Any]]:
        """One row per file. If all of them fail, and every file would, as `Witness` tells, their error is raised."""
        files = list(enumerate(loaded[0]))
        results = explain_group(files, loaded[1], self._explain, device=self.lens.device, witness=self.witness)
        return [_saved_row(result) for result in results]

    def _explain(self, ready: ModelInput) -> tuple[Trace, Explanation]:
        options = self.options
        target = [options.target] * len(ready.pictures) if options.target else None
        trace = self.lens.trace(
            ready, target, n=options.n, method=options.method, score=options.score, temperature=options.temperature,
            refine=options.refine, keep_graph=options.against is not None,
        )  # fmt: skip
        shown = trace if options.against is None else trace.contrast(target, options.against)
        maps = shown.explain(
            options.method, options.n, options.fuse, lattice=options.lattice, refine=options.refine, sign=options.sign
        )
        return trace, maps


def classify_files(
    lens: Lens, files: Sequence[str], options: ClassifyOptions, *, out: Path, lead: str = "", batch_size: int = 8,
    fresh: bool = False,
) -> Iterator[FileResult]:  # fmt: skip
    """Explain each file and save the result in a folder of its own below `out`; yields the results batch by batch.

    At the end the page of all results is written to `out`. After an interruption the same call continues where it
    stopped: notes about finished batches are kept in `out/.runs` until the page is there. A file that cannot be read,
    explained or saved gives a FileResult with an error, and the others go on. An error is raised if the disk is full,
    if a whole batch fails before any file was explained, as with wrong options, and if another command is writing into
    `out` or was interrupted there; the notes of the latter are deleted with `fresh`.

    Args:
        lens: The model.
        files: The image files.
        options: What is explained, and how.
        out: The folder of all results.
        lead: The text at the top of the page.
        batch_size: How many files are explained together. An interrupted call repeats at most this many.
        fresh: Whether to start over, if an interrupted call left notes.
    """
    items = [(file, str(folder)) for file, folder in result_folders(files, out).items()]
    about = _about(lens, [file for file, _ in items], options, batch_size)
    results: list[FileResult] = []
    with claimed(out), RunFolder(out / NOTES, about, suffix=".jsonl", fresh=fresh, unsaid=NOT_NOTED) as notes:
        done = False
        try:
            for result in _explained(lens, items, options, notes, batch_size):
                results.append(result)
                yield result
            if not all(result.error for result in results):
                render.write(classified_page(results, title=CLASSES_TITLE, lead=lead), out / PAGE_FILE)
            done = True
        finally:
            if done or not notes.written():
                _forget(out / NOTES)


def _explained(
    lens: Lens, items: Sequence[FileToExplain], options: ClassifyOptions, notes: RunFolder, batch: int
) -> Iterator[FileResult]:
    """Yield the results of all files in order: those that the notes have, and those that are made now."""
    _drop_broken(notes)
    known = deque(sorted(notes.written()))
    job = Job(partial(FileExplainer, lens, options, Witness(bool(known))), _encode, batch, batch)
    for made in run_local(job, items, notes):
        while known and known[0] < made.chunk:
            yield from _results(notes.part(known.popleft()))
        yield from _results(notes.part(made.chunk))
    for number in known:
        yield from _results(notes.part(number))


def _drop_broken(notes: RunFolder) -> None:
    """Delete notes that cannot be read, and those about results that are damaged or gone, to make them again."""

    def problem(number: int, contents: bytes) -> str:
        try:
            whole = all(result.error or is_whole(result.folder) for result in _results(contents))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            whole = False
        return "" if whole else "it cannot be read, or its results are damaged or gone"

    notes.drop(notes.find_damaged(problem))


def _forget(place: Path) -> None:
    """Delete the notes, by their names, and their folder if nothing else is in it.

    Versions before this one had a folder of notes per call, with a name of 16 hexadecimal digits.
    """
    older = [found for found in place.glob("*/") if re.fullmatch("[0-9a-f]{16}", found.name)]
    for folder in (*older, place):
        for file in (
            *folder.glob(f"{PARTS_FOLDER}/*.jsonl"),
            *folder.glob(f"{RECORDS}/*.json"),
            folder / RUN,
            folder / LOCK,
        ):
            file.unlink(missing_ok=True)
        remove_empty([folder, folder / PARTS_FOLDER, folder / RECORDS])


def classified_page(results: Sequence[FileResult], *, title: str, lead: str) -> Page:
    """A page with the overlays and the model's best guesses of every file, read back from its folder."""
    sections = (Section(result.file, _shown(result)) for result in results)
    return limited_page(title, lead, sections, limit=FILES_SHOWN, count=len(results), what="files")


def _shown(result: FileResult) -> tuple[Grid | Bars | Text, ...]:
    if result.error:
        return (Text(f"**Not explained.** {result.error}"),)
    saved = Explanation.load(result.folder)
    panels = [Panel(thumbnail(saved.image(), FILE_SIDE), "Photo")]
    for row, name in enumerate(saved.names):
        overlay = small_overlay(saved, row, side=FILE_SIDE)
        panels.append(Panel(overlay, name, f"score {saved.scores[row]:.3g}", f"{name}: saliency"))
    return Grid((tuple(panels),)), guess_bars(result.top)


def _about(lens: Lens, files: Sequence[str], options: ClassifyOptions, batch: int) -> dict[str, Any]:
    """What identifies a call, so that it can be resumed: the files as they are now, and how they are explained.

    An error names what differs, so the keys are written for people.
    """
    return {
        "model": lens.name, "weights": [lens.weights, weights_sha256(lens.model)],
        "blocks": list(lens.blocks) if lens.knows_blocks else [],
        **asdict(options), "views": list(options.views), "batch": batch, "version": __version__,
        "files": {
            "count": len(files), "first": readable(files[0]) if files else "",
            "names, sizes and times": hashlib.sha256(json.dumps(list(map(_state, files))).encode()).hexdigest(),
        },
    }  # fmt: skip


def _state(file: str) -> list[str | int]:
    """A file with its size and the time of its last change, zeros where it cannot be read."""
    with suppress(OSError):
        found = os.stat(file)
        return [file, found.st_size, found.st_mtime_ns]
    return [file, 0, 0]


def _saved_row(result: StreamResult) -> dict[str, Any]:
    """Save the explanation of one image, and return its row of results, which holds no maps.

    If it cannot be saved, that is the file's error. But a full disk is an error of the whole call: it can be continued.
    """
    (path, folder), explanation = result.image, result.explanation
    saved = attempt(explanation.save, folder) if explanation is not None else None
    if isinstance(saved, GamlensError) and is_disk_full(saved):
        raise GamlensError(
            f"{saved} Finished results are kept: make room, then give the same command again."
        ) from saved
    error = str(saved) if isinstance(saved, GamlensError) else result.error
    if explanation is None or error:
        shown = readable(path)
        return {"file": shown, "error": error if shown in error else f"{shown}: {error}"}
    found = zip(explanation.targets.tolist(), explanation.names, explanation.scores.tolist(), strict=True)
    return {
        "file": path,
        "folder": folder,
        "top": [vars(guess) for guess in result.top],
        "explained": [{"target": target, "name": name, "score": score} for target, name, score in found],
        **record_of_maps(explanation),
        "about": dict(explanation.about),
        "error": "",
    }


def _encode(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _results(part: bytes) -> Iterator[FileResult]:
    """The results in a part that `_encode` made."""
    for row in map(json.loads, part.splitlines()):
        record = {key: value for key, value in row.items() if key != "error" or value}
        names, scores = (tuple(one[key] for one in row.get("explained", ())) for key in ("name", "score"))
        top = tuple(Guess(**guess) for guess in row.get("top", ()))
        yield FileResult(row["file"], row.get("folder", ""), names, scores, top, record, row["error"])
