"""Explaining files one after another: a bad one is reported and stops nothing."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation, file_stem
from gamlens.fuse import Fusion
from gamlens.images import EXTENSIONS, Picture, upright
from gamlens.lens import Lens
from gamlens.trace import Guess

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
    """What came of one file: an explanation with the model's best guesses, or an error."""

    file: str
    folder: str = ""
    top: tuple[Guess, ...] = ()
    explanation: Explanation | None = None
    error: str = ""

    def record(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        if self.explanation is None:
            return {"file": self.file, "error": self.error}
        rows = zip(
            self.explanation.targets.tolist(), self.explanation.names, self.explanation.scores.tolist(), strict=True
        )
        return {
            "file": self.file,
            "folder": self.folder,
            "top": [vars(guess) for guess in self.top],
            "explained": [{"target": target, "name": name, "score": score} for target, name, score in rows],
            "boxes": self.explanation.boxes().tolist(),
            "about": dict(self.explanation.about),
        }


def find_images(places: Sequence[str]) -> list[str]:
    """Files, folders (searched through, by extension) and globs, as a list of files in order, none twice."""
    found: list[str] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            inside = sorted(str(file) for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS)
            if not inside:
                raise GamlensError(f"The folder {place!r} holds no image ({', '.join(EXTENSIONS)}).")
            found += inside
        elif path.exists() or not glob.has_magic(place):
            found.append(place)
        else:
            matches = sorted(match for match in glob.glob(place, recursive=True) if Path(match).is_file())
            if not matches:
                raise GamlensError(f"Nothing matches {place!r}.")
            found += matches
    return list(dict.fromkeys(found))


def classify_files(
    lens: Lens, files: Sequence[str], recipe: Recipe, *, out: Path, batch_size: int = 8, top: int = 5
) -> Iterator[FileResult]:
    """Explain each file, `batch_size` at a time, and save it in a folder of its own below `out`."""
    folders = _folders(files, out)
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
        if good:
            aims = [recipe.target] * len(good) if recipe.target else None
            trace = lens.trace(good, aims, n=recipe.n, score=recipe.score).release()
            explained, tops = trace.explain(recipe.method, recipe.n, recipe.fuse), trace.top(top)
            for number, picture in enumerate(good):
                part = explained[explained.index == number]
                results[str(picture.path)] = _saved(part, str(picture.path), folders, tuple(tops[number]))
        for file in chunk:
            yield results[file] if file in results else FileResult(file, error=bad[file])


def page(results: Sequence[FileResult], *, title: str, lead: str) -> render.Page:
    """A page with every picture's overlays and the model's best guesses."""
    sections = []
    for result in results[:PAGE_LIMIT]:
        if result.explanation is None:
            sections.append(
                render.Section(Path(result.file).name, (render.Text(f"**Not explained.** {result.error}"),))
            )
            continue
        shown = result.explanation
        panels = [render.Panel(_small(shown.image()), "Photo")] + [
            render.Panel(_small(shown.overlay(row)), name, f"score {shown.scores[row]:.3g}", f"{name}: saliency")
            for row, name in enumerate(shown.names)
        ]
        guesses = tuple((guess.name, guess.probability, f"{100 * guess.probability:.1f} %") for guess in result.top)
        sections.append(render.Section(Path(result.file).name, (render.Grid((tuple(panels),)), render.Bars(guesses))))
    return render.Page(title, lead, tuple(sections))


def _saved(part: Explanation, file: str, folders: dict[str, Path], top: tuple[Guess, ...]) -> FileResult:
    part.save(str(folders[file]))
    return FileResult(file, str(folders[file]), top, part)


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
