"""What happens on the tab "Search": a photo or its region, a filter, a chosen hit, and what the tab then shows."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

from gamlens.capture.forward import BY_NETWORK
from gamlens.errors import GamlensError
from gamlens.index.filter_tokens import as_written
from gamlens.index.hits import Hit, Hits
from gamlens.index.index import Index
from gamlens.index.queries import Query
from gamlens.index.short_text import short
from gamlens.index.where import parse_filter
from gamlens.inputs.images import Picture
from gamlens.scores import PAIR_SCORES
from gamlens.studio import html_fragments as html
from gamlens.studio.actions import HINTS, Actions, TabUpdate, unforeseen
from gamlens.studio.controls import Controls
from gamlens.studio.example_photos import OfferedPhotos
from gamlens.studio.freed_memory import return_freed_memory
from gamlens.studio.hit_thumbnails import HitThumbnails
from gamlens.studio.html_fragments import ShownHit
from gamlens.studio.searched_indexes import SearchedIndexes
from gamlens.studio.session import HitSearch, MarkedRegion, Session
from gamlens.studio.uploads import SCREEN_SIDE, Photo

log = logging.getLogger("gamlens.studio")

HITS_AT_FIRST, MOST_HITS = 10, 24
COLUMNS_OF_A_HIT = 4  # how many columns of a hit are shown
LARGEST_PART = 2 * SCREEN_SIDE  # the longest side of a region that was cut out and stays in memory
QUERY_SIDE = 640  # the longest side of the photo that regions are drawn on
DROP_A_PHOTO = "Drop a photo, or click an example: the photos that the model finds most similar appear here."
FAULTS = {
    "gone": "The file of this hit is gone, so there is nothing to explain: click another hit.",
    "changed": "The file of this hit has changed since it was indexed, so its maps would not say why it was found: run "
    "gamlens index update, or click another hit.",
}
BY_CROP = "The region was cut out and embedded by itself: the embedding of this model is no average over positions."
SearchGiven = ParamSpec("SearchGiven")


class Asked(NamedTuple):
    """What the page asks for beside the photo: a filter ("" for none), and how many hits."""

    where: str = ""
    top: int = HITS_AT_FIRST

    @classmethod
    def from_values(cls, where: Any, top: Any) -> Asked:
        return cls(str(where or "").strip(), min(max(1, int(top)), MOST_HITS))


class SearchUpdate(NamedTuple):
    """What an action changes on the tab.

    Attributes:
        query: The HTML of the photo that regions are drawn on.
        hits: The HTML of what was found.
        columns: The HTML below the filter: which columns there are, and what is wrong with the filter; None leaves it.
        pair: The stage with the maps of the chosen hit.
    """

    query: str
    hits: str
    columns: str | None
    pair: TabUpdate


def _with_search(
    action: Callable[Concatenate[SearchActions, Session, SearchGiven], SearchUpdate],
) -> Callable[Concatenate[SearchActions, str, SearchGiven], SearchUpdate]:
    """Let an action be called with a session id: run it with that session locked, and show errors as messages."""

    @functools.wraps(action)
    def run(
        self: SearchActions, session_id: str, /, *args: SearchGiven.args, **options: SearchGiven.kwargs
    ) -> SearchUpdate:
        session = self.actions.sessions.get(session_id)
        with session.lock:
            try:
                return action(self, session, *args, **options)
            except GamlensError as error:
                return self._failed(session, str(error))
            except Exception as error:
                log.exception("an action of the studio failed")
                return self._failed(session, unforeseen(error))

    return run


@dataclass(frozen=True, eq=False)
class SearchActions:
    """The actions of all visitors on the tab "Search".

    Attributes:
        actions: Those of the other tabs, which draw a hit and the photo as a pair.
        indexes: What is searched.
        examples: Photos to begin with, {key: (title, [file])}.
        thumbnails: Small copies of the photos of the index.
    """

    actions: Actions
    indexes: SearchedIndexes
    examples: OfferedPhotos = field(default_factory=dict)
    thumbnails: HitThumbnails = field(default_factory=HitThumbnails)

    @_with_search
    def set_query(self, session: Session, path: str | Path | None, asked: Asked, controls: Controls) -> SearchUpdate:
        """Search for another photo, by one forward, or for none (None)."""
        session.searching.forget_hits()
        session.set_photo("query", path)
        return self._found(session, asked, controls)

    @_with_search
    def set_region(
        self, session: Session, region: MarkedRegion | None, asked: Asked, controls: Controls
    ) -> SearchUpdate:
        """Search for a region of the photo, or for the whole photo (None)."""
        session.searching.region = None if region is None else checked_region(region)
        session.searching.forget_query()
        session.searching.forget_choice()
        return self._found(session, asked, controls)

    @_with_search
    def search_again(self, session: Session, asked: Asked, controls: Controls) -> SearchUpdate:
        """Search for the same with another filter or number of hits. The photo is not run again."""
        return self._found(session, asked, controls)

    @_with_search
    def choose_hit(self, session: Session, slot: int, controls: Controls) -> SearchUpdate:
        """Explain a hit, given by its row of the index, by one forward of both photos."""
        search = session.searching
        if search.hits is None or slot not in [hit.slot for hit in search.hits]:
            raise GamlensError("This is none of the hits: search again.")
        pair = self._chosen(session, search.hits, slot, controls)
        return SearchUpdate(_query_html(session), self._hits_html(search, search.hits), None, pair)

    def renewed(self, session_id: str, asked: Asked, controls: Controls) -> SearchUpdate | None:
        """Search again if another model was chosen since; None if the tab was not used, or the model is the same."""
        session = self.actions.sessions.find(session_id)
        if session is None or "query" not in session.photos:
            return None
        with session.lock:
            search = session.searching
            same = search.index is not None and search.index.lens is self.actions.lens(session)
            if same and search.hits is not None:
                return None
        return self.search_again(session_id, asked, controls)

    def has_query(self, session_id: str) -> bool:
        """Whether a visitor searches for something already."""
        session = self.actions.sessions.find(session_id)
        return session is not None and "query" in session.photos

    def columns_html(self, error: str = "") -> str:
        """Which columns a filter can name, and what is wrong with one."""
        return html.filter_columns([short(as_written(name)) for name in self.indexes.column_names], error)

    def _found(self, session: Session, asked: Asked, controls: Controls) -> SearchUpdate:
        """Search for what the visitor gave, and explain the hit that was chosen before, or else the best one."""
        search, photo = session.searching, session.photos.get("query")
        wrong = self._wrong_filter(asked.where)
        columns = self.columns_html(wrong)
        if photo is None or wrong:
            search.forget_hits()
            text = "Nothing was searched: the filter cannot be read." if wrong else DROP_A_PHOTO
            return SearchUpdate(_query_html(session), html.message(text, kind="hint"), columns, _no_hit())
        index = self._index(session)
        if search.query is None:
            search.query = _embedded(index, photo, search.region)
        hits = search.hits = index.search(search.query, top=asked.top, where=asked.where or None)
        slots = [hit.slot for hit in hits if hit.slot == search.chosen] or [hit.slot for hit in hits if not hit.fault]
        if not slots:
            search.forget_choice()
            pair = _no_hit()
        elif slots[0] == search.chosen and "pair" in search.pair.traces:
            pair = self.actions.show(search.pair, "pair", replace(controls, score=index.score))
        else:
            pair = self._chosen(session, hits, slots[0], controls)
        return SearchUpdate(_query_html(session), self._hits_html(search, hits), columns, pair)

    def _wrong_filter(self, where: str) -> str:
        """What is wrong with a filter; "" if nothing."""
        try:
            if where:
                parse_filter(where, self.indexes.column_names)
        except GamlensError as error:
            return str(error)
        return ""

    def _index(self, session: Session) -> Index:
        """The index that the visitor searches with the chosen model."""
        search, name, lens = session.searching, self.actions.model_name(session), self.actions.lens(session)
        index = self.indexes.of(name, lens, first=self.actions.models.first)
        if search.index is not index:
            search.forget_query()
            search.index, search.pair.model, search.pair.lens = index, name, lens
        return index

    def _chosen(self, session: Session, hits: Hits, slot: int, controls: Controls) -> TabUpdate:
        """Explain a hit. What is wrong with it is a message in place of its maps."""
        search, index, photo = session.searching, session.searching.index, session.photos["query"]
        number = [hit.slot for hit in hits].index(slot)
        hit = hits[number]
        search.forget_choice()
        search.chosen = slot
        if fault := hit.fault:
            return TabUpdate(html.message(FAULTS[fault], kind="note"))
        assert index is not None
        try:
            part = hits.query.sides[0].pictures[0].open() if hits.query.by_crop else None
            search.pair.set_photo("x", photo if part is None else photo.part(part))
            search.pair.set_photo("y", hit.file)
            search.pair.traces["pair"] = index.trace(hits, number, method=BY_NETWORK)
            return_freed_memory()
            return self.actions.show(search.pair, "pair", replace(controls, score=index.score))
        except GamlensError as error:  # a visitor need not know in which folder the file is
            text = str(error).replace(hit.file, Path(hit.file).name).replace(hit.path, Path(hit.path).name)
            return TabUpdate(html.message(text))

    def _hits_html(self, search: HitSearch, hits: Hits) -> str:
        """The hits as buttons, below a headline."""
        shown = [self._shown_hit(hit, chosen=hit.slot == search.chosen) for hit in hits]
        title = f"{len(hits)} hit{'s' if len(hits) != 1 else ''}" if hits else "No photo fits the filter"
        lead = f"among {hits.searched} photos, by the {PAIR_SCORES[hits.score].title.lower()} similarity."
        if hits.left_out:
            lead += " The photo itself is left out."
        return html.hits(title, lead if hits else "", shown, BY_CROP if hits.query.by_crop else "")

    def _shown_hit(self, hit: Hit, *, chosen: bool) -> ShownHit:
        columns = [(short(name), short(value)) for name, value in hit.metadata.items()]
        name, small = short(Path(hit.file).name), self.thumbnails.of(hit.file)
        return ShownHit(
            slot=hit.slot,
            score=f"{hit.score:.3f}" if abs(hit.score) < 10 else f"{hit.score:.4g}",
            name=f"{name} (changed)" if small is not None and hit.changed else name,
            columns=columns[:COLUMNS_OF_A_HIT],
            chosen=chosen,
            small=small,
        )

    def _failed(self, session: Session, text: str) -> SearchUpdate:
        """What the tab shows if nothing could be found."""
        session.searching.forget_hits()
        return SearchUpdate(_query_html(session), html.message(text), None, _no_hit())


def checked_region(region: MarkedRegion) -> MarkedRegion:
    """A region whose numbers lie in the photo. Raises GamlensError if they are none."""
    given = [value for value in region if value is not None]
    if len(given) not in (2, 4) or not all(map(math.isfinite, given)):
        raise GamlensError("This is no region of the photo: draw a box, or click a point.")
    x0, y0, *rest = (min(max(float(value), 0.0), 1.0) for value in given)
    if not rest:
        return MarkedRegion(x0, y0)
    x1, y1 = rest
    return MarkedRegion(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))


def _no_hit() -> TabUpdate:
    return TabUpdate(html.message(HINTS["search"], kind="hint"))


def _embedded(index: Index, photo: Photo, region: MarkedRegion | None) -> Query:
    """The photo, or its region, as the model of the index sees it. What was cut out is kept in a smaller size."""
    width, height = photo.size
    if region is None:
        return index.query(photo.picture)
    if region.x1 is None or region.y1 is None:
        found = index.query(
            photo.picture, point=(min(region.x0 * width, width - 0.01), min(region.y0 * height, height - 0.01))
        )
    else:
        box = (region.x0 * width, region.y0 * height, region.x1 * width, region.y1 * height)
        found = index.query(photo.picture, box=box)
    if not found.by_crop:
        return found
    part = found.sides[0].pictures[0].open()
    part.thumbnail((LARGEST_PART, LARGEST_PART))
    return replace(found, sides=(replace(found.sides[0], pictures=(Picture(photo.name, pixels=part),)),))


def _query_html(session: Session) -> str:
    """The photo to draw on, with the region that is searched for; "" if there is no photo."""
    photo, search = session.photos.get("query"), session.searching
    if photo is None:
        return ""
    box = None
    if search.query is not None and search.query.region is not None:
        (width, height), (x0, y0, x1, y1) = photo.size, search.query.region
        box = (x0 / width, y0 / height, x1 / width, y1 / height)
    elif search.region is not None and search.region.x1 is not None and search.region.y1 is not None:
        box = (search.region.x0, search.region.y0, search.region.x1, search.region.y1)
    small = photo.shown.copy()
    small.thumbnail((QUERY_SIDE, QUERY_SIDE))
    return html.query_photo(small, photo.name, box, marked=search.region is not None)
