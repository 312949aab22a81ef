"""Explaining files one after another: a bad one is reported and stops nothing."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gamlens import render
from gamlens._version import __version__
from gamlens.engine import Job, RunFolder, run_local
from gamlens.errors import GamlensError
from gamlens.evaluation.results import digest
from gamlens.explanation import Explanation, file_stem
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ModelInput, Views, prepare
from gamlens.inputs.images import EXTENSIONS, Picture
from gamlens.lens import Lens
from gamlens.streaming.stream import StreamResult, explain_group
from gamlens.trace import Guess, Trace

PAGE_LIMIT = 200
THUMB = 480


@dataclass(frozen=True)
class Recipe:
    """What is explained and how: the classes (None for the top one), the method, n, fusion and score."""

    target: list[str | int] | None = None
    method: str = "gam"
    n: int = 2
    fuse: Fusion = "mean"
    score: str = "logit"


@dataclass(frozen=True)
class FileResult:
    """What came of one file: what was explained and the model's best guesses, or an error. It holds no maps."""

    file: str
    folder: str = ""
    names: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    top: tuple[Guess, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def find_images(places: Sequence[str], *, skip: Path | None = None, twice: bool = False) -> list[str]:
    """Files, folders (searched through, by extension) and globs, as a list of files in order; none twice, or `twice`.

    What lies below `skip`, the folder of results, is left out of folders and globs.
    """
    found: list[str] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            inside = sorted(str(file) for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS)
            inside = [file for file in inside if not _below(file, skip)]
            if not inside:
                raise GamlensError(f"The folder {place!r} holds no image ({', '.join(EXTENSIONS)}).")
            found += inside
        elif path.exists() or not glob.has_magic(place):
            found.append(place)
        else:
            matches = sorted(match for match in glob.glob(place, recursive=True) if Path(match).is_file())
            matches = [match for match in matches if not _below(match, skip)]
            if not matches:
                raise GamlensError(f"Nothing matches {place!r}.")
            found += matches
    return found if twice else list(dict.fromkeys(found))


@dataclass(frozen=True)
class File:
    """An image file and the folder its explanation goes to."""

    path: str
    folder: str


@dataclass
class Explainer:
    """A worker: decodes files, explains them and saves each in its folder; a bad one is a row with its error."""

    lens: Lens
    recipe: Recipe
    explained: int = 0

    def load(self, items: Sequence[File]) -> tuple[Sequence[File], list[ModelInput | GamlensError]]:
        loaded: list[ModelInput | GamlensError] = []
        for item in items:
            try:
                loaded.append(prepare(Picture(Path(item.path).name, path=item.path), self.lens.transform, Views()))
            except GamlensError as error:
                loaded.append(error)
        return items, loaded

    def work(self, loaded: tuple[Sequence[File], list[ModelInput | GamlensError]]) -> list[dict[str, Any]]:
        files = list(enumerate(loaded[0]))
        rows = []
        strict = self.explained == 0
        for seen in explain_group(files, loaded[1], self._explain, device=self.lens.device, strict=strict):
            row = _row(seen)
            self.explained += not row["error"]
            rows.append(row)
        return rows

    def _explain(self, ready: ModelInput) -> tuple[Trace, Explanation]:
        recipe = self.recipe
        targets = [recipe.target] * len(ready.pictures) if recipe.target else None
        trace = self.lens.trace(ready, targets, n=recipe.n, method=recipe.method, score=recipe.score, keep_graph=False)
        return trace, trace.explain(recipe.method, recipe.n, recipe.fuse)


def classify_files(
    lens: Lens, files: Sequence[str], recipe: Recipe, *, out: Path, batch_size: int = 8, chunk: int = 32
) -> Iterator[FileResult]:
    """Explain each file and save it in a folder of its own below `out`; results come as chunks are finished.

    Broken off, the same call goes on where it was: what it finished lies in `out/.runs` until the end. A file that
    cannot be read, explained or saved is an error of its own; a recipe that fails on every file is an error.
    """
    items = [File(file, str(folder)) for file, folder in folders(files, out).items()]
    about = _about(lens, items, recipe, batch_size, chunk)
    place = out / ".runs" / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    with RunFolder(place, about, suffix=".jsonl") as folder:
        job = Job(partial(Explainer, lens, recipe, explained=len(folder.written())), _encode, chunk, batch_size)
        yield from (_result(row) for part in folder.parts() for row in _decode(part))
        finished = False
        try:
            for done in run_local(job, items, folder):
                yield from (_result(row) for row in _decode(folder.part(done.chunk)))
            finished = True
        finally:
            if finished or not folder.written():
                shutil.rmtree(place, ignore_errors=True)
                with suppress(OSError):
                    place.parent.rmdir()


def _about(lens: Lens, items: Sequence[File], recipe: Recipe, batch: int, chunk: int) -> dict[str, Any]:
    """What the call is: the same files as they are now, explained in the same way."""
    state = [[item.path, *_state(item.path)] for item in items]
    return {
        "model": lens.name, "weights": [lens.weights, digest(lens.model)],
        "blocks": list(lens.blocks) if lens.sight.binding else [],
        "recipe": asdict(recipe), "batch": batch, "chunk": chunk, "version": __version__,
        "files": hashlib.sha256(json.dumps(state).encode()).hexdigest(),
    }  # fmt: skip


def _state(file: str) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _encode(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _decode(part: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in part.splitlines()]


def _row(seen: StreamResult) -> dict[str, Any]:
    """Save one image's explanation; what is kept of it here is light."""
    item: File = seen.image
    error = seen.error
    if seen.explanation is not None:
        part = seen.explanation
        try:
            part.save(item.folder)
        except GamlensError as failure:
            error = str(failure)
        else:
            found = zip(part.targets.tolist(), part.names, part.scores.tolist(), strict=True)
            return {
                "file": item.path,
                "folder": item.folder,
                "top": [vars(guess) for guess in seen.top],
                "explained": [{"target": target, "name": name, "score": score} for target, name, score in found],
                "boxes": part.boxes().tolist(),
                "about": dict(part.about),
                "error": "",
            }
    return {"file": item.path, "error": error if item.path in error else f"{item.path}: {error}"}


def _result(row: dict[str, Any]) -> FileResult:
    record = {key: value for key, value in row.items() if key != "error" or value}
    if row["error"]:
        return FileResult(row["file"], record=record, error=row["error"])
    explained = row["explained"]
    names, scores = tuple(one["name"] for one in explained), tuple(one["score"] for one in explained)
    return FileResult(row["file"], row["folder"], names, scores, tuple(Guess(**guess) for guess in row["top"]), record)


def page(results: Sequence[FileResult], *, title: str, lead: str) -> render.Page:
    """A page with every picture's overlays and the model's best guesses."""
    sections = []
    for result in results[:PAGE_LIMIT]:
        if result.error:
            sections.append(render.Section(result.file, (render.Text(f"**Not explained.** {result.error}"),)))
            continue
        guesses = tuple((guess.name, guess.probability, f"{100 * guess.probability:.1f} %") for guess in result.top)
        sections.append(render.Section(result.file, (render.Grid((_panels(result),)), render.Bars(guesses))))
    more = f" The first {PAGE_LIMIT} of {len(results)} files are shown." if len(results) > PAGE_LIMIT else ""
    return render.Page(title, lead + more, tuple(sections))


def _panels(result: FileResult) -> tuple[render.Panel, ...]:
    """The photo and its overlays, read back small."""
    saved = Explanation.load(result.folder)
    shown = [
        render.Panel(small(saved.overlay(row)), name, f"score {saved.scores[row]:.3g}", f"{name}: saliency")
        for row, name in enumerate(saved.names)
    ]
    return (render.Panel(small(saved.image()), "Photo"), *shown)


def _below(file: str, folder: Path | None) -> bool:
    return folder is not None and folder.resolve() in Path(file).resolve().parents


def folders(files: Sequence[str], out: Path) -> dict[str, Path]:
    """One folder a file, named after it, numbered where names meet."""
    folders: dict[str, Path] = {}
    taken: set[str] = set()
    for file in files:
        stem = name = file_stem(Path(file).stem)
        number = 2
        while name.lower() in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name.lower())
        folders[file] = out / name
    return folders


def small(image: Any, side: int = THUMB) -> Any:
    """A copy that is at most `side` wide and high."""
    copy = image.copy()
    copy.thumbnail((side, side))
    return copy
