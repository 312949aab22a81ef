"""Uploaded photos: reading and checking them, the temporary folder, and deleting files that nobody uses any more."""

import contextlib
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from gamlens.errors import GamlensError
from gamlens.inputs.images import Picture, open_image, upright

MEGA = 10**6
MOST_BYTES, MOST_PIXELS = 20 * MEGA, 40 * MEGA
SCREEN_SIDE = 960


@dataclass(frozen=True, eq=False)
class Photo:
    """A visitor's photo: its file, its size (width, height), and a copy small enough for the screen."""

    path: Path
    name: str
    size: tuple[int, int]
    shown: Image.Image

    @property
    def picture(self) -> Picture:
        return Picture(self.name, path=str(self.path))


class UploadedFiles:
    """Counts the users of each uploaded file, because visitors who upload the same photo share one file.

    The last user's `release` deletes the file if it lies in `folder`, where uploads are written. No other file is ever
    deleted, nor are the files in `keep` (the studio's own examples).
    """

    def __init__(self, folder: Path | None = None, keep: Iterable[Path] = ()) -> None:
        self.folder = folder.resolve() if folder is not None else None
        self.keep = frozenset(path.resolve() for path in keep)
        self._users: Counter[Path] = Counter()
        self._lock = threading.Lock()

    def acquire(self, path: Path) -> None:
        with self._lock:
            self._users[path] += 1

    def release(self, path: Path) -> None:
        """Remove one user of a file. An upload without users is deleted, and its folder if that is then empty."""
        with self._lock:
            self._users[path] -= 1
            if self._users[path] > 0:
                return
            del self._users[path]
            own = path.resolve()
            if own in self.keep or self.folder not in own.parents:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()


class SharedTempDir:
    """One temporary folder for all studios of this process.

    While it is in use, the environment, which gradio reads at every upload, tells gradio to write there and to send
    no analytics. `release` by the last user deletes the folder and restores the environment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._environment: dict[str, str | None] = {}

    def acquire(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="gamlens-studio-", ignore_cleanup_errors=True)
                wanted = {"GRADIO_TEMP_DIR": self._folder.name, "GRADIO_ANALYTICS_ENABLED": "False"}
                self._environment = {name: os.environ.get(name) for name in wanted}
                os.environ.update(wanted)
            self._users += 1
            return Path(self._folder.name)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._folder is None:
                return
            self._folder.cleanup()
            self._folder = None
            for name, value in self._environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


TEMP_DIR = SharedTempDir()


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
    small = whole.copy()
    small.thumbnail((SCREEN_SIDE, SCREEN_SIDE), Image.Resampling.LANCZOS)
    return Photo(file, file.name, whole.size, small)


def _pixels(file: Path) -> float:
    """The number of pixels according to the file's header, without decoding it; 0 if the header cannot be read."""
    try:
        with open_image(file) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return math.inf
    except (OSError, ValueError, SyntaxError, GamlensError):
        return 0
