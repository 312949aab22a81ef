"""Photos, vectors and filled indexes for benchmarks/search.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from real import DATA

from gamlens import Index, Lens
from gamlens.index import vector_file
from gamlens.index.catalogue import FileState, IndexedImage
from gamlens.index.snapshot import vectors_name

Floats = NDArray[np.float32]
FOLDERS = ("ILSVRC/Data/CLS-LOC/val", "imagenette/Data/CLS-LOC/val", "VOCdevkit/VOC2012/JPEGImages", "coco/val2017")
SECOND = 0.5  # the largest share of the second photo in a made vector
NOISE = 0.2  # in standard deviations of each value over all photos
AT_ONCE = 8192  # rows that are made and written at once
COLOURS = ("red", "blue", "green")


def photos(limit: int | None = None) -> list[Path]:
    """The photos of ../shared/data, X-rays left out: all of them, or every so many that about `limit` are left."""
    found = [file for folder in FOLDERS for file in sorted((DATA / folder).glob("*")) if file.suffix.lower() != ".txt"]
    return found if not limit else found[:: max(1, len(found) // limit)][:limit]


def embedded(lens: Lens, files: list[Path], folder: Path) -> tuple[list[str], Floats]:
    """Paths and embeddings (N,D) of photos, by an index in `folder`, which is kept: a second call runs no model."""
    index = Index.open(folder, lens) if folder.exists() else Index.create(folder, lens)
    with index:
        index.add([str(file) for file in files])
        wanted = {str(file.absolute()) for file in files}
        rows = [(image.path, slot) for slot, image in index.catalogue.images().items() if image.path in wanted]
        vectors = np.array(index.snapshot().vectors[[slot for _, slot in rows]], dtype=np.float32)
    return [path for path, _ in rows], vectors


def projected(vectors: Floats, width: int) -> Floats:
    """Vectors (N,D) on their first `width` principal axes, (N,width): as they are if D is not larger."""
    if width >= vectors.shape[1]:
        return vectors
    middle = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(middle.astype(np.float64), full_matrices=False)[2][:width]
    return (middle @ axes.T).astype(np.float32)


def made_rows(photo_vectors: Floats, rows: int, seed: int) -> Iterator[Floats]:
    """Vectors like those of other photos, in parts: (1 - s) a + s b + noise, for two photos a and b.

    s is uniform from 0 to SECOND; the noise is Gaussian, NOISE times the standard deviation of each value over the
    photos. Negative values are set to 0 where photos have none, as behind a ReLU.
    """
    spread = NOISE * photo_vectors.std(axis=0)
    positive = bool((photo_vectors >= 0).all())
    random = np.random.default_rng(seed)
    for start in range(0, rows, AT_ONCE):
        count = min(AT_ONCE, rows - start)
        first, second = random.integers(len(photo_vectors), size=(2, count))
        share = random.uniform(0, SECOND, size=(count, 1)).astype(np.float32)
        found = (1 - share) * photo_vectors[first] + share * photo_vectors[second]
        found += spread * random.standard_normal(found.shape, dtype=np.float32)
        yield np.maximum(found, 0) if positive else found


def filled_index(folder: Path, lens: Lens, photo_vectors: Floats, rows: int) -> Path:
    """An index of made vectors (rows,D), as `Index.add` would have written it, without a file of its backend.

    A folder that is there already is used again. Its columns are `share`, uniform from 0 to 1, by which filters choose,
    and `price` and `colour`, as a shop has them.
    """
    place = folder / f"made-{rows}-{photo_vectors.shape[1]}.gamlens"
    if place.exists():
        return place
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    random = np.random.default_rng(0)
    with Index.create(unfinished, lens, backend="exact") as index:
        settings = index.catalogue.settings() | {"dimension": photo_vectors.shape[1], "place": str(place.absolute())}
        slot = 0
        for part in made_rows(photo_vectors, rows, seed=1):
            crcs = vector_file.append_vectors(unfinished / vectors_name(settings), slot, part)
            images = [made_image(slot + number, crc) for number, crc in enumerate(crcs)]
            shares = random.uniform(size=len(images)).tolist()
            table = {
                image.path: {"share": share, "price": image.slot % 1000, "colour": COLOURS[image.slot % 3]}
                for image, share in zip(images, shares, strict=True)
            }
            slot += len(part)
            with index.catalogue.transaction() as run:
                index.catalogue.put(run, images)
                index.catalogue.put_metadata(run, table)
                index.catalogue.set(run, settings | {"end": slot})
    return unfinished.rename(place)


def made_image(slot: int, crc: int) -> IndexedImage:
    """The entry of a photo that does not exist."""
    path = f"/data/shop/photos/{slot // 1000:04d}/product-{slot:08d}.jpg"
    frame = {"original": [375, 500], "size": [224, 224], "window": [0.0, 0.0, 500.0, 375.0]}
    return IndexedImage(path, f"{slot:064x}", FileState(100_000 + slot, 1), 500, 375, frame, slot, crc)


def use_backend(place: Path, name: str) -> dict[str, Any]:
    """Have an index searched by a backend. Returns its settings."""
    with Index.open(place) as index:
        with index.catalogue.transaction() as run:
            index.catalogue.set(run, {"backend": name})
        return index.catalogue.settings()
