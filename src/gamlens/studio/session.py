"""The state of each visitor: photos, the traces of each tab, the clicked point, a search, and the chosen model."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from gamlens.errors import GamlensError
from gamlens.index.hits import Hits
from gamlens.index.index import Index
from gamlens.index.queries import Query
from gamlens.lens import Lens
from gamlens.pairs.pair_trace import PairTrace
from gamlens.pairs.set_trace import SetTrace
from gamlens.studio.controls import Controls
from gamlens.studio.freed_memory import return_freed_memory
from gamlens.studio.score_split import ScoreSplit
from gamlens.studio.uploads import Photo, UploadedFiles, read_photo
from gamlens.trace import Trace

MOST_SESSIONS = 12
IDLE_SECONDS = 2 * 60 * 60  # a session that was not used for so long ends: the browser may have gone without a word
LATE_SECONDS = 5.0  # events on their way when a page closes arrive within this time
MOST_ENDED = 256
VISIT_ENDED = "This visit has ended, and its photos were deleted: give the photo again."

TabName = Literal["class", "pair", "search"]
DrawnTab = Literal["class", "pair"]  # what the pictures of a tab are: a hit is drawn as the half of a pair
TraceName = Literal["class", "against", "pair", "set"]
Slot = Literal["photo", "x", "y", "rather", "query"]
SLOTS: dict[TabName, tuple[Slot, ...]] = {"class": ("photo",), "pair": ("x", "y"), "search": ("query",)}
OPTIONAL_SLOTS: dict[TabName, tuple[Slot, ...]] = {"class": (), "pair": ("rather",), "search": ()}
TAB_OF_SLOT: dict[Slot, TabName] = {
    slot: tab for slots in (SLOTS, OPTIONAL_SLOTS) for tab, names in slots.items() for slot in names
}


class SessionId(str):
    """The id of a session, the address of its visitor, who may have more than one session, and when the event that
    names it arrived, as `time.monotonic` has it; None is now.
    """

    visitor: str
    arrived: float | None

    def __new__(cls, name: str, visitor: str = "", arrived: float | None = None) -> "SessionId":
        made = super().__new__(cls, name)
        made.visitor, made.arrived = visitor, arrived
        return made


class ModelChoice(NamedTuple):
    """A model that a visitor chose by name, and the lens, which may still be loading."""

    name: str
    lens: Future[Lens]


class ClickedPoint(NamedTuple):
    """A clicked point of photo `side`, as fractions of its width and height, and the map settings at that time."""

    side: Literal["x", "y"]
    x: float
    y: float
    map_settings: tuple[object, ...] = ()


class MarkedRegion(NamedTuple):
    """What a visitor marked on the photo that is searched for, as fractions of its width and height.

    A point if `x1` and `y1` are None, else a box.
    """

    x0: float
    y0: float
    x1: float | None = None
    y1: float | None = None


@dataclass(eq=False)
class HitSearch:
    """What a visitor searches for, and what was found.

    Attributes:
        pair: The photo that is searched for and the chosen hit, in a session of their own: they are drawn as a pair.
        index: What was searched; None before the first search.
        region: The part of the photo that is searched for; None for the whole photo.
        query: The photo, or its region, as the model of the index embedded it; None if that has not been done.
        hits: What was found.
        chosen: The row of the index of the chosen hit.
    """

    pair: "Session"
    index: Index | None = None
    region: MarkedRegion | None = None
    query: Query | None = None
    hits: Hits | None = None
    chosen: int | None = None

    def forget_hits(self) -> None:
        """Drop what was found, and the chosen hit."""
        self.hits = None
        self.forget_choice()

    def forget_choice(self) -> None:
        self.chosen = None
        self.pair.set_photo("y", None)

    def forget_query(self) -> None:
        """Drop what was computed of the photo; what was found stays until the next search."""
        self.query = None
        self.pair.forget_traces("pair")


@dataclass(eq=False)
class Session:
    """The state of one visitor. Hold `lock` while reading or changing it; `choice` alone can be set at any time.

    Attributes:
        model: The name of the chosen model; "" for the first model of the studio.
        lens: The chosen model, which stays in memory as long as the session uses it; None for the first model.
        choice: The model that was chosen last, if it is not in use yet.
        photos: The photos by slot.
        traces: What the model gave for the photos, as far as it was needed: of the class, of the class rather than
            another one, of the pair, and of the pair with a third photo.
        against: The number of the class that the explained one is compared with; None if there is none.
        point: The point of a pair that was clicked; None if maps are shown.
        split: The split of the pair's score over positions, if a visitor asked for it and it takes long.
        pair_controls: The controls with which the pair tab was drawn last; None if it never was.
        search: What is searched for, and what was found; None if the tab was never used.
        unused: Files that are released with the next photo or at the end.
        files: Counts the users of all uploaded files, and is shared by all sessions.
        visitor: The address that the visitor comes from.
        used: When the session was used last, as `time.monotonic` has it.
        closed: Whether the session has ended. It takes no photos any more, because nobody would delete them.
        lock: Protects all of these.
    """

    model: str = ""
    lens: Lens | None = field(default=None, repr=False)
    choice: ModelChoice | None = None
    photos: dict[Slot, Photo] = field(default_factory=dict)
    traces: dict[TraceName, Trace | PairTrace | SetTrace] = field(default_factory=dict)
    against: int | None = None
    point: ClickedPoint | None = None
    split: ScoreSplit | None = field(default=None, repr=False)
    pair_controls: Controls | None = None
    search: HitSearch | None = field(default=None, repr=False)
    unused: list[Path] = field(default_factory=list, repr=False)
    files: UploadedFiles = field(default_factory=UploadedFiles, repr=False)
    visitor: str = ""
    used: float = field(default_factory=time.monotonic, repr=False)
    closed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def searching(self) -> HitSearch:
        """What is searched for; made when it is first asked for."""
        if self.search is None:
            self.search = HitSearch(Session(files=self.files, visitor=self.visitor))
        return self.search

    def drawn_in(self, tab: TabName) -> tuple["Session", DrawnTab]:
        """The session that holds the pictures of a tab, and how they are drawn."""
        return (self.searching.pair, "pair") if tab == "search" else (self, tab)

    def forget_traces(self, *tabs: TabName) -> None:
        """Drop the traces of these tabs, the class that another one is compared with, and the clicked point."""
        if "class" in tabs:
            self.traces.pop("class", None)
            self.set_against(None)
        if "pair" in tabs:
            self.traces.pop("pair", None)
            self.traces.pop("set", None)
            self.point = None
            self.stop_split()
        if "search" in tabs and self.search is not None:
            self.search.region = None
            self.search.forget_query()

    def set_against(self, number: int | None) -> None:
        """Compare the explained class with another one, or with none (None)."""
        self.against = number
        self.traces.pop("against", None)

    def stop_split(self) -> None:
        """Drop the split of the pair's score; if it is still running, it ends."""
        if self.split is not None:
            self.split.stop()
            self.split = None

    def set_photo(self, slot: Slot, photo: str | Path | Photo | None) -> None:
        """Read a photo into `slot`, or empty the slot (None). The old photo's trace is dropped and its file released.

        A file that cannot be read is released later, with the next photo or at the end of the session, because the
        browser may still be showing it. A Photo was read already.
        """
        path = photo.path if isinstance(photo, Photo) else photo
        if path is not None:
            if self.closed:
                raise GamlensError(VISIT_ENDED)
            self.files.acquire(Path(path))
        if slot in self.photos:
            self.unused.append(self.photos.pop(slot).path)
        while self.unused:
            self.files.release(self.unused.pop())
        if slot == "rather":  # the pair itself stays as it is
            self.traces.pop("set", None)
            self.point = None
        else:
            self.forget_traces(TAB_OF_SLOT[slot])
        if path is None:
            return
        try:
            self.photos[slot] = photo if isinstance(photo, Photo) else read_photo(path)
        except GamlensError:
            self.unused.append(Path(path))
            raise

    def close(self) -> None:
        """Remove all photos and traces of the session from memory and disk, and let go of its model."""
        with self.lock:
            self.closed = True
            self.lens = self.choice = None
            if self.search is not None:
                self.search.pair.close()
            self.search = None
            for slot in get_args(Slot):
                self.set_photo(slot, None)
        return_freed_memory()


