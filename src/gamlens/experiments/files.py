"""Explaining files one after another: a bad one is reported and stops nothing."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation, file_stem
from gamlens.fuse import Fusion
from gamlens.images import EXTENSIONS, Picture, upright
from gamlens.lens import Lens
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
    panels: tuple[render.Panel, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Look(NamedTuple):
    """A batch of files, looked at."""

    trace: Trace
    explanation: Explanation


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


def classify_files(
    lens: Lens, files: Sequence[str], recipe: Recipe, *, out: Path, batch_size: int = 8, top: int = 5
) -> Iterator[FileResult]:
    """Explain each file, `batch_size` at a time, and save it in a folder of its own below `out`.

    A file that cannot be read, explained or saved is an error of its own; a recipe that fails on the first good file
    is an error of the call.
    """
    folders = _folders(files, out)
    explained = 0
    for start in range(0, len(files), batch_size):
        good: list[Picture] = []
        bad: dict[str, str] = {}
        chunk = files[start : start + batch_size]
        for file in chunk:
            try:
                good.append(Picture(Path(file).name, path=file, pixels=upright(file)))
            except GamlensError as error:
                bad[file] = str(error)
        results: dict[str, FileResult] = {}
        for group, seen in _looks(lens, good, recipe, first=explained == 0):
            for number, picture in enumerate(group):
                file = str(picture.path)
                try:
                    if isinstance(seen, GamlensError):
                        raise seen
                    results[file] = _saved(seen, number, file, folders[file], top, page=start < PAGE_LIMIT)
                    explained += 1
                except GamlensError as error:
                    bad[file] = f"{file}: {error}"
        for file in chunk:
            failed = FileResult(file, record={"file": file, "error": bad.get(file)}, error=bad.get(file, ""))
            yield results.get(file, failed)


def _looks(
    lens: Lens, good: list[Picture], recipe: Recipe, *, first: bool
) -> Iterator[tuple[list[Picture], Look | GamlensError]]:
    """All together where the model takes them so, else one by one; what fails on the very first file is the call's."""
    if not good:
        return
    try:
        together = _look(lens, good, recipe)
    except GamlensError:
        for number, picture in enumerate(good):
            try:
                yield [picture], _look(lens, [picture], recipe)
            except GamlensError as error:
                if first and number == 0:
                    raise
                yield [picture], error
    else:
        yield good, together


def _look(lens: Lens, pictures: list[Picture], recipe: Recipe) -> Look:
    aims = [recipe.target] * len(pictures) if recipe.target else None
    trace = lens.trace(pictures, aims, n=recipe.n, score=recipe.score).release()
    return Look(trace, trace.explain(recipe.method, recipe.n, recipe.fuse))


def page(results: Sequence[FileResult], *, title: str, lead: str) -> render.Page:
    """A page with every picture's overlays and the model's best guesses."""
    sections = []
    for result in results[:PAGE_LIMIT]:
        if result.error:
            sections.append(render.Section(result.file, (render.Text(f"**Not explained.** {result.error}"),)))
            continue
        guesses = tuple((guess.name, guess.probability, f"{100 * guess.probability:.1f} %") for guess in result.top)
        sections.append(render.Section(result.file, (render.Grid((result.panels,)), render.Bars(guesses))))
    return render.Page(title, lead, tuple(sections))


def _saved(seen: Look, number: int, file: str, folder: Path, top: int, *, page: bool) -> FileResult:
    """Save one image's rows; what is kept of them is light."""
    part = seen.explanation[seen.explanation.index == number]
    part.save(str(folder))
    guesses, scores = tuple(seen.trace.top(top)[number]), tuple(part.scores.tolist())
    rows = zip(part.targets.tolist(), part.names, scores, strict=True)
    record = {
        "file": file,
        "folder": str(folder),
        "top": [vars(guess) for guess in guesses],
        "explained": [{"target": target, "name": name, "score": score} for target, name, score in rows],
        "boxes": part.boxes().tolist(),
        "about": dict(part.about),
    }
    return FileResult(file, str(folder), tuple(part.names), scores, guesses, _panels(part) if page else (), record)


def _panels(part: Explanation) -> tuple[render.Panel, ...]:
    shown = [
        render.Panel(_small(part.overlay(row)), name, f"score {part.scores[row]:.3g}", f"{name}: saliency")
        for row, name in enumerate(part.names)
    ]
    return (render.Panel(_small(part.image()), "Photo"), *shown)


def _below(file: str, folder: Path | None) -> bool:
    return folder is not None and folder.resolve() in Path(file).resolve().parents


def _folders(files: Sequence[str], out: Path) -> dict[str, Path]:
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


def _small(image: Any) -> Any:
    copy = image.copy()
    copy.thumbnail((THUMB, THUMB))
    return copy
