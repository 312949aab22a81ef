"""The images of a folder most like a query, and why: files in, pictures and a page out."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import methods, render, scores
from gamlens import retrieval as gallery
from gamlens.capture.forward import last_layers
from gamlens.errors import GamlensError, near
from gamlens.explanation import Explanation, PairExplanation
from gamlens.files import StagedFiles
from gamlens.fuse import FUSIONS
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.render import Grid, Page, Panel, Scale, Section
from gamlens.report.folder import folders, small
from gamlens.retrieval import Gallery
from gamlens.retrieval.select import most_similar

PAGE_LIMIT, THUMB, ACROSS = 50, 360, 5
BATCH = 32
PICTURE = "matches.png"
KEYS = (Scale("What makes the two similar", "least", "most", over=True),)


@dataclass(frozen=True)
class Recipe:
    """How pairs are compared and explained, how many matches a query has, and whether it may be its own."""

    score: str = "cosine"
    method: str = "gam"
    n: int = 1
    fuse: str = "mean"
    top: int = 5
    with_self: bool = False

    def __post_init__(self) -> None:
        scores.find_pair_score(self.score)
        methods.find(self.method)
        if self.fuse not in FUSIONS:
            raise GamlensError(f"There is no fusion {self.fuse!r}: {near(self.fuse, FUSIONS)}")

    def check(self, lens: Lens) -> None:
        """An error where the model has fewer blocks; found out before the long part."""
        if methods.find(self.method).kind == "block":
            last_layers(lens.blocks, self.n)


@dataclass(frozen=True)
class Shelf:
    """Images to search in, and those that cannot be: name and reason."""

    images: Gallery
    bad: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Answer:
    """The matches of one query, best first: file, score and boxes on both images; its picture, and its grids where
    the page has room for them."""

    query: str
    matches: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    picture: str
    grids: tuple[Grid, ...]

    @property
    def record(self) -> dict[str, Any]:
        named = {"query": self.query, "picture": self.picture, "left_out": list(self.left_out)}
        return {**named, "matches": list(self.matches)}


def remember(lens: Lens, files: Sequence[str], status: Callable[[int, int], None] = lambda done, bad: None) -> Shelf:
    """Look at every file once; one that cannot be read is left out. No readable file at all is an error."""
    bad: list[tuple[str, str]] = []
    done = 0

    def told(picture: Picture, error: GamlensError | None) -> None:
        nonlocal done
        done += 1
        if error is not None:
            bad.append((str(picture.path), str(error)))
        if done == len(bad) == len(files):
            most = f"None of {len(files)} files can be read: " if len(files) > 1 else ""
            raise GamlensError(most + bad[0][1])
        status(done, len(bad))

    status(0, 0)
    return Shelf(gallery.remember_readable(lens, list(files), told, batch_size=BATCH), tuple(bad))


def recall(lens: Lens, path: str) -> Shelf:
    """A saved gallery that this lens made, without the images whose files are gone."""
    images = Gallery.load(path)
    try:
        images.check(lens)
    except GamlensError as error:
        raise GamlensError(f"{path}: {error}") from error
    gone = [number for number, picture in enumerate(images.pictures) if _size(picture) == -1]
    if len(gone) == len(images):
        first = images.pictures[0].path
        raise GamlensError(f"The images of {path} are not there, such as {first}: search in their folder again.")
    names = tuple((str(images.pictures[number].path), "There is no such file any more.") for number in gone)
    return Shelf(images[[n for n in range(len(images)) if n not in set(gone)]] if gone else images, names)


def search(
    lens: Lens, queries: Gallery, images: Gallery, recipe: Recipe, *, out: Path, maps: bool = False
) -> Iterator[Answer]:
    """The matches of each query and one picture of them in a folder below `out`; with `maps` every pair as well."""
    recipe.check(lens)
    places = folders([str(picture.path) for picture in queries.pictures], out)
    same = _Same(images.pictures)
    for number, picture in enumerate(queries.pictures):
        query = queries[number]
        own = [] if recipe.with_self else same.files(str(picture.path))
        chosen = _choose(query, images, recipe, own)
        pair = lens.compare_many(
            query, images, pairs=chosen, score=recipe.score, method=recipe.method, n=recipe.n, fuse=recipe.fuse
        )[list(range(len(chosen)))]
        place = places[str(picture.path)]
        if maps:
            pair.save(str(place))
        grids = _grids(pair, recipe.score)
        file = place / PICTURE
        with StagedFiles() as staged:
            staged.write(file, partial(_picture(grids).save, format="PNG"))
        left_out = tuple(str(images.pictures[at].path) for at in own)
        shown = grids if number < PAGE_LIMIT else ()
        yield Answer(str(picture.path), _matches(pair), left_out, str(file), shown)


def page(answers: Sequence[Answer], *, title: str, lead: str) -> Page:
    """A section a query: its matches side by side, and both maps of each pair."""
    more = f" The first {PAGE_LIMIT} of {len(answers)} queries are shown." if len(answers) > PAGE_LIMIT else ""
    sections = [_section(answer) for answer in answers if answer.grids]
    return Page(title, lead + more, tuple(sections))


def _section(answer: Answer) -> Section:
    names = ", ".join(f"`{name}`" for name in answer.left_out)
    return Section(answer.query, answer.grids, f"Left out, as it is the query itself: {names}." if names else "")


class _Same:
    """Which images are the very file of a query: the same bytes, wherever they lie."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures
        self.by_size: dict[int, list[int]] = {}
        for number, picture in enumerate(pictures):
            self.by_size.setdefault(_size(picture), []).append(number)

    def files(self, query: str) -> list[int]:
        alike = self.by_size.get(os.path.getsize(query), ())
        return [at for at in alike if filecmp.cmp(query, str(self.pictures[at].path), shallow=False)]


