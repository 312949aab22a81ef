"""Small copies of the photos of an index, made by the server, so that a page never names a file."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict

from PIL import Image

from gamlens.errors import GamlensError
from gamlens.inputs.images import open_image, rgb
from gamlens.studio.uploads import MOST_PIXELS

UNREADABLE = (OSError, ValueError, SyntaxError, GamlensError, Image.DecompressionBombError)
HIT_SIDE, HIT_QUALITY, HITS_KEPT = 240, 82, 512


class HitThumbnails:
    """JPEG bytes by file. The last ones that were asked for stay in memory, about 10 kB each."""

    def __init__(self, most: int = HITS_KEPT) -> None:
        self.most = most
        self._made: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: str) -> bytes | None:
        """A small copy of an image; None if the file is gone, is no image, or is too large to be decoded."""
        try:
            state = os.stat(file)
            key = (file, state.st_size, state.st_mtime_ns)
            with self._lock:
                if key in self._made:
                    self._made.move_to_end(key)
                    return self._made[key]
            made = small_jpeg(file)
        except UNREADABLE:
            return None
        with self._lock:
            self._made[key] = made
            while len(self._made) > self.most:
                self._made.popitem(last=False)
        return made


def small_jpeg(file: str) -> bytes:
    """An image as a small JPEG, upright. Raises one of UNREADABLE."""
    with open_image(file) as image:
        if image.width * image.height > MOST_PIXELS:
            raise GamlensError("The image has too many pixels.")
        image.draft("RGB", (2 * HIT_SIDE, 2 * HIT_SIDE))  # JPEG files are decoded at a fraction of their size
        small = rgb(image)
    small.thumbnail((HIT_SIDE, HIT_SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=HIT_QUALITY)
    return stream.getvalue()