class Sessions:
    """Sessions by id. If there are more than `most`, one is closed: the least recently used one of the visitor who has
    the most sessions, so that a visitor who opens many does not close those of others.

    The page's events wait in queues, so one may be handled after its page was closed and its session ended. It gets a
    closed session of its own, which is kept nowhere. A page that is still open, and only lost its connection for a
    moment, goes on with a new session.

    Uploads in `folder` are deleted when no session uses them, except for those in `keep`, such as the example photos.
    """

    def __init__(self, most: int = MOST_SESSIONS, *, folder: Path | None = None, keep: Iterable[Path] = ()) -> None:
        self.most = most
        self.files = UploadedFiles(folder, keep)
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()  # when the sessions ended that ended last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, session_id: str) -> Session:
        """The session with this id; a new one if there is none. A SessionId also tells whose session it is.

        An event that arrived before the session ended, or within LATE_SECONDS after, gets a closed session.
        """
        now = time.monotonic()
        arrived = getattr(session_id, "arrived", None)
        with self._lock:
            new = Session(files=self.files, visitor=getattr(session_id, "visitor", ""))
            ended = self._ended.get(session_id)
            if ended is not None and (now if arrived is None else arrived) < ended + LATE_SECONDS:
                new.closed = True
                return new
            session = self._open.setdefault(session_id, new)
            session.used = now
            self._open.move_to_end(session_id)
            late = [self._open.pop(self._next_to_close()) for _ in range(len(self._open) - self.most)]
        for old in late:
            old.close()
        return session

    def _next_to_close(self) -> str:
        *older, newest = self._open.items()
        count = Counter(session.visitor for _, session in (*older, newest))
        return max(older or [newest], key=lambda item: count[item[1].visitor])[0]

    def find(self, session_id: str) -> Session | None:
        """The session with this id; None if there is none, such as that of a visitor who has left."""
        with self._lock:
            return self._open.get(session_id)

    def end(self, session_id: str) -> None:
        """End the session with this id, whose page was closed, if there is one."""
        with self._lock:
            self._ended[session_id] = time.monotonic()
            self._ended.move_to_end(session_id)
            while len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)
            session = self._open.pop(session_id, None)
        if session is not None:
            session.close()

    def sweep(self, longest: float = IDLE_SECONDS) -> None:
        """End the sessions that were not used for more than `longest` seconds, and delete uploads nobody uses.

        A browser that goes before it has opened the connection whose end tells that it left is not missed otherwise.
        """
        late = time.monotonic() - longest
        with self._lock:
            idle = [self._open.pop(name) for name, session in list(self._open.items()) if session.used < late]
        for session in idle:
            session.close()
        self.files.sweep()

    def clear(self) -> None:
        for session_id in tuple(self._open):
            self.end(session_id)
