"""Uploaded photos: reading and checking them, limits, and deleting files that nobody uses any more."""

import contextlib
import math
import secrets
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from gamlens.errors import GamlensError
from gamlens.inputs.images import Picture, open_image, upright

MEGA = 10**6
MOST_BYTES, MOST_PIXELS = 20 * MEGA, 40 * MEGA
SCREEN_SIDE = 960
SWEEP_SECONDS = 15
# How many uploads, and how many of their bytes, may wait to be used, and for how long.
WAITING_PER_VISITOR, WAITING_IN_ALL, SECONDS_UNUSED = (20, 200 * MEGA), (60, 600 * MEGA), 180


@dataclass(frozen=True, eq=False)
class Photo:
    """A visitor's photo: its file, its size (width, height), and a copy small enough for the screen.

    `pixels` is a part that was cut out of the file, if the photo is such a part.
    """

    path: Path
    name: str
    size: tuple[int, int]
    shown: Image.Image
    pixels: Image.Image | None = None

    @property
    def picture(self) -> Picture:
        if self.pixels is not None:
            return Picture(self.name, pixels=self.pixels)
        return Picture(self.name, path=str(self.path))

    def part(self, pixels: Image.Image) -> "Photo":
        """A part of the photo that was cut out."""
        shown = pixels.copy()
        shown.thumbnail((SCREEN_SIDE, SCREEN_SIDE), Image.Resampling.LANCZOS)
        return replace(self, size=pixels.size, shown=shown, pixels=pixels)


@dataclass
class Upload:
    """An uploaded file: its size in bytes, the address it came from, when it came, and how many photos use it."""

    size: int
    visitor: str
    moment: float
    users: int = 0


class UploadedFiles:
    """The uploaded files, their users, and how many may wait for a user.

    An upload waits from the moment its request begins until a visit uses it as a photo. How many files and bytes may
    wait is limited per visitor and in all; `sweep` deletes those that have waited too long. What visits use needs no
    further limit, because a visit has few photos. A file is deleted when its last user releases it, if it lies in
    `folder`, where uploads are written. No other file is ever deleted, nor are the files in `keep` (the studio's own
    examples).
    """

    def __init__(self, folder: Path | None = None, keep: Iterable[Path] = ()) -> None:
        self.folder = folder.resolve() if folder is not None else None
        self.keep = frozenset(path.resolve() for path in keep)
        self._uploads: dict[Path, Upload] = {}
        self._lock = threading.Lock()

    def begin(self, visitor: str, size: int) -> Path:
        """Make the folder for an upload of at most `size` bytes. Raises GamlensError if too many wait already."""
        if self.folder is None:
            raise GamlensError("This studio has no folder for uploads.")
        with self._lock:
            waiting = [upload for upload in self._uploads.values() if not upload.users]
            own = [upload for upload in waiting if upload.visitor == visitor]
            for uploads, (files, most) in ((own, WAITING_PER_VISITOR), (waiting, WAITING_IN_ALL)):
                if len(uploads) >= files or sum(upload.size for upload in uploads) + size > most:
                    raise GamlensError(f"Too many uploads wait to be used: try again in {SECONDS_UNUSED} seconds.")
            place = self.folder / secrets.token_hex(16)
            place.mkdir(mode=0o700)
            self._uploads[place] = Upload(size, visitor, time.monotonic())
            return place

    def finish(self, place: Path, file: Path | None) -> None:
        """End an upload: its `file`, None if it failed, now waits for a user."""
        with self._lock:
            upload = self._uploads.pop(place)
            if file is None:
                shutil.rmtree(place, ignore_errors=True)
            else:
                self._uploads[file] = replace(upload, size=file.stat().st_size, moment=time.monotonic())

    def acquire(self, path: Path) -> None:
        with self._lock:
            self._uploads.setdefault(path, Upload(0, "", time.monotonic())).users += 1

    def release(self, path: Path) -> None:
        """Remove one user of a file. An upload without users is deleted, and its folder if that is then empty."""
        with self._lock:
            self._uploads[path].users -= 1
            if self._uploads[path].users <= 0:
                self._delete(path)

    def sweep(self, longest: float = SECONDS_UNUSED) -> None:
        """Delete the files that have waited for a user for more than `longest` seconds."""
        with self._lock:
            late = time.monotonic() - longest
            for path in [path for path, upload in self._uploads.items() if not upload.users and upload.moment < late]:
                if path.parent != self.folder:  # otherwise the folder of an upload that has not ended
                    self._delete(path)

    def _delete(self, path: Path) -> None:
        del self._uploads[path]
        own = path.resolve()
        if own in self.keep or self.folder not in own.parents:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()


def read_photo(path: str | Path) -> Photo:
    """Read a photo from its file. Raises GamlensError if it is no image, or has too many bytes or pixels."""
    file = Path(path)
    try:
        size = file.stat().st_size
    except OSError as error:
        raise GamlensError(f"The photo {file.name!r} is gone: upload it again.") from error
    if size > MOST_BYTES:
        raise GamlensError(
            f"{file.name!r} has {size / MEGA:.1f} MB; the studio takes up to {MOST_BYTES // MEGA}: make it smaller."
        )
    if _pixels(file) > MOST_PIXELS:
        raise GamlensError(f"{file.name!r} has more than {MOST_PIXELS // MEGA} million pixels: make it smaller.")
    try:
        whole = upright(file)
    except GamlensError as error:
        reason = str(error).replace(str(file), file.name).replace("cannot identify image file", "not an image file")
        raise GamlensError(f"{reason.rstrip('.')}. Give a JPEG, PNG, WebP, GIF, BMP or TIFF photo.") from error
    full_size = whole.size
    whole.thumbnail((SCREEN_SIDE, SCREEN_SIDE), Image.Resampling.LANCZOS)
    return Photo(file, file.name, full_size, whole)


def _pixels(file: Path) -> float:
    """The number of pixels according to the file's header, without decoding it; 0 if the header cannot be read."""
    try:
        with open_image(file) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return math.inf
    except (OSError, ValueError, SyntaxError, GamlensError):
        return 0
