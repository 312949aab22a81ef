"""The work of `gamlens search`: find the images of a folder that are most like a query, and show why."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens import methods, render, retrieval, scores
from gamlens.errors import GamlensError, printable, readable
from gamlens.explanation import Explanation, PairExplanation
from gamlens.figures.panels import frame_of, is_empty, scaled_frame
from gamlens.files import StagedFiles
from gamlens.fuse import FUSIONS
from gamlens.index.hits import Hit, Hits
from gamlens.index.index import Index
from gamlens.index.queries import Query
from gamlens.index.short_text import short
from gamlens.inputs.images import Picture
from gamlens.lattice import check_reading
from gamlens.lens import Lens
from gamlens.refine import Refinement
from gamlens.render import Grid, Page, Panel, ScaleKey, Section, thumbnail
from gamlens.report.image_files import limited_page, result_folders, small_overlay
from gamlens.retrieval import Gallery

REGION_INK = (64, 224, 120)
COLUMNS_SHOWN = 4  # columns of an index that tables and pages show of a hit
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
    sign: str | None = None

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
        about: What a reader must know about the query and its matches.
    """

    query: str
    matches: tuple[dict[str, Any], ...]
    left_out: tuple[str, ...]
    picture: str
    grids: tuple[Grid, ...]
    about: str = ""

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
    """Find the matches of each query among remembered images, by a temporary index of these; yields them explained."""
    index = Index.of_gallery(images, lens, score=options.score)
    found = []
    for number in range(len(queries)):
        hits = index.search(remembered_query(queries[number]), top=options.top, with_self=options.with_self)
        if not hits:
            raise GamlensError(no_match(hits.query.title, None, hits.left_out))
        found.append(hits)
    yield from explained_queries(index, found, options, out=out, maps=maps)


def explained_queries(
    index: Index,
    found: Sequence[Hits],
    options: SearchOptions,
    *,
    out: Path,
    maps: bool = False,
    limit: int | None = None,
) -> Iterator[QueryMatches]:
    """Explain the hits of each query, and write a picture of them into a folder per query below `out`; yields them.

    Args:
        index: The index that was searched.
        found: The hits of every query, each at least one.
        options: How pairs are explained.
        out: The folder of results.
        maps: Whether the explanation of every pair is saved, too.
        limit: The number of hits of a query that are explained; None for all.
    """
    names = [
        hits.query.files[0] if len(hits.query.files) == 1 and hits.query.region is None else hits.query.title
        for hits in found
    ]
    folders = result_folders(names, out)
    for number, (name, hits) in enumerate(zip(names, found, strict=True)):
        shown = number < QUERIES_SHOWN
        yield explained_matches(index, name, hits, options, folder=folders[name], maps=maps, shown=shown, limit=limit)


def explained_matches(
    index: Index,
    name: str,
    hits: Hits,
    options: SearchOptions,
    *,
    folder: Path,
    maps: bool,
    shown: bool = True,
    limit: int | None = None,
) -> QueryMatches:
    """Explain hits, and write a picture of them. One whose file is gone, or has changed, is only named."""
    ranked = list(enumerate(hits, 1))
    faulty = {} if index.is_temporary else {rank: hit for rank, hit in ranked if hit.slot >= 0 and hit.fault}
    there = [(rank, hit) for rank, hit in ranked if rank not in faulty][:limit]
    if not there:
        raise GamlensError(
            f"The files of the {len(hits)} matches are gone or have changed since they were indexed, such as "
            f"{readable(hits[0].path)!r}: run `gamlens index update`, or bring them back."
        )
    pair = index.explain(
        replace(hits, found=tuple(hit for _, hit in there)), method=options.method, n=options.n, fuse=options.fuse,
        lattice=options.lattice, refine=options.refine, sign=options.sign,
    )  # fmt: skip
    if maps:
        pair.save(str(folder))
    grids = match_grids(pair, options.score, hits.query, there)
    place = folder / MATCHES_PICTURE
    with StagedFiles() as staged:
        picture = render.stacked([render.draw(grid) for grid in grids])
        staged.write(place, partial(render.write_png, picture))
    boxes = dict(zip((rank for rank, _ in there), _boxes(pair), strict=True))
    matches = tuple(
        {"file": hit.file, "score": hit.score, **boxes.get(rank, {}), **_columns(hit)} for rank, hit in ranked
    )
    about = " ".join(filter(None, (_about_query(hits.query), *map(_about_fault, faulty, faulty.values()))))
    return QueryMatches(name, matches, hits.left_out, str(place), grids if shown else (), about)


def _about_fault(rank: int, hit: Hit) -> str:
    """Why a hit has no maps: its file is gone, or has other contents than those that were found."""
    what = "is gone" if hit.fault == "gone" else "has changed since it was indexed"
    return f"{rank}. `{short(os.path.basename(hit.file))}`: the file {what}; run `gamlens index update`."


