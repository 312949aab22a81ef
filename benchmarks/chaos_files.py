"""Damaged files for `chaos.py`: images, plain bytes, JSON texts and archives of arrays."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

GOOD = ("jpeg", "png", "cmyk", "sixteen", "palette", "animated", "alpha", "rotated", "grey", "pixel", "wrong name")
BAD = ("empty", "text", "cut head", "huge png", "huge gif", "nothing but zeros", "random bytes")
EITHER = ("flipped", "cut", "appended")
MIB = 1 << 20


def pixels(draw: np.random.Generator, side: int = 40) -> Image.Image:
    return Image.fromarray(draw.integers(0, 255, (side, side + 9, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def huge_png() -> bytes:
    """A PNG whose header claims 60,000 x 60,000 pixels."""

    def piece(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = piece(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + piece(b"IDAT", zlib.compress(bytes(1000))) + piece(b"IEND", b"")


def _rotated(image: Image.Image) -> bytes:
    exif = image.getexif()
    exif[274] = 6
    return encoded(image, "JPEG", exif=exif)


def _sixteen(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image)[..., 0].astype(np.uint16) * 257)


def _animated(image: Image.Image) -> bytes:
    return encoded(image.convert("P"), "GIF", save_all=True, append_images=[image.convert("P")] * 2)


IMAGES: dict[str, tuple[Callable[[Image.Image, random.Random], bytes], str]] = {  # {kind: (contents, extension)}
    "jpeg": (lambda image, dice: encoded(image, "JPEG"), ".jpg"),
    "png": (lambda image, dice: encoded(image, "PNG"), ".png"),
    "cmyk": (lambda image, dice: encoded(image.convert("CMYK"), "JPEG"), ".jpg"),
    "sixteen": (lambda image, dice: encoded(_sixteen(image), "PNG"), ".png"),
    "palette": (lambda image, dice: encoded(image.convert("P"), "PNG", transparency=0), ".png"),
    "animated": (lambda image, dice: _animated(image), ".gif"),
    "alpha": (lambda image, dice: encoded(image.convert("RGBA"), "PNG"), ".png"),
    "rotated": (lambda image, dice: _rotated(image), ".jpg"),
    "grey": (lambda image, dice: encoded(image.convert("L"), "JPEG"), ".jpg"),
    "pixel": (lambda image, dice: encoded(image.crop((0, 0, 1, 1)), "PNG"), ".png"),
    "wrong name": (lambda image, dice: encoded(image, "PNG"), ".jpg"),
    "empty": (lambda image, dice: b"", ".jpg"),
    "text": (lambda image, dice: b"this is no image\n" * 20, ".jpg"),
    "cut head": (lambda image, dice: _photo(image, dice)[dice.randrange(8, 40) :], ".jpg"),
    "huge png": (lambda image, dice: huge_png(), ".png"),
    "huge gif": (lambda image, dice: b"GIF89a" + struct.pack("<HH", 65000, 65000) + bytes(60), ".gif"),
    "nothing but zeros": (lambda image, dice: bytes(dice.randrange(1, 5000)), ".png"),
    "random bytes": (lambda image, dice: dice.randbytes(dice.randrange(1, 5000)), ".webp"),
    "flipped": (lambda image, dice: flipped(_photo(image, dice), dice), ".jpg"),
    "cut": (lambda image, dice: _photo(image, dice)[: dice.randrange(20, 900)], ".jpg"),
    "appended": (lambda image, dice: _photo(image, dice) + dice.randbytes(500), ".jpg"),
}  # fmt: skip


def _photo(image: Image.Image, dice: random.Random) -> bytes:
    return encoded(image, dice.choice(("JPEG", "PNG")))


def image_file(kind: str, folder: Path, stem: str, dice: random.Random) -> Path:
    """Write an image of this kind, random pixels that are good or broken in that way; returns the file."""
    contents, extension = IMAGES[kind]
    file = folder / f"{stem}{extension}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(contents(pixels(np.random.default_rng(dice.randrange(2**32))), dice))
    return file


def mangled_folder(folder: Path, count: int, dice: random.Random) -> dict[str, str]:
    """Write `count` images of all kinds in turn into two class folders; returns {name: kind}."""
    kinds = {}
    for number in range(count):
        kind = list(IMAGES)[number % len(IMAGES)]
        file = image_file(kind, folder / ("ant", "bee")[number % 2], f"{number:05d}", dice)
        kinds[f"{file.parent.name}/{file.name}"] = kind
    return kinds


def flipped(data: bytes, dice: random.Random) -> bytes:
    """The bytes with 1 to 40 flipped bits."""
    body = bytearray(data)
    for _ in range(dice.randint(1, 40)):
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return bytes(body)


def no_file(place: Path, dice: random.Random) -> None:
    """Put something else in the place of a file: a pipe, a folder, a device, or a link in a circle or to nowhere."""
    place.unlink(missing_ok=True)
    what = dice.choice(("pipe", "folder", "/dev/zero", "/dev/stdin", "/nothing/here", "/proc/self/mem", place.name))
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to(what)


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flipped,
    "cut": lambda data, dice: data[: dice.randrange(len(data))],
    "cut head": lambda data, dice: data[dice.randrange(1, len(data)) :],
    "empty": lambda data, dice: b"",
    "zeros": lambda data, dice: bytes(len(data)),
    "text": lambda data, dice: b"not what you expect\n" * 10,
    "appended": lambda data, dice: data + dice.randbytes(300),
    "hole": lambda data, dice: data[: len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3) :],
    "twice": lambda data, dice: data + data,
}

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**70, 10**9, 1e308, float("nan"), float("inf"), "", "x", "long " * 5000, "\x1b[31mred\x00",
    "../../x", "\udce9", [], {}, [[]], [None], {"a": {"b": 1}}, [1, 2, 3], -0.5,
)  # fmt: skip


def odd_json(data: bytes, dice: random.Random) -> bytes:
    """A JSON text in which one value is of another type or gone, or which is nested deeper than any parser goes."""
    if dice.random() < 0.12:
        depth = 100_000
        return dice.choice((b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth + b"]" * depth))
    if dice.random() < 0.15:
        return json.dumps(dice.choice(ODD_VALUES)).encode()
    record = json.loads(data)
    holder, key = dice.choice(_places(record))
    if dice.random() < 0.2:
        del holder[key]
    else:
        holder[key] = dice.choice(ODD_VALUES)
    return json.dumps(record).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (dict or list, key or index) inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


ARRAY_HARMS = ("dtype", "shape", "objects", "claims", "bomb", "missing", "surplus bomb")


def odd_arrays(data: bytes, dice: random.Random, harm: str) -> bytes:
    """An .npz archive in which one array is of another type, shape or size than it should be, or gone.

    "claims" has a header that declares terabytes; "bomb" holds a gibibyte of zeros in a megabyte.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    name = dice.choice(sorted(arrays))
    if harm == "dtype":
        arrays[name] = arrays[name].astype(dice.choice(("float64", "int8", "complex64", "bool", "U4", "M8[s]")))
    elif harm == "shape":
        arrays[name] = dice.choice((arrays[name].reshape(-1), arrays[name][:0], arrays[name][None], np.zeros(())))
    elif harm == "objects":
        arrays[name] = np.array([{"a": 1}, None], dtype=object)
    elif harm == "missing":
        del arrays[name]
    out = io.BytesIO()
    np.savez(out, **arrays)
    if harm in ("claims", "bomb", "surplus bomb"):
        shape = (10**6, 10**3, 10**3) if harm == "claims" else (1, 16384, 16384)
        return _with_bomb(out.getvalue(), "unknown" if harm == "surplus bomb" else name, shape, empty=harm == "claims")
    return out.getvalue()


