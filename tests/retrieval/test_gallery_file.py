"""Galleries on disk."""

from __future__ import annotations

from pathlib import Path

import nets
import numpy as np
import pytest
from PIL import Image

from gamlens import Gallery, GamlensError, Lens

Y = nets.images(5, seed=1)


@pytest.mark.parametrize("kind", ["tensor", "file", "pixels", "bf16"])
def test_saved_and_loaded(tmp_path: Path, kind: str) -> None:
    """The same maps and overlays from a file, at one block and at two."""
    rng = np.random.default_rng(0)
    photos = [Image.fromarray(rng.integers(0, 255, (70, 90, 3), dtype=np.uint8)) for _ in range(3)]
    for number, photo in enumerate(photos):
        photo.save(tmp_path / f"{number}.png")
    files = [str(tmp_path / f"{number}.png") for number in range(3)]
    images = {"tensor": Y[:3], "file": files, "pixels": photos, "bf16": Y[:3].float()}[kind]
    lens = Lens(
        nets.small().float() if kind == "bf16" else nets.small(), precision="bf16" if kind == "bf16" else "fp32"
    )
    lens.remember(images).save(str(tmp_path / "gallery.npz"))
    gallery = Gallery.load(str(tmp_path / "gallery.npz"))
    query = images[:1]
    for n in (1, 2):
        loaded, plain = (
            lens.compare_many(query, gallery, n=n, pairs=[(0, 1), (0, 2)]),
            lens.compare_many(query, images, n=n, pairs=[(0, 1), (0, 2)]),
        )
        for a, b in ((loaded.x, plain.x), (loaded.y, plain.y)):
            nets.same(a, b)
            assert a.overlay(1).tobytes() == b.overlay(1).tobytes()
            assert a.frames == b.frames


def test_files_that_are_no_gallery(tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match="There is no gallery"):
        Gallery.load(str(tmp_path / "none.npz"))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    np.savez(tmp_path / "pickle.npz", record=np.array([{}], dtype=object))
    for name in ("bad", "other", "pickle"):
        with pytest.raises(GamlensError, match="as a gallery"):
            Gallery.load(str(tmp_path / f"{name}.npz"))
