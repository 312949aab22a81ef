"""The work of `gamlens search`: find the images of a folder that are most like a query, and show why."""

import filecmp
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import methods, render, retrieval, scores
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation, PairExplanation
from gamlens.figures.panels import frame_of, is_empty, scaled_frame
from gamlens.files import StagedFiles
from gamlens.fuse import FUSIONS
from gamlens.inputs.images import Picture
from gamlens.lattice import check_reading
from gamlens.lens import Lens
from gamlens.refine import Refinement
from gamlens.render import Grid, Page, Panel, ScaleKey, Section, thumbnail
from gamlens.report.image_files import limited_page, result_folders
from gamlens.retrieval import Gallery
from gamlens.retrieval.select import most_similar

QUERIES_SHOWN, MATCH_SIDE, MATCHES_ACROSS = 50, 360, 5
SEARCH_BATCH = 32
MATCHES_PICTURE = "matches.png"
MATCH_KEYS = (ScaleKey("What makes the two similar", "least", "most", over=True),)


@dataclass(frozen=True)
class SearchOptions:
    """How pairs are compared and explained, how many matches a query has, and whether its own file may be one."""

    score: str = "cosine"
    method: str = "gam"
    n: int = 1
    fuse: str = "mean"
    top: int = 5
    with_self: bool = False
    lattice: str = "read"
    refine: Refinement | None = None

    def __post_init__(self) -> None:
        scores.find_pair_score(self.score)
        methods.find(self.method)
        FUSIONS[self.fuse]  # an unknown name is an error
        check_reading(self.lattice)

    def check(self, lens: Lens, picture: Picture) -> None:
        """Raise an error if the model has too few blocks, by running it on one image before all files are read."""
        n = self.n if methods.find(self.method).kind == "block" else 1
        if n != 1 or self.refine is not None:
            lens.trace_pair(picture, picture, n=n, method=self.method, refine=self.refine)