def _with_bomb(data: bytes, name: str, shape: tuple[int, ...], *, empty: bool) -> bytes:
    """The archive with the array `name` replaced by zeros of this shape; of `empty` ones only the header is there."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    member = f"{name}.npy"
    kept = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(kept, "w") as new:
        for entry in old.namelist():
            if entry != member:
                new.writestr(entry, old.read(entry))
        if empty:
            new.writestr(member, header.getvalue())
    return kept.getvalue() if empty else _appended_zeros(kept.getvalue(), member, header.getvalue())


@cache
def _zeros_after(head: bytes) -> tuple[bytes, int]:
    """`head` and a gibibyte of zeros as a deflate stream of about a megabyte, and the CRC-32 of what it holds."""
    start, block = zlib.compressobj(9, zlib.DEFLATED, -15), zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = block.compress(bytes(MIB)) + block.flush(zlib.Z_FULL_FLUSH)
    crc = zlib.crc32(head)
    for _ in range(16):
        crc = zlib.crc32(bytes(64 * MIB), crc)
    return start.compress(head) + start.flush(zlib.Z_FULL_FLUSH) + zeros * 1024 + b"\x03\x00", crc


def _appended_zeros(data: bytes, member: str, head: bytes) -> bytes:
    """A zip archive with one more member: `head` and a gibibyte of zeros, compressed to about a megabyte."""
    body, crc = _zeros_after(head)
    size, place = len(head) + 1024 * MIB, data.rindex(b"PK\x05\x06")
    count, length, offset = struct.unpack("<HII", data[place + 10 : place + 20])
    name = member.encode()
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, crc, len(body), size, len(name), 0)
    local = b"PK\x03\x04" + fields + name + body
    entry = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, offset) + name
    directory = data[offset : offset + length] + entry
    end = struct.pack("<HHHHIIH", 0, 0, count + 1, count + 1, len(directory), offset + len(local), 0)
    return data[:offset] + local + directory + b"PK\x05\x06" + end
