"""The files of an index that grow at their end: one vector per image, and the activations that are remembered.

A file is written first and counts only as far as the catalogue says. Bytes behind that, which a process that was killed
has left, are overwritten by the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any
from zlib import compress, crc32, decompress
from zlib import error as ZlibError

import numpy as np

from gamlens.errors import GamlensError, readable

VECTOR_TYPE, BLOCK_TYPE = np.dtype("<f4"), np.dtype("<f2")
Array = np.ndarray[Any, Any]


class CutOffError(GamlensError):
    """A file of the index is shorter than the catalogue says."""


def append_at(file: Path, start: int, contents: bytes) -> None:
    """Write bytes into a file from byte `start` on, as its new end, and sync them to the disk.

    An error, such as that of a full disk, leaves everything before `start` as it was.
    """
    try:
        with open(file, "r+b" if file.exists() else "w+b") as out:
            if out.seek(0, os.SEEK_END) < start:
                raise CutOffError(f"{file.name!r} is cut off: the catalogue says that it has {start} bytes")
            out.truncate(start)
            out.seek(start)
            out.write(contents)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise GamlensError(
            f"Cannot write {readable(str(file))!r}: {error.strerror or error}. The index is as it was before; free "
            "some space, or make the folder writable, and give the command again."
        ) from error


def append_vectors(file: Path, slot: int, vectors: Array) -> list[int]:
    """Write vectors (N,D) from row `slot` on. Returns the CRC-32 of each."""
    rows = np.ascontiguousarray(vectors, dtype=VECTOR_TYPE)
    append_at(file, slot * rows.shape[1] * VECTOR_TYPE.itemsize, rows.tobytes())
    return [crc32(row) for row in rows]


def open_vectors(file: Path, count: int, dimension: int) -> Array:
    """The first `count` vectors (count,D) of a file, mapped from the disk, read only."""
    if count < 0 or dimension < 1:
        raise GamlensError(f"{file.name!r} cannot have {count} vectors of {dimension} numbers")
    if count == 0:
        return np.zeros((0, dimension), VECTOR_TYPE)
    try:
        size = os.path.getsize(file)
        if size < count * dimension * VECTOR_TYPE.itemsize:
            whole = size // (dimension * VECTOR_TYPE.itemsize)
            raise GamlensError(f"{file.name!r} is cut off: it has {whole} vectors, and the catalogue {count}")
        return np.memmap(file, dtype=VECTOR_TYPE, mode="r", shape=(count, dimension))
    except OSError as error:
        raise GamlensError(f"{file.name!r} cannot be read ({error.strerror or error})") from error


def damaged_vectors(vectors: Array, slots: Array, crcs: Array) -> list[int]:
    """The slots whose vectors (N,D) do not have the CRC-32 that the catalogue holds."""
    plain = np.asarray(vectors)  # rows of a memory map are slow to take
    return [slot for slot, crc in zip(slots.tolist(), crcs.tolist(), strict=True) if crc32(plain[slot]) != crc]


def packed_block(activation: Array) -> bytes:
    """The activations of an image (C,h,w) as compressed bytes, in half precision."""
    return compress(np.ascontiguousarray(activation, dtype=BLOCK_TYPE).tobytes(), level=1)


def read_blocks(file: Path, places: Sequence[tuple[int, int, int]], shape: Sequence[int]) -> Array:
    """Remembered activations (N,C,h,w) in half precision, of N places (offset, length, CRC-32) of a file."""
    found = np.empty((len(places), *shape), BLOCK_TYPE)
    try:
        with open(file, "rb") as source:
            for number, (offset, length, crc) in enumerate(places):
                source.seek(offset)
                packed = source.read(length)
                if crc32(packed) != crc:
                    raise GamlensError(f"{file.name!r} does not hold what was remembered at byte {offset}")
                found[number] = np.frombuffer(decompress(packed), BLOCK_TYPE).reshape(tuple(shape))
    except (OSError, ZlibError, ValueError) as error:
        raise GamlensError(f"{file.name!r} cannot be read ({error})") from error
    return found


def copy_blocks(file: Path, places: Iterable[tuple[int, int, int]], out: IO[bytes]) -> dict[tuple[int, int, int], int]:
    """Copy remembered activations to another file. Returns where each place of the old one is in the new one."""
    moved, end = {}, 0
    try:
        source = open(file, "rb")  # noqa: SIM115 - errors of writing are not those of reading
    except OSError as error:
        raise CutOffError(f"{file.name!r} cannot be read ({error.strerror or error})") from error
    with source:
        for offset, length, crc in places:
            source.seek(offset)
            packed = source.read(length)
            if len(packed) < length:
                raise CutOffError(f"{file.name!r} is cut off: it has nothing at byte {offset + len(packed)}")
            out.write(packed)
            moved[offset, length, crc] = end
            end += length
    return moved
