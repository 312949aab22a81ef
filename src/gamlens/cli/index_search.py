"""The part of the command `search` that searches an index: queries, filters, hits at once, and why on request."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamlens import METHODS, GamlensError, render
from gamlens.cli.common import exit_with_failures
from gamlens.cli.terminal import note, say, say_rows, tell
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.errors import attempt
from gamlens.files import claimed
from gamlens.index.catalogue import CATALOGUE
from gamlens.index.hits import Hit, Hits
from gamlens.index.index import Index
from gamlens.index.queries import Query, combined_query
from gamlens.index.short_text import short
from gamlens.report import search as work
from gamlens.report.image_files import PAGE_FILE, about_sharpness, about_sign

HITS_EXPLAINED = 50  # hits of a query that the page explains
ERRORS_NAMED = 3


@dataclass(frozen=True)
class IndexQueries:
    """What is searched for: files, each by itself, or the region of one; with others added or subtracted."""

    files: Sequence[str]
    plus: Sequence[str]
    minus: Sequence[str]
    text: str | None
    box: tuple[float, ...] | None
    point: tuple[float, ...] | None

    def made(self, index: Index, refine: Any) -> list[Query | GamlensError]:
        """The queries, by a forward of each image.

        Of several files, one that cannot be a query is an error in its place. If none can be one, the first error is
        raised.
        """
        region = self.box or self.point
        if not self.files and not self.plus and self.text is None:
            raise GamlensError("Name an image to search for, such as photo.jpg, or give --plus or --text.")
        if region is not None and len(self.files) != 1:
            raise GamlensError(f"--box and --point belong to one image; found {len(self.files)}: name one.")
        more = [index.query(file, refine=refine) for file in self.plus]
        more += [index.query(text=self.text)] if self.text is not None else []
        minus = [index.query(file, refine=refine) for file in self.minus]
        if not self.files:
            return [combined_query(more, minus, score=index.score)]
        box: Any = self.box
        point: Any = self.point

        def one(file: str) -> Query:
            first = index.query(file, box=box, point=point, refine=refine)
            return combined_query([first, *more], minus, score=index.score)

        found = [attempt(one, file) for file in self.files]
        if len(errors := [query for query in found if isinstance(query, GamlensError)]) == len(found):
            raise errors[0]
        return found


def is_index(places: Sequence[str]) -> bool:
    """Whether --in names an index."""
    found = [place for place in places if (Path(place) / CATALOGUE).exists()]
    if found and len(places) > 1:
        raise GamlensError(f"--in {found[0]} is an index: give it alone.")
    return bool(found)


def numbers_of(option: str, text: str | None, count: int) -> tuple[float, ...] | None:
    """The numbers of an option such as --box 10,20,200,240."""
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count:
        shape = "x0,y0,x1,y1" if count == 4 else "x,y"
        raise GamlensError(f"{option} {text!r}: give {shape} in pixels of the query.")
    return found


def search_in_index(
    index: Index,
    asked: IndexQueries,
    how: work.SearchOptions,
    *,
    where: str | None,
    explain: bool,
    maps: bool,
    out: Path,
) -> list[dict[str, Any]]:
    """Search an index and print the hits; with `explain`, write a page with both maps of each. Returns the hits.

    Of several queries, one that cannot be read or finds nothing is told, and the command fails at its end.
    """
    with waiting("searching"):
        made = asked.made(index, how.refine if explain else False)
    queries = [query for query in made if isinstance(query, Query)]
    unread = [query for query in made if isinstance(query, GamlensError)]
    if explain and any(not query.sides for query in queries):
        raise GamlensError(
            "A caption alone has no map beside a match: leave out --explain, or add an image with --plus."
        )
    with waiting("searching"):
        found = [index.search(query, top=how.top, where=where, with_self=how.with_self) for query in queries]
    empty = [GamlensError(work.no_match(hits.query.title, where, hits.left_out)) for hits in found if not hits]
    found = [hits for hits in found if hits]
    if not found:
        raise [*unread, *empty][0]
    for error in [*unread, *empty][:ERRORS_NAMED]:
        tell("error", str(error), "bold red")
    page: Path | None = None
    records = [{"query": hits.query.title, **work.hits_record(hits)} for hits in found]
    if explain:
        with claimed(out), ItemProgress("explaining", len(found)) as progress:
            progress(0, 0)
            answers = []
            for answer in work.explained_queries(index, found, how, out=out, maps=maps, limit=HITS_EXPLAINED):
                answers.append(answer)
                progress(len(answers), 0)
            lead = f"{reads(how)} of `{index.lens.name}`, {how.score}: best of {found[0].searched} images"
            lead += f" that fit `{where}`." if where else "."
            lead += about_sharpness(how.refine) + about_sign(how.sign)
            page = render.write(work.search_page(answers, title="Why found?", lead=lead), out / PAGE_FILE)
        records = [answer.record for answer in answers]
    for hits in found:
        show_hits(hits, several=len(found) > 1)
    if any(query.by_crop for query in queries):
        note("The region was cut out and embedded by itself: the embedding of this model is no average over positions.")
    if page is None and all(query.sides for query in queries):
        say("--explain shows on a page why they were found.")
    if page:
        say(f"Pictures are in {out}; open {page}")
    failed = {"could not be read": len(unread), "found nothing": len(empty)}
    if said := " and ".join(f"{count} of {len(made)} queries {what}" for what, count in failed.items() if count):
        exit_with_failures(f"{said}.", records)
    return records


def show_hits(hits: Hits, *, several: bool) -> None:
    """Print the hits of one query as a table, with the first columns of their metadata."""
    columns = list(dict.fromkeys(column for hit in hits for column in hit.metadata))[: work.COLUMNS_SHOWN]
    base = os.path.commonpath([os.path.dirname(hit.file) for hit in hits])
    lines = [
        (
            str(number),
            f"{hit.score:.4f}",
            *(short(hit.metadata.get(column, "")) for column in columns),
            listed_file(hit, os.path.relpath(hit.file, base or ".")),
        )
        for number, hit in enumerate(hits, 1)
    ]
    place = f"in {base}" if base else "file"
    say_rows(("", hits.score, *map(short, columns), place), lines, title=hits.query.title if several else None)
    say(f"best of {hits.searched} images in {1000 * hits.seconds:.1f} ms")
    _say_left_out(hits.query.title, hits.left_out)


def listed_file(hit: Hit, name: str) -> str:
    """The name of a hit's file in a table, and whether the file is gone or has changed since it was indexed."""
    fault = hit.fault
    return f"{name} ({fault})" if fault else name


def show_matches(answers: Sequence[work.QueryMatches], score: str) -> None:
    """Print the matches of all queries as a table."""
    files = [match["file"] for answer in answers for match in answer.matches]
    base = os.path.commonpath([str(Path(file).parent) for file in files])
    lines = []
    for answer in answers:
        for number, match in enumerate(answer.matches):
            cells = (Path(answer.query).name if number == 0 else "", str(number + 1), f"{match['score']:.4f}")
            lines.append((*cells, os.path.relpath(match["file"], base or ".")))
    say_rows(("query", "match", score, f"in {base}" if base else "file"), lines)
    if own := [answer.query for answer in answers if answer.left_out]:
        _say_left_out(Path(own[0]).name if len(own) == 1 else f"{len(own)} queries", own)


def _say_left_out(which: str, left_out: Sequence[str]) -> None:
    if left_out:
        note(f"{which}: the same file is there too and is left out; --with-self keeps it.")


def reads(how: work.SearchOptions) -> str:
    method = METHODS[how.method]
    blocks = f"the last {how.n} blocks" if how.n > 1 and method.kind == "block" else "the last block"
    return f"{method.title}, {'the pixels' if method.kind == 'input' else blocks}"
