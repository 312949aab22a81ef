"""PNG files that carry a mark, by which gamlens knows the pictures that it wrote itself.

The mark is a text chunk after the first chunk. It holds the hash of all other bytes of the file, so a picture that
somebody changed, or made with another program, is never taken for ours.
"""

import hashlib
import io
import stat
import struct
import zlib
from pathlib import Path
from typing import IO

from PIL import Image

HEADER_LENGTH = 33  # bytes of the signature and of the first chunk, IHDR, which every PNG file begins with
PNG_MARK = b"tEXtgamlens\0sha256 "
PNG_MARK_LENGTH = 4 + len(PNG_MARK) + 64 + 4  # the chunk's length, type, text and checksum


def write_png(picture: Image.Image, out: IO[bytes]) -> None:
    """Write a picture as a PNG file with a mark."""
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    plain = stream.getvalue()
    out.write(plain[:HEADER_LENGTH] + _mark(plain) + plain[HEADER_LENGTH:])


def is_marked_png(file: Path, *, whole: bool = True) -> bool:
    """Whether a file is a PNG file that `write_png` wrote and nobody changed; False for a link.

    With `whole=False` only the beginning is read: whether the file has a mark, changed or not.
    """
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return False
        with open(file, "rb") as data:
            head = data.read(HEADER_LENGTH + PNG_MARK_LENGTH)
            if not head[HEADER_LENGTH + 4 :].startswith(PNG_MARK):
                return False
            return not whole or head[HEADER_LENGTH:] == _mark(head[:HEADER_LENGTH] + data.read())
    except (OSError, ValueError):
        return False


def _mark(plain: bytes) -> bytes:
    """The chunk for a PNG file whose other bytes are `plain`."""
    chunk = PNG_MARK + hashlib.sha256(plain).hexdigest().encode()
    return struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