def _about_query(query: Query) -> str:
    """What the maps of a query show that consists of several images or a caption; "" for a single image."""
    if len(query.sides) + len(query.minus) + (query.caption is not None) < 2:
        return ""
    return "Matches are ranked by the sum of the whole query. The maps are those of its first image and each match."


def _column_words(hit: Hit) -> str:
    """The first columns of a hit, such as "price 18, colour red"."""
    return ", ".join(f"{short(column)} {short(value)}" for column, value in list(hit.metadata.items())[:COLUMNS_SHOWN])


def hits_record(hits: Hits) -> dict[str, Any]:
    """Hits as JSON."""
    known = {"searched": hits.searched, "score": hits.score, "seconds": hits.seconds, "left_out": list(hits.left_out)}
    return {**known, "matches": [hit.record for hit in hits]}


def remembered_query(image: Gallery) -> Query:
    """A remembered image as a query."""
    picture = image.pictures[0]
    return Query(image.embeddings[0].detach().float().cpu().numpy(), str(picture.path or picture.name), (image,))


def no_match(name: str, where: str | None, left_out: Sequence[str]) -> str:
    """What is said if a query has no match."""
    if where is not None:
        return f"No image fits {where!r}: change the filter; `gamlens index info` lists the columns."
    why = ", except itself: add some, or give --with-self" if left_out else ": add some"
    return f"There is no image to compare {name} with{why}."


def search_page(answers: Sequence[QueryMatches], *, title: str, lead: str) -> Page:
    """One section per query: its matches side by side, and both maps of each pair."""
    sections = []
    for answer in answers:
        names = ", ".join(f"`{printable(name)}`" for name in answer.left_out)
        left_out = f"Left out, as it is the query itself: {names}." if names else ""
        about = " ".join(filter(None, (answer.about, left_out)))
        sections.append(Section(printable(answer.query), answer.grids, about))
    return limited_page(title, printable(lead), sections, limit=QUERIES_SHOWN, count=len(answers), what="queries")


def _boxes(pair: PairExplanation) -> list[dict[str, Any]]:
    rows = zip(pair.x.boxes().tolist(), pair.y.boxes().tolist(), strict=True)
    return [{"boxes": {"x": x, "y": y}} for x, y in rows]


def _columns(hit: Hit) -> dict[str, Any]:
    return {"metadata": dict(hit.metadata)} if hit.metadata else {}


def match_grids(
    pair: PairExplanation, score: str, asked: Query, hits: Sequence[tuple[int, Hit]] = ()
) -> tuple[Grid, ...]:
    """Make grids of MATCHES_ACROSS matches: a row of photos, and below each match the maps on it and on the query.

    A region that was searched for is outlined on the query. `hits` are the matches with their ranks, if an index found
    them.
    """
    whole, made = pair.x.image(), []
    words = [_column_words(hit) for _, hit in hits] or [""] * len(pair)
    values = [hit.score for _, hit in hits] or pair.scores.tolist()
    ranks = [rank for rank, _ in hits] or range(1, len(pair) + 1)
    query = thumbnail(whole, MATCH_SIDE)
    shown = query
    if asked.region is not None and not asked.by_crop:
        scale = (query.width / whole.width, query.height / whole.height) * 2
        x0, y0, x1, y1 = (value * factor for value, factor in zip(asked.region, scale, strict=True))
        shown = render.boxed(query, [(x0, y0, x1, y1)], colour=REGION_INK, thick=1.5)
    for start in range(0, len(pair), MATCHES_ACROSS):
        line = range(start, min(start + MATCHES_ACROSS, len(pair)))
        photos = {at: thumbnail(pair.y.image(at), MATCH_SIDE) for at in line}
        own = Panel(shown, "", short(pair.x.picture().name))
        rows = (
            (own, *(Panel(photo, words[at], short(pair.y.picture(at).name)) for at, photo in photos.items())),
            (None, *(_heat(pair.y, at, photo, ranks[at], "why, on the match") for at, photo in photos.items())),
            (None, *(_heat(pair.x, at, query, ranks[at], "why, on the query") for at in line)),
        )
        heads = ("Query", *(f"{ranks[at]}. {score} {values[at]:.3f}" for at in line))
        heads += ("",) * (MATCHES_ACROSS - len(line)) if start else ()
        made.append(Grid(rows, heads, keys=MATCH_KEYS if line.stop == len(pair) and not pair.x.signed else ()))
    return tuple(made)


def _heat(result: Explanation, at: int, photo: Image.Image, rank: int, words: str) -> Panel:
    """Row `at` over a small copy of its photo; the caption of an empty map says so."""
    if result.signed:
        return Panel(small_overlay(result, at, side=MATCH_SIDE), "", words, f"match {rank}: {words}")
    frame = scaled_frame(frame_of(result, at), photo)
    picture = render.overlay(photo, frame.map(result.maps[at].cpu()).numpy())
    empty = " (no map: the same to the model)" if is_empty(result, at) else ""
    return Panel(picture, "", words + empty, f"match {rank}: {words}")
