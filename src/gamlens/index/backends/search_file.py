"""Files of approximate searches: an engine's own bytes, the lengths of the rows, a JSON record, and a checksum.

The engine's bytes come first, since some libraries can only read a file from its beginning; they ignore what follows.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gamlens.files import WriteInto, check_plain, write_whole
from gamlens.index.backends.product_forms import Lengths

SEARCH_FILE_FORMAT = 1
FINGERPRINT_ROWS = 64
FILE_TAIL = struct.Struct("<QQII8s")  # bytes of the engine, rows, bytes of the record, checksum of all these, FILE_MARK
FILE_MARK = b"gamlens\x1a"
CHECKED_AT_ONCE = 1 << 20


def write_search(path: Path, engine: WriteInto, lengths: Lengths, record: dict[str, Any]) -> None:
    """Write a file atomically.

    Args:
        path: The file.
        engine: Writes the engine to the beginning of an open file, which has a name.
        lengths: The lengths of the rows, (N,).
        record: What else there is to know.
    """

    def write(out: IO[bytes]) -> None:
        engine(out)
        size, text = out.seek(0, os.SEEK_END), json.dumps({"format": SEARCH_FILE_FORMAT, **record}).encode()
        out.write(lengths.astype("<f8").tobytes() + text)
        out.flush()
        out.write(FILE_TAIL.pack(size, len(lengths), len(text), _checksum(Path(out.name), out.tell()), FILE_MARK))

    write_whole(path, write)


def read_search(path: Path, wanted: dict[str, Any]) -> tuple[dict[str, Any], Lengths]:
    """The record and the lengths in a file. The error says what is wrong: a ValueError, KeyError or OSError.

    Args:
        path: The file.
        wanted: What the record must say.
    """
    check_plain(path)
    size = path.stat().st_size
    with open(path, "rb") as source:
        source.seek(max(0, size - FILE_TAIL.size))
        tail = source.read(FILE_TAIL.size)
        if len(tail) < FILE_TAIL.size or not tail.endswith(FILE_MARK):
            raise ValueError("it is no such file, or its end is missing")
        body, rows, length, checksum, _ = FILE_TAIL.unpack(tail)
        if body + 8 * rows + length + FILE_TAIL.size != size or _checksum(path, size - FILE_TAIL.size) != checksum:
            raise ValueError("it is damaged")
        source.seek(body)
        lengths = np.frombuffer(source.read(8 * rows), "<f8").astype(np.float64)
        record: dict[str, Any] = json.loads(source.read(length))
    for key, value in {"format": SEARCH_FILE_FORMAT, **wanted}.items():
        if record[key] != value:
            raise ValueError(f"its {key} is {record[key]!r:.80}, and {value!r} is wanted")
    return record, lengths


def fingerprint(vectors: NDArray[np.float32]) -> int:
    """A checksum of the shape of vectors (N,D) and of some of their rows, from the first one to the last."""
    chosen = np.linspace(0, max(0, len(vectors) - 1), min(FINGERPRINT_ROWS, len(vectors))).astype(np.int64)
    return zlib.crc32(vectors[chosen].astype("<f4").tobytes(), zlib.crc32(str(vectors.shape).encode()))


def _checksum(path: Path, size: int) -> int:
    """The CRC-32 of the first bytes of a file."""
    found = 0
    with open(path, "rb") as source:
        while size > 0 and (part := source.read(min(CHECKED_AT_ONCE, size))):
            found, size = zlib.crc32(part, found), size - len(part)
    return found
