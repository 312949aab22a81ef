"""ChestX-ray8: the odd header, 1024 px boxes on smaller files."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from gamlens.data import Box, chestxray
from gamlens.errors import GamlensError

HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,\n"
ROWS = (
    "00000002_000.png,Infiltrate,256,512,128,64,,,\n"
    "00000001_000.png,Nodule,0,0,1024,1024,,,\n"
    "00000002_000.png,Atelectasis,512.5,0,4,8,,,\n"
)


@pytest.fixture
def root(tmp_path, image) -> Path:
    for number in (1, 2, 3):
        image(tmp_path / f"images/0000000{number}_000.png", (64, 128))
    (tmp_path / "BBox_List_2017.csv").write_text(HEADER + ROWS)
    return tmp_path


def test_exact(root) -> None:
    found = chestxray(root)
    assert (len(found.classes), found.classes[3], found.classes[13]) == (14, "Infiltration", "Hernia")
    one, two = found
    assert (one.name, one.labels, one.boxes) == ("00000001_000.png", (5,), (Box(5, 0.0, 0.0, 128.0, 64.0),))
    assert (two.labels, two.size) == ((0, 3), (64, 128))
    assert two.boxes == (Box(3, 32.0, 32.0, 48.0, 36.0), Box(0, 64.0625, 0.0, 64.5625, 0.5))


def test_all_gives_the_rest_without_labels(root) -> None:
    found = chestxray(root, split="all")
    assert [(s.name[:8], len(s.boxes)) for s in found] == [("00000001", 1), ("00000002", 2), ("00000003", 0)]
    assert (found[2].labels, found[2].size) == ((), None)
    with pytest.raises(GamlensError, match="no split 'val'"):
        chestxray(root, split="val")


def test_folders_as_nih_packs_them(root) -> None:
    for number in (1, 2):
        (root / f"images_00{number}/images").mkdir(parents=True)
        shutil.move(root / f"images/0000000{number}_000.png", root / f"images_00{number}/images")
    assert [Path(s.image).is_file() for s in chestxray(root)] == [True, True]


def test_missing_parts(root) -> None:
    (root / "images/00000002_000.png").unlink()
    with pytest.raises(GamlensError, match=r"1 of 2 images .*images/00000002_000\.png"):
        chestxray(root)
    shutil.rmtree(root / "images")
    with pytest.raises(GamlensError, match=r"folder of images.*/images'"):
        chestxray(root)
    (root / "BBox_List_2017.csv").unlink()
    with pytest.raises(GamlensError, match=r"list of boxes.*BBox_List_2017\.csv"):
        chestxray(root)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", "an empty file"),
        ("path,label\n", "found 'path,label'"),
        (HEADER + "00000001_000.png,Nodule,1,2,3\n", "Row 2 of"),
        (HEADER + "00000001_000.png,Nodule,1,2,3,x\n", "Row 2 of"),
        (HEADER + "00000001_000.png,Nodul,1,2,3,4\n", "'Nodul'.*'Nodule'"),
    ],
)
def test_wrong_lists(root, contents, message) -> None:
    (root / "BBox_List_2017.csv").write_text(contents)
    with pytest.raises(GamlensError, match=message) as error:
        chestxray(root)
    assert "BBox_List_2017.csv" in str(error.value)


@pytest.mark.shared
def test_the_real_sample(shared_data) -> None:
    found = chestxray(shared_data / "ChestX-ray8")
    assert (len(found), sum(len(s.boxes) for s in found)) == (96, 116)
    assert {s.size for s in found} == {(512, 512)}
    counts = Counter(box.label for s in found for box in s.boxes)
    assert [counts[label] for label in range(14)] == [13, 12, 18, 16, 15, 13, 16, 13, 0, 0, 0, 0, 0, 0]
    assert all(0 <= b.x0 < b.x1 <= 512 and 0 <= b.y0 < b.y1 <= 512 for s in found for b in s.boxes)