@dataclass(frozen=True)
class SearchedImages:
    """Images to search in, and those that cannot be searched: (file, reason)."""

    images: Gallery
    bad: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class QueryMatches:
    """The matches of one query.

    Attributes:
        query: The file of the query.
        matches: The file, score and boxes on both images of each match, best first.
        left_out: Files that are left out because they have the same contents as the query.
        picture: The file of the picture of all matches.
        grids: The pictures for the page; empty after the first QUERIES_SHOWN queries, which the page shows.
    """

    query: str
    matches: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    picture: str
    grids: tuple[Grid, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The matches as JSON."""
        named = {"query": self.query, "picture": self.picture, "left_out": list(self.left_out)}
        return {**named, "matches": list(self.matches)}


def remember(
    lens: Lens,
    files: Sequence[str],
    status: Callable[[int, int], None] = lambda done, bad: None,
    *,
    refine: Refinement | None = None,
) -> SearchedImages:
    """Remember every file as a gallery, without those that cannot be read; an error if none of them can.

    Args:
        lens: The model.
        files: The image files.
        status: Called with the number of files that are done, and of those that cannot be read.
        refine: By which earlier blocks maps will be refined. They are kept, too, which takes several times the memory;
            without them, an image is run again when its maps are refined.
    """
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
    images = retrieval.remember_readable(lens, list(files), told, refine=refine, batch_size=SEARCH_BATCH)
    return SearchedImages(images, tuple(bad))


def recall(lens: Lens, path: str) -> SearchedImages:
    """Load a gallery that this lens saved, without the images whose files are gone."""
    images = Gallery.load(path)
    try:
        images.check(lens)
    except GamlensError as error:
        raise GamlensError(f"{path}: {error}") from error
    pictures = images.pictures
    gone = [n for n, picture in enumerate(pictures) if picture.path is not None and not os.path.exists(picture.path)]
    if len(gone) == len(images):
        raise GamlensError(
            f"The images of {path} are not there, such as {pictures[0].path}: search in their folder again."
        )
    bad = tuple((str(pictures[n].path), "There is no such file any more.") for n in gone)
    return SearchedImages(images[sorted({*range(len(images))} - {*gone})] if gone else images, bad)


def search(
    lens: Lens, queries: Gallery, images: Gallery, options: SearchOptions, *, out: Path, maps: bool = False
) -> Iterator[QueryMatches]:
    """Find the matches of each query, and write a picture of them into a folder per query below `out`; yields them.

    With `maps` the explanation of every pair is saved there as well. Files with the same contents as the query are left
    out, unless `options.with_self`; only files of the same size are compared byte by byte.
    """
    files = [str(picture.path) for picture in queries.pictures]
    folders = result_folders(files, out)
    sizes: dict[int, list[int]] = {}
    for number, image in enumerate(images.pictures):
        if image.path is not None and os.path.exists(image.path):
            sizes.setdefault(os.path.getsize(image.path), []).append(number)
    for number, file in enumerate(files):
        query = queries[number]
        alike = [] if options.with_self else sizes.get(os.path.getsize(file), [])
        own = [at for at in alike if filecmp.cmp(file, str(images.pictures[at].path), shallow=False)]
        pair = lens.compare_many(
            query, images, pairs=_choose(query, images, options, own), score=options.score, method=options.method,
            n=options.n, fuse=options.fuse, lattice=options.lattice, refine=options.refine,
        )  # fmt: skip
        pair = pair[list(range(len(pair)))]  # drops the images of the gallery that are in no pair
        if maps:
            pair.save(str(folders[file]))
        grids = _grids(pair, options.score)
        place = folders[file] / MATCHES_PICTURE
        with StagedFiles() as staged:
            picture = render.stacked([render.draw(grid) for grid in grids])
            staged.write(place, partial(render.write_png, picture))
        left_out = tuple(str(images.pictures[at].path) for at in own)
        yield QueryMatches(file, _matches(pair), left_out, str(place), grids if number < QUERIES_SHOWN else ())


def search_page(answers: Sequence[QueryMatches], *, title: str, lead: str) -> Page:
    """One section per query: its matches side by side, and both maps of each pair."""
    sections = []
    for answer in answers:
        names = ", ".join(f"`{name}`" for name in answer.left_out)
        left_out = f"Left out, as it is the query itself: {names}." if names else ""
        sections.append(Section(answer.query, answer.grids, left_out))
    return limited_page(title, lead, sections, limit=QUERIES_SHOWN, count=len(answers), what="queries")


def _choose(query: Gallery, images: Gallery, options: SearchOptions, own: Sequence[int]) -> list[tuple[int, int]]:
    """The best images for one query, without those that are the query itself."""
    count = options.top + len(own)
    ranked = most_similar(options.score, query.embeddings.cpu(), images.embeddings.cpu(), count)[:, 1].tolist()
    kept = [number for number in ranked if number not in own][: options.top]
    if not kept:
        raise GamlensError(
            f"There is no image to compare {query.pictures[0].path} with, except itself: add some, or give --with-self."
        )
    return [(0, number) for number in kept]


def _matches(pair: PairExplanation) -> tuple[dict[str, Any], ...]:
    rows = zip(pair.scores.tolist(), pair.x.boxes().tolist(), pair.y.boxes().tolist(), strict=True)
    return tuple(
        {"file": pair.y.picture(at).path or pair.y.picture(at).name, "score": score, "boxes": {"x": x, "y": y}}
        for at, (score, x, y) in enumerate(rows)
    )


def _grids(pair: PairExplanation, score: str) -> tuple[Grid, ...]:
    """Make grids of MATCHES_ACROSS matches: a row of photos, and below each match the maps on it and on the query."""
    query, made = thumbnail(pair.x.image(), MATCH_SIDE), []
    for start in range(0, len(pair), MATCHES_ACROSS):
        line = range(start, min(start + MATCHES_ACROSS, len(pair)))
        photos = {at: thumbnail(pair.y.image(at), MATCH_SIDE) for at in line}
        own = Panel(query, "", pair.x.picture().name)
        rows = (
            (own, *(Panel(photo, "", pair.y.picture(at).name) for at, photo in photos.items())),
            (None, *(_heat(pair.y, at, photo, "why, on the match") for at, photo in photos.items())),
            (None, *(_heat(pair.x, at, query, "why, on the query") for at in line)),
        )
        heads = ("Query", *(f"{at + 1}. {score} {float(pair.scores[at]):.3f}" for at in line))
        heads += ("",) * (MATCHES_ACROSS - len(line)) if start else ()
        made.append(Grid(rows, heads, keys=MATCH_KEYS if line.stop == len(pair) else ()))
    return tuple(made)


def _heat(result: Explanation, at: int, photo: Image.Image, words: str) -> Panel:
    """Row `at` over a small copy of its photo; the caption of an empty map says so."""
    frame = scaled_frame(frame_of(result, at), photo)
    picture = render.overlay(photo, frame.map(result.maps[at].cpu()).numpy())
    empty = " (no map: the same to the model)" if is_empty(result, at) else ""
    return Panel(picture, "", words + empty, f"match {at + 1}: {words}")
