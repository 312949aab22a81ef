"""Records of images in saved explanations and galleries: each value of a wrong type is one error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest

from gamlens import Explanation, Gallery, GamlensError, Lens, Transform
from gamlens.inputs.frame import Frame
from gamlens.inputs.saved_images import saved_frame, saved_size, saved_text

ITEM: dict[str, Any] = {"original": [40, 50], "size": [32, 32], "window": [0, 0, 50.0, 40.0]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved explanation and a saved gallery of two images."""
    lens, place = Lens(nets.small().float(), transform=Transform((32, 32))), tmp_path_factory.mktemp("saved")
    images = list(np.random.default_rng(0).integers(0, 255, (2, 40, 50, 3), dtype=np.uint8))
    lens.classify(images, n=1).save(str(place / "explanation"))
    lens.remember(images).save(str(place / "gallery.npz"))
    return place


def test_a_good_record() -> None:
    assert saved_frame(ITEM) == Frame((40, 50), (32, 32), (0.0, 0.0, 50.0, 40.0))
    assert saved_text("a.png") == "a.png"


@pytest.mark.parametrize(
    "window", [None, 3, "abcd", [0, 0, 1], [0, 0, 1, "1"], [0, 0, float("inf"), 1], [5, 0, 5, 1], {}]
)
def test_a_window_is_four_numbers(window: object) -> None:
    with pytest.raises(ValueError, match="window"):
        saved_frame({**ITEM, "window": window})


@pytest.mark.parametrize("size", [None, [1], [1, 2, 3], [0, 5], [1.5, 2], ["1", 2], [True, 2], [10**9, 10**9]])
def test_a_size_is_two_numbers(size: object) -> None:
    with pytest.raises(ValueError, match="a size is"):
        saved_size(size)


@pytest.mark.parametrize("text", [None, 3, ["a"], "a\0b"])
def test_a_name_is_a_text(text: object) -> None:
    with pytest.raises(ValueError, match="not a text"):
        saved_text(text)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("images", "window", ["0", 0, 1, 1]),
        ("images", "original", 5),
        ("images", "name", 5),
        ("images", "kept", {"a": 1}),
        ("rows", "image", 7),
        ("rows", "image", -1),
        ("rows", "target", 10**9),
        ("rows", "name", None),
    ],
)
def test_an_edited_explanation_is_one_error(saved: Path, tmp_path: Path, part: str, key: str, value: object) -> None:
    record = json.loads((saved / "explanation" / "explanation.json").read_text())
    record[part][1][key] = value
    (tmp_path / "explanation.json").write_text(json.dumps(record))
    (tmp_path / "maps.npz").write_bytes((saved / "explanation" / "maps.npz").read_bytes())
    with pytest.raises(GamlensError, match="Cannot read the explanation"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize("maps", [np.zeros((2, 32, 32), bool), np.zeros((2, 32)), np.zeros((3, 32, 32), np.float32)])
def test_maps_of_another_kind_are_one_error(saved: Path, tmp_path: Path, maps: np.ndarray) -> None:
    (tmp_path / "explanation.json").write_bytes((saved / "explanation" / "explanation.json").read_bytes())
    np.savez(tmp_path / "maps.npz", maps=maps)
    with pytest.raises(GamlensError, match=r"2 rows in explanation.json"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("window", [0, 0, "1", 1]), ("size", [[], 3]), ("name", 5)])
def test_an_edited_gallery_is_one_error(saved: Path, tmp_path: Path, key: str, value: object) -> None:
    with np.load(saved / "gallery.npz") as found:
        arrays = dict(found)
    record = json.loads(arrays["record"].tobytes())
    record["images"][1][key] = value
    arrays["record"] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    np.savez(tmp_path / "gallery.npz", **arrays)
    with pytest.raises(GamlensError, match="as a gallery"):
        Gallery.load(tmp_path / "gallery.npz")


def test_a_gallery_of_whole_numbers_is_one_error(saved: Path, tmp_path: Path) -> None:
    with np.load(saved / "gallery.npz") as found:
        arrays = {name: array.astype(np.int8) if name == "embeddings" else array for name, array in found.items()}
    np.savez(tmp_path / "gallery.npz", **arrays)
    with pytest.raises(GamlensError, match=r"embeddings is torch.int8"):
        Gallery.load(tmp_path / "gallery.npz")


def test_pipes_are_not_read(saved: Path, tmp_path: Path) -> None:
    """A pipe without a writer would block for ever."""
    os.mkfifo(tmp_path / "gallery.npz")
    with pytest.raises(GamlensError, match="is a pipe or a device"):
        Gallery.load(tmp_path / "gallery.npz")
    os.mkfifo(tmp_path / "explanation.json")
    (tmp_path / "maps.npz").write_bytes((saved / "explanation" / "maps.npz").read_bytes())
    with pytest.raises(GamlensError, match="is a pipe or a device"):
        Explanation.load(tmp_path)
