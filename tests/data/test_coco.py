"""COCO: categories to labels, boxes, masks against pycocotools' own reading."""

import contextlib
import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gamlens.data import Box, coco
from gamlens.errors import GamlensError

SQUARE = [[1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0]]
CORNER = [[6.0, 4.0, 8.0, 4.0, 8.0, 6.0, 6.0, 6.0]]
CROWD = {"size": [6, 8], "counts": [0, 6, 42]}  # the first column


def note(number: int, category: int, shape: Any, *, crowd: int = 0, bbox: tuple[float, ...] = (1, 1, 3, 2)) -> dict:
    return {"id": number, "image_id": 5, "category_id": category, "bbox": bbox, "iscrowd": crowd, "segmentation": shape}


CONTENTS = {
    "images": [
        {"id": 9, "file_name": "000002.jpg", "height": 6, "width": 8},
        {"id": 5, "file_name": "000001.jpg", "height": 6, "width": 8},
    ],
    "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 13, "name": "stop sign"}],
    "annotations": [
        note(1, 90, SQUARE),
        note(2, 90, CORNER, bbox=(6.5, 4, 1.5, 2)),
        note(3, 1, CROWD, crowd=1, bbox=(0, 0, 1, 6)),
        note(4, 13, {"size": [6, 8], "counts": "d1`0"}, bbox=(7, 0, 1, 6)),
    ],
}


@pytest.fixture
def root(tmp_path, image) -> Path:
    for name in ("000001", "000002"):
        image(tmp_path / f"val2017/{name}.jpg")
    write(tmp_path, CONTENTS)
    return tmp_path


def write(root: Path, contents: Any) -> None:
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations/instances_val2017.json").write_text(json.dumps(contents))


@pytest.mark.parametrize("split", [None, "val", "val2017"])
def test_exact(root, split) -> None:
    found = coco(root, split=split)
    assert found.classes == ("person", "stop sign", "toothbrush")
    one, two = found
    assert (one.name, one.labels, one.size, two.name, two.labels, two.boxes) == (
        *("000001", (1, 2), (6, 8)),
        *("000002", (), ()),
    )
    assert one.boxes == (Box(2, 1.0, 1.0, 4.0, 3.0), Box(2, 6.5, 4.0, 8.0, 6.0), Box(1, 7.0, 0.0, 8.0, 6.0))


def test_masks(root) -> None:
    one, two = pickle.loads(pickle.dumps(coco(root)))
    expected = np.zeros((6, 8), bool)
    expected[1:3, 1:4] = expected[4:6, 6:8] = True
    assert np.array_equal(one.load_mask(2), expected)
    assert one.load_mask(2).dtype == bool
    column = np.zeros((6, 8), bool)
    column[:, 0] = True
    assert np.array_equal(one.void(), column)
    assert not one.load_mask(0).any()
    assert two.void() is None
    assert two.load_mask(2).shape == (6, 8)
    assert not two.load_mask(2).any()


def test_a_rewritten_file_is_read_anew(root) -> None:
    assert len(coco(root)[0].boxes) == 3
    write(root, {**CONTENTS, "annotations": []})
    file = root / "annotations/instances_val2017.json"
    changed = file.stat().st_mtime_ns + 10**9
    os.utime(file, ns=(changed, changed))
    assert coco(root)[0].boxes == ()


def test_missing_parts(root) -> None:
    with pytest.raises(GamlensError, match=r"annotations/instances_train2017\.json"):
        coco(root, split="train")
    one = coco(root)[0]
    (root / "val2017/000001.jpg").unlink()
    with pytest.raises(GamlensError, match=r"1 of 2 images .*val2017/000001\.jpg"):
        coco(root)
    (root / "annotations/instances_val2017.json").unlink()
    with pytest.raises(GamlensError, match=r"instances_val2017\.json' is gone"):
        one.load_mask(0)


