"""What the studio remembers of a visit, and for how long: photos on disk, one trace and one pair a visitor."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image

from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture, upright
from gamlens.pairs.pair_trace import PairTrace
from gamlens.trace import Trace

MEGA = 10**6
MOST_BYTES, MOST_PIXELS = 20 * MEGA, 40 * MEGA
MOST_VISITS = 12
SHOWN = 960

Slot = Literal["photo", "x", "y"]


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo of a visit: its file, its size, a copy small enough for the screen."""

    path: Path
    name: str
    size: tuple[int, int]
    shown: Image.Image

    @property
    def picture(self) -> Picture:
        return Picture(self.name, path=str(self.path))

    def on_screen(self, frame: Frame) -> Frame:
        """The frame of the small copy, given that of the photo itself."""
        across, down = self.shown.width / frame.original[1], self.shown.height / frame.original[0]
        x0, y0, x1, y1 = frame.window
        window = (x0 * across, y0 * down, x1 * across, y1 * down)
        return replace(frame, original=(self.shown.height, self.shown.width), window=window)


class Spot(NamedTuple):
    """A point of one photo of a pair, in shares of its width and height, and what the maps were set to meanwhile."""

    side: Literal["x", "y"]
    x: float
    y: float
    maps: tuple[object, ...] = ()


class Held:
    """Which photos are in use: two visitors who give the same photo share its file. `ours` are never deleted."""

    def __init__(self, ours: Iterable[Path] = ()) -> None:
        self.ours = frozenset(path.resolve() for path in ours)
        self._count: Counter[Path] = Counter()
        self._lock = threading.Lock()

    def take(self, path: Path) -> None:
        with self._lock:
            self._count[path] += 1

    def leave(self, path: Path) -> None:
        """One user less; the last one deletes the file, and its folder where nothing else is in it."""
        with self._lock:
            self._count[path] -= 1
            if self._count[path] > 0:
                return
            del self._count[path]
            if path.resolve() in self.ours:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()


@dataclass(eq=False)
class Visit:
    """One visitor. `lock` is held while anything here is read or changed."""

    model: str = ""
    photos: dict[Slot, Photo] = field(default_factory=dict)
    trace: Trace | None = None
    pair: PairTrace | None = None
    spot: Spot | None = None
    refused: list[Path] = field(default_factory=list, repr=False)
    held: Held = field(default_factory=Held, repr=False)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def give(self, slot: Slot, path: str | Path | None) -> None:
        """Read a photo into its place, or take it away; what was traced of the old one goes, and its file.

        A file that cannot be read goes with the next one, or with the visit: the browser may still be showing it.
        """
        old = self.photos.pop(slot, None)
        for bad in self.refused:
            self.held.leave(bad)
        self.refused.clear()
        if slot == "photo":
            self.trace = None
        else:
            self.pair, self.spot = None, None
        file = Path(path) if path is not None else None
        if file is not None:
            self.held.take(file)
        if old is not None:
            self.held.leave(old.path)
        if file is None:
            return
        try:
            self.photos[slot] = read(file)
        except GamlensError:
            self.refused.append(file)
            raise

    def close(self) -> None:
        """Nothing is left of the visit, neither in memory nor on disk."""
        with self.lock:
            slots: tuple[Slot, ...] = ("photo", "x", "y")
            for slot in slots:
                self.give(slot, None)


class Visits:
    """Visitors by their session, the least recently seen first; beyond `most` that one is let go."""

    def __init__(self, most: int = MOST_VISITS, *, ours: Iterable[Path] = ()) -> None:
        self.most = most
        self.held = Held(ours)
        self._known: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, session: str) -> Visit:
        """The visit of this session, a new one where there is none."""
        with self._lock:
            visit = self._known.setdefault(session, Visit(held=self.held))
            self._known.move_to_end(session)
            late = [self._known.popitem(last=False)[1] for _ in range(len(self._known) - self.most)]
        for old in late:
            old.close()
        return visit

    def end(self, session: str) -> None:
        with self._lock:
            visit = self._known.pop(session, None)
        if visit is not None:
            visit.close()

    def clear(self) -> None:
        for session in tuple(self._known):
            self.end(session)


def read(path: str | Path) -> Photo:
    """A photo from its file; one that is no image, or too large in bytes or pixels, is a GamlensError."""
    file = Path(path)
    try:
        size = file.stat().st_size
    except OSError as error:
        raise GamlensError(f"The photo {file.name!r} is gone: give it again.") from error
    if size > MOST_BYTES:
        raise GamlensError(
            f"{file.name!r} has {size / MEGA:.1f} MB; the studio takes {MOST_BYTES // MEGA}: make it smaller."
        )
    if _pixels(file) > MOST_PIXELS:
        raise GamlensError(f"{file.name!r} has more than {MOST_PIXELS // MEGA} million pixels: make it smaller.")
    try:
        whole = upright(file)
    except GamlensError as error:
        reason = str(error).replace(str(file), file.name).replace("cannot identify image file", "not an image file")
        raise GamlensError(f"{reason} A JPEG, PNG, WebP, GIF, BMP or TIFF photo works.") from error
    small = whole.copy()
    small.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
    return Photo(file, file.name, whole.size, small)


def _pixels(file: Path) -> float:
    """How many pixels the file's head names, before anything is decoded; 0 where it cannot be read."""
    try:
        with Image.open(file) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return math.inf
    except (OSError, ValueError, SyntaxError):
        return 0
