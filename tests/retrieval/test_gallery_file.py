"""Galleries on disk."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import Gallery, GamlensError, Lens
from gamlens.data import plausible

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


def changed(path: Path, *, arrays: Any = None, image: Any = None, refine: int = 0, **parts: Any) -> None:
    """Save a gallery of five tensors, with other arrays, other entries of the record, and others of its images."""
    Lens(nets.small()).remember(Y, refine=refine).save(str(path))
    with np.load(path) as file:
        found = dict(file)
    record = json.loads(found["record"].tobytes()) | parts
    record["images"] = [{**item, **(image or {})} for item in record["images"]]
    found["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    np.savez(path, **(found | (arrays or {})))


FLOATS = dict.fromkeys(("activations", "embeddings", "scales"), "torch.float64")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "objects": ({"arrays": {"embeddings": np.array([{}] * 5)}}, r"embeddings.npy claims object"),
    "integers": ({"arrays": {"scales": np.ones(5, int)}, "kinds": FLOATS | {"scales": "torch.int64"}}, "real numbers"),
    "another dtype": ({"arrays": {"scales": np.ones(5, np.float32)}}, r"float32, and the record says 'torch.float64'"),
    "a matrix too few": ({"arrays": {"embeddings": np.ones(5)}}, r"embeddings is torch.float64 \(5,\)"),
    "fewer rows": ({"arrays": {"embeddings": np.ones((4, 32))}}, "for each of 5 images"),
    "NaN": ({"arrays": {"embeddings": np.full((5, 32), np.nan)}}, "embeddings has values that are not finite"),
    "a law of its own": ({"law": "mine"}, "the law is 'mine'"),
    "no kinds": ({"kinds": []}, "TypeError"),
    "no images": ({"images": []}, "for each of 0 images"),
    "an input of text": ({"size": ["64", "64"]}, "whole number"),
    "a huge input": ({"size": [10**6, 10**6]}, "1000000 x 1000000 pixels"),
    "a huge image": ({"image": {"original": [10**6, 10**6]}}, "1000000 x 1000000 pixels"),
    "an image that is not there": ({"image": {"tensor": "image-99"}}, "image-99"),
    "an image of one row": ({"image": {"tensor": "scales"}}, r"\(C,H,W\)"),
    "pixels that are none": ({"image": {"tensor": None, "png": "scales"}}, "Error"),
    "a path of numbers": ({"image": {"path": 5}}, "the path 5"),
    "about a text": ({"about": "me"}, "`about` is no object"),
    "about nothing": ({"about": {}}, "`about` has no text 'model'"),
    "about no block": (
        {"about": dict.fromkeys(("model", "embedding", "precision", "fingerprint"), "x")},
        "`about` has no text 'block'",
    ),
}


def earlier(**entries: Any) -> dict[str, Any]:
    """A gallery whose one earlier block is described otherwise."""
    return {"refine": 1, "earlier": [{"block": "layer2", "array": "earlier-0", "kind": "torch.float64"} | entries]}


def block(array: Any) -> dict[str, Any]:
    """A gallery whose one earlier block is another array."""
    return {"refine": 1, "arrays": {"earlier-0": array}}


WRONG_EARLIER: dict[str, tuple[dict[str, Any], str]] = {
    "no array": (earlier(array="earlier-7"), "earlier-7"),
    "an array of no name": (earlier(array=None), "KeyError|None"),
    "an array of lists": (earlier(array=[]), "TypeError"),
    "another dtype": (earlier(kind="torch.float32"), "float64, and the record says 'torch.float32'"),
    "not a list": ({"refine": 1, "earlier": 5}, "TypeError"),
    "no fields": ({"refine": 1, "earlier": [{}]}, "KeyError"),
    "a list of text": ({"refine": 1, "earlier": ["layer2"]}, "TypeError"),
    "objects": (block(np.array([{}] * 5)), "claims object"),
    "integers": (block(np.ones((5, 24, 8, 8), int)) | earlier(kind="torch.int64"), "layer2 is torch.int64"),
    "fewer rows": (block(np.ones((4, 24, 8, 8))), "for each of 5 images"),
    "a matrix": (block(np.ones((5, 24))), r"layer2 is torch.float64 \(5, 24\), not real numbers in 4 dimensions"),
    "NaN": (block(np.full((5, 24, 8, 8), np.nan)), "layer2 has values that are not finite"),
}


@pytest.mark.parametrize("name", [*WRONG, *(f"earlier: {name}" for name in WRONG_EARLIER)])
def test_wrong_contents_are_one_error(tmp_path: Path, name: str) -> None:
    options, message = WRONG[name] if name in WRONG else WRONG_EARLIER[name.removeprefix("earlier: ")]
    changed(tmp_path / "a.npz", **options)
    with pytest.raises(
        GamlensError, match=rf"(?s)Cannot read .*a\.npz' as a gallery: .*{message}.*Gallery\.save wrote"
    ):
        Gallery.load(str(tmp_path / "a.npz"))


def test_a_text_file_says_that_it_is_no_gallery(tmp_path: Path) -> None:
    (tmp_path / "photos.txt").write_text("a.jpg\nb.jpg\n")
    with pytest.raises(
        GamlensError, match=r"photos\.txt' as a gallery: .*is not an \.npz file.*Give a file that Gallery"
    ):
        Gallery.load(str(tmp_path / "photos.txt"))


def test_members_that_the_record_does_not_name_are_not_read(tmp_path: Path) -> None:
    Lens(nets.small()).remember(Y).save(str(tmp_path / "a.npz"))
    head = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}  # reading it would be an error
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive, archive.open("bomb.npy", "w") as out:
        np.lib.format.write_array_header_1_0(out, head)
    assert len(Gallery.load(str(tmp_path / "a.npz"))) == 5


def test_a_gallery_that_claims_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(tmp_path / "a.npz", arrays={"embeddings": np.zeros((5, 2**18))})
    with np.load(tmp_path / "a.npz") as file:
        np.savez_compressed(tmp_path / "b.npz", **file)
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**20)
    monkeypatch.setattr(plausible, "MOST_EXPANSION", 3)
    assert Gallery.load(str(tmp_path / "a.npz")).embeddings.shape == (5, 2**18)
    with pytest.raises(GamlensError, match="more than 3 times as many"):
        Gallery.load(str(tmp_path / "b.npz"))


def test_an_empty_gallery_is_read(tmp_path: Path) -> None:
    Lens(nets.small()).remember(Y)[:0].save(str(tmp_path / "a.npz"))
    assert len(Gallery.load(str(tmp_path / "a.npz"))) == 0


def test_files_that_are_no_gallery(tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match="There is no gallery"):
        Gallery.load(str(tmp_path / "none.npz"))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    np.savez(tmp_path / "pickle.npz", record=np.array([{}], dtype=object))
    for name in ("bad", "other", "pickle"):
        with pytest.raises(GamlensError, match="as a gallery"):
            Gallery.load(str(tmp_path / f"{name}.npz"))


def record_of(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return json.loads(file["record"].tobytes())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_earlier_blocks_are_saved_and_loaded(tmp_path: Path, precision: str) -> None:
    lens, images = Lens(nets.small().float(), precision=precision), Y[:3].float()
    gallery = lens.remember(images, refine=2)
    gallery.save(str(tmp_path / "a.npz"))
    assert record_of(tmp_path / "a.npz")["format"] == 2
    again = Gallery.load(str(tmp_path / "a.npz"))
    assert list(again.earlier) == ["layer1", "layer2"]
    for name, h in gallery.earlier.items():
        assert torch.equal(again.earlier[name], h)
        assert again.earlier[name].dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    again.save(str(tmp_path / "b.npz"))
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    loaded, kept = (lens.compare_many(images[:1], side, pairs=[(0, 2)], refine=2) for side in (again, gallery))
    nets.same(loaded.x, kept.x)
    nets.same(loaded.y, kept.y)


def test_the_first_format_is_written_and_read_where_nothing_is_earlier(tmp_path: Path) -> None:
    """So that older versions read these files; a newer format is refused by its number."""
    lens = Lens(nets.small())
    for number, gallery in enumerate((lens.remember(Y), lens.remember(Y, refine=2)[:0])):
        gallery.save(str(tmp_path / f"{number}.npz"))
        assert len(Gallery.load(str(tmp_path / f"{number}.npz"))) == len(gallery)
    record = record_of(tmp_path / "0.npz")
    assert record["format"] == 1
    assert "earlier" not in record
    assert Gallery.load(str(tmp_path / "0.npz")).earlier == {}
    assert list(Gallery.load(str(tmp_path / "1.npz")).earlier) == ["layer1", "layer2"]
    changed(tmp_path / "new.npz", format=3)
    with pytest.raises(GamlensError, match=r"written in format 3; this version reads 1 and 2"):
        Gallery.load(str(tmp_path / "new.npz"))


def test_a_damaged_file_with_earlier_blocks_is_an_error(tmp_path: Path) -> None:
    Lens(nets.small()).remember(Y, refine=2).save(str(tmp_path / "a.npz"))
    whole = (tmp_path / "a.npz").read_bytes()
    for cut in (len(whole) // 3, len(whole) - 40):
        (tmp_path / "cut.npz").write_bytes(whole[:cut])
        with pytest.raises(GamlensError, match="as a gallery"):
            Gallery.load(str(tmp_path / "cut.npz"))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        start = archive.getinfo("earlier-1.npy").header_offset + 1000
    (tmp_path / "flipped.npz").write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    with pytest.raises(GamlensError, match="as a gallery"):
        Gallery.load(str(tmp_path / "flipped.npz"))