def _size(picture: Picture) -> int:
    """Bytes of its file; -1 where that is gone, -2 where it never was one."""
    if picture.path is None:
        return -2
    try:
        return os.path.getsize(picture.path)
    except OSError:
        return -1


def _choose(query: Gallery, images: Gallery, recipe: Recipe, own: Sequence[int]) -> list[tuple[int, int]]:
    """The best images for one query but for those that are it."""
    ends = (query.embeddings.cpu(), images.embeddings.cpu())
    ranked = most_similar(recipe.score, *ends, recipe.top + len(own))[:, 1].tolist()
    kept = [number for number in ranked if number not in own][: recipe.top]
    if not kept:
        raise GamlensError(
            f"{query.pictures[0].path} is alone there: no other image to compare it with. --with-self keeps it."
        )
    return [(0, number) for number in kept]


def _matches(pair: PairExplanation) -> tuple[dict[str, Any], ...]:
    rows = zip(pair.scores.tolist(), pair.x.boxes().tolist(), pair.y.boxes().tolist(), strict=True)
    return tuple(
        {"file": pair.y.picture(at).path or pair.y.picture(at).name, "score": score, "boxes": {"x": x, "y": y}}
        for at, (score, x, y) in enumerate(rows)
    )


def _grids(pair: PairExplanation, score: str) -> tuple[Grid, ...]:
    """Photos in one row and both maps of each pair under them, `ACROSS` matches a grid."""
    query, made = small(pair.x.image(), THUMB), []
    for start in range(0, len(pair), ACROSS):
        line = range(start, min(start + ACROSS, len(pair)))
        photos = {at: small(pair.y.image(at), THUMB) for at in line}
        own = Panel(query, "", pair.x.picture().name)
        rows = (
            (own, *(Panel(photo, "", pair.y.picture(at).name) for at, photo in photos.items())),
            (None, *(_heat(pair.y, at, photo, "why, on the match") for at, photo in photos.items())),
            (None, *(_heat(pair.x, at, query, "why, on the query") for at in line)),
        )
        heads = ("Query", *(f"{at + 1}. {score} {float(pair.scores[at]):.3f}" for at in line))
        heads += ("",) * (ACROSS - len(line)) if start else ()
        made.append(Grid(rows, heads, keys=KEYS if line.stop == len(pair) else ()))
    return tuple(made)


def _heat(result: Explanation, at: int, photo: Image.Image, words: str) -> Panel:
    """Row `at` over its photo made small; an empty map says so."""
    frame = result.frames[int(result.index[at])]
    wide, high = photo.width / frame.original[1], photo.height / frame.original[0]
    x0, y0, x1, y1 = frame.window
    less = replace(frame, original=(photo.height, photo.width), window=(x0 * wide, y0 * high, x1 * wide, y1 * high))
    picture = render.overlay(photo, less.map(result.maps[at].cpu()).numpy())
    empty = "" if result.maps[at].any() else " (no map: the same to the model)"
    return Panel(picture, "", words + empty, f"match {at + 1}: {words}")


def _picture(grids: Sequence[Grid]) -> Image.Image:
    """The grids of one query under one another."""
    drawn = [render.draw(grid) for grid in grids]
    sheet = Image.new("RGB", (drawn[0].width, sum(part.height for part in drawn)), "white")
    top = 0
    for part in drawn:
        sheet.paste(part, (0, top))
        top += part.height
    return sheet