def test_pycocotools_is_needed_for_masks_only(root, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    one = coco(root)[0]
    with pytest.raises(GamlensError, match=r"'pycocotools'.*gamlens\[eval\]"):
        one.load_mask(2)


@pytest.mark.parametrize(
    "contents",
    [
        [],
        {"images": []},
        {**CONTENTS, "annotations": [note(1, 7, SQUARE)]},
        {**CONTENTS, "annotations": [{"id": 1, "image_id": 5, "category_id": 1}]},
        {**CONTENTS, "images": [{"id": 5}]},
    ],
)
def test_another_json_is_named(root, contents) -> None:
    write(root, contents)
    with pytest.raises(GamlensError, match=r"instances_val2017\.json' is not a COCO instances file"):
        coco(root)


def test_broken_json_is_named(root) -> None:
    (root / "annotations/instances_val2017.json").write_text('{"images": [')
    with pytest.raises(GamlensError, match=r"Cannot read .*instances_val2017\.json' as JSON"):
        coco(root)


@pytest.mark.shared
def test_the_real_sample_against_pycocotools(shared_data) -> None:
    from pycocotools import mask as coder
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        theirs = COCO(str(shared_data / "coco/annotations/instances_val2017.json"))
    found = coco(shared_data / "coco")
    crowds = [a for a in theirs.anns.values() if a["iscrowd"]]
    assert (len(found), len(found.classes), len(theirs.anns), len(crowds)) == (110, 80, 984, 13)
    assert sum(len(s.boxes) for s in found) == 984 - 13
    assert (found.classes[0], found.classes[11], found.classes[79]) == ("person", "stop sign", "toothbrush")
    ids = sorted(theirs.cats)
    for sample in found.samples[::4]:
        for label in sample.labels:
            anns = theirs.loadAnns(theirs.getAnnIds(imgIds=int(sample.name), catIds=ids[label], iscrowd=False))
            mask = sample.load_mask(label)
            assert np.array_equal(mask, np.any([theirs.annToMask(a) for a in anns], axis=0))
            if len(anns) == 1 and anns[0]["area"] > 500:  # the area that the owners give, by polygon
                assert mask.sum() == pytest.approx(anns[0]["area"], rel=0.05)
    for crowd in crowds:
        (sample,) = (s for s in found if int(s.name) == crowd["image_id"])
        void = sample.void()
        assert void is not None
        assert void.sum() == coder.area(theirs.annToRLE(crowd))  # the file's own `area` is larger for most crowds


WRONG_SHAPES: dict[str, tuple[Any, str]] = {
    "run lengths of another size": ({"size": [100_000, 100_000], "counts": [0, 10**10]}, "of the size"),
    "compressed ones of another size": ({"size": [100_000, 100_000], "counts": "d1`0"}, "of the size"),
    "run lengths that are too long": ({"size": [6, 8], "counts": [0, 10**7]}, "Cannot read a mask"),
    "a polygon far outside": ([[0, 0, 2e8, 0, 2e8, 3]], "far beyond its image"),
    "a polygon of NaN": ([[0, 0, float("nan"), 0, 5, 3]], "far beyond its image"),
    "an endless outline": ([[0, 0, 8, 6] * 1000], "longer than the image has pixels"),
    "a polygon of text": ([["a", 0, 1, 2, 3, 4]], "Cannot read a mask"),
    "a point": ([[0, 0]], "Cannot read a mask"),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_a_mask_that_cannot_be_is_refused(root, name, monkeypatch) -> None:
    """A polygon of three points took 15 GB: pycocotools holds numbers for every pixel of its outline."""
    shape, message = WRONG_SHAPES[name]
    write(root, CONTENTS | {"annotations": [note(1, 90, shape)]})
    if message != "Cannot read a mask":
        monkeypatch.setattr("pycocotools.mask.frPyObjects", None)
        monkeypatch.setattr("pycocotools.mask.decode", None)
    with pytest.raises(GamlensError, match=rf"(?=.*{message}).*a mask of image 5 in .*instances_val2017"):
        coco(root)[0].load_mask(2)


def test_a_polygon_may_reach_a_little_beyond_its_image(root) -> None:
    write(root, CONTENTS | {"annotations": [note(1, 90, [[-3.0, 1, 20, 1, 20, 3, -3, 3]])]})
    assert coco(root)[0].load_mask(2)[1:3].all()


@pytest.mark.parametrize(
    ("size", "message"),
    [((100_000, 100_000), "100000 x 100000 pixels"), ((0, 8), "8 x 0"), ((1e400, 8), "OverflowError")],
)
def test_an_image_of_an_absurd_size_is_refused(root, size, message) -> None:
    images = [{"id": 5, "file_name": "000001.jpg", "height": size[0], "width": size[1]}]
    write(root, CONTENTS | {"images": images})
    with pytest.raises(GamlensError, match=message):
        coco(root)
