"""CUB-200-2011: lists by id, boxes cut to the image, masks by majority."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gamlens.data import Box, cub, small
from gamlens.data.cub import VoteMask
from gamlens.errors import GamlensError

ALBATROSS, BUNTING = "001.Black_footed_Albatross", "014.Indigo_Bunting"
A1, A2 = f"{ALBATROSS}/Black_Footed_Albatross_0001_11.jpg", f"{ALBATROSS}/Black_Footed_Albatross_0002_55.jpg"
B1, B2 = f"{BUNTING}/Indigo_Bunting_0001_12.jpg", f"{BUNTING}/Indigo_Bunting_0002_13.jpg"
LISTS = {
    "images.txt": f"1 {B1}\n2 {A2}\n3 {A1}\n4 {B2}\n",
    "classes.txt": f"1 {ALBATROSS}\n2 {BUNTING}\n",
    "image_class_labels.txt": "1 2\n2 1\n3 1\n4 2\n",
    "train_test_split.txt": "1 0\n2 1\n3 0\n4 0\n",
    "bounding_boxes.txt": "1 1.0 2.0 4.0 3.0\n2 0.0 0.0 8.0 6.0\n3 2.5 1.5 3.0 2.0\n4 0.0 0.0 2.0 2.0\n",
}
VOTES = np.tile(np.array([0, 51, 102, 127, 128, 153, 204, 255], np.uint8), (6, 1))
BIRD = np.tile(np.array([0, 0, 0, 0, 1, 1, 1, 1], bool), (6, 1))


@pytest.fixture
def top(tmp_path, image) -> Path:
    found = tmp_path / "CUB_200_2011"
    for name in (A1, A2, B1, B2):
        image(found / "images" / name, (6, 8))
    for name, contents in LISTS.items():
        (found / name).write_text(contents)
    return found


def votes(folder: Path, name: str, picture: Image.Image | None = None) -> Path:
    path = (folder / "segmentations" / name).with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture or Image.fromarray(VOTES)).save(path)
    return path


def rewrite(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_exact(top) -> None:
    found = cub(top)
    assert (found.name, found.classes) == ("cub", ("Black footed Albatross", "Indigo Bunting"))
    assert [sample.name for sample in found] == [A1, B1, B2]
    one, two, _ = found
    assert (one.image, one.labels, one.size) == (str(top / "images" / A1), (0,), (6, 8))
    assert one.boxes == (Box(0, 2.5, 1.5, 5.5, 3.5),)
    assert (two.labels, two.boxes) == ((1,), (Box(1, 1.0, 2.0, 5.0, 5.0),))
    assert one.mask is None
    with pytest.raises(GamlensError, match="has no mask"):
        one.load_mask(0)


def test_splits_and_limit(top) -> None:
    names = {split: [s.name for s in cub(top, split=split)] for split in (None, "test", "train", "all")}
    assert names == {None: [A1, B1, B2], "test": [A1, B1, B2], "train": [A2], "all": [A1, A2, B1, B2]}
    assert [s.name for s in cub(top, limit=2)] == [A1, B1]
    assert [s.name for s in cub(top, split="all", limit=2)] == [A1, A2]
    with pytest.raises(GamlensError, match=r"no split 'val'.*test.*train.*all"):
        cub(top, split="val")


def test_only_what_is_asked_for_is_needed(top) -> None:
    (top / "images" / B2).unlink()
    (top / "train_test_split.txt").unlink()
    assert [s.name for s in cub(top, split="all", limit=3)] == [A1, A2, B1]


def test_a_split_without_images(top) -> None:
    (top / "train_test_split.txt").write_text("1 1\n2 1\n3 1\n4 1\n")
    with pytest.raises(GamlensError, match=r"images\.txt' lists no image of the split 'test'"):
        cub(top)


@pytest.mark.parametrize("root", ["", "CUB_200_2011"])
@pytest.mark.parametrize("place", ["", "CUB_200_2011"])
def test_root_and_place_of_the_masks(top, root, place) -> None:
    png = votes(top.parent / place, A1)
    one, two, _ = cub(top.parent / root)
    assert Path(one.image).is_file()
    assert one.mask == VoteMask(str(png), 0, (6, 8))
    assert two.mask is None


def test_masks_beside_the_current_folder(top, monkeypatch) -> None:
    votes(top.parent, A1)
    monkeypatch.chdir(top)
    assert cub(".")[0].mask is not None


def test_the_majority_is_the_bird(top) -> None:
    votes(top, A1)
    one = cub(top)[0]
    found = one.load_mask(0)
    assert found.dtype == bool
    assert np.array_equal(found, BIRD)
    assert not one.load_mask(1).any()
    assert one.load_mask(1).shape == (6, 8)
    assert one.void() is None
    assert len(small(cub(top), 100, masks=True).items) == 1


@pytest.mark.parametrize("mode", ["LA", "RGB", "RGBA", "P"])
def test_grey_in_other_modes(top, mode) -> None:
    votes(top, A1, Image.fromarray(VOTES).convert(mode))
    assert np.array_equal(cub(top)[0].load_mask(0), BIRD)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.fromarray(VOTES.astype(np.uint16) * 257), r"\.png' is I;16, not grey"),
        (Image.fromarray(VOTES[:, :4]), r"\.png' is 4 x 6 pixels, its image 8 x 6"),
    ],
)
def test_masks_of_another_kind(top, picture, message) -> None:
    votes(top, A1, picture)
    with pytest.raises(GamlensError, match=message):
        cub(top)[0].load_mask(0)


def test_a_broken_mask(top) -> None:
    votes(top, A1).write_text("no picture")
    with pytest.raises(GamlensError, match=r"Cannot read '.*_0001_11\.png' as a mask"):
        cub(top)[0].load_mask(0)


@pytest.mark.parametrize("name", LISTS)
def test_missing_lists(top, name) -> None:
    (top / name).unlink()
    with pytest.raises(GamlensError, match=rf"There is no list .*expected at .*CUB_200_2011/{name}'.*Unpack"):
        cub(top.parent)


def test_missing_images(top) -> None:
    (top / "images" / B1).unlink()
    with pytest.raises(GamlensError, match=r"1 of 3 images .*images\.txt.*Indigo_Bunting_0001_12\.jpg"):
        cub(top)
    shutil.rmtree(top / "images")
    with pytest.raises(GamlensError, match=r"folder of images.*CUB_200_2011/images'"):
        cub(top)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("images.txt", f"2 {A2}", "2", r"Line 2 of '.*images\.txt' is not `id path`: found '2'"),
        ("classes.txt", f"2 {BUNTING}", "2", r"Line 2 of '.*classes\.txt'"),
        ("image_class_labels.txt", "3 1", "3", r"Line 3 of '.*image_class_labels\.txt'"),
        ("image_class_labels.txt", "3 1", "2 1", r"Line 3 of '.*image_class_labels\.txt' has the id '2'"),
        ("train_test_split.txt", "3 0", "3 2", r"Line 3 of '.*train_test_split\.txt'.*found '3 2'.*0 or 1"),
        ("bounding_boxes.txt", "3 2.5 1.5", "3 2.5", r"Line 3 of '.*bounding_boxes\.txt'"),
        ("bounding_boxes.txt", "3 2.5", "3 x", r"Line 3 of '.*bounding_boxes\.txt'.*found '3 x 1\.5"),
    ],
)
def test_broken_lines(top, name, old, new, message) -> None:
    rewrite(top / name, old, new)
    with pytest.raises(GamlensError, match=message):
        cub(top)


@pytest.mark.parametrize("name", ["image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"])
def test_an_id_without_a_line(top, name) -> None:
    rewrite(top / name, "3 ", "33 ")
    with pytest.raises(GamlensError, match=rf"no line in '.*{name}' for the id '3'"):
        cub(top)


def test_an_unknown_class(top) -> None:
    rewrite(top / "image_class_labels.txt", "3 1", "3 7")
    with pytest.raises(GamlensError, match=r"id 3 in '.*image_class_labels\.txt' has the class '7', not one of the 2"):
        cub(top)


def test_boxes_are_cut_to_the_image(top) -> None:
    rewrite(top / "bounding_boxes.txt", "3 2.5 1.5 3.0 2.0", "3 -1.0 -2.0 20.0 5.5")
    rewrite(top / "bounding_boxes.txt", "1 1.0 2.0 4.0 3.0", "1 1.0 2.0 4.0 9.0")
    one, two, _ = cub(top)
    assert (one.boxes, two.boxes) == ((Box(0, 0.0, 0.0, 8.0, 3.5),), (Box(1, 1.0, 2.0, 5.0, 6.0),))


@pytest.mark.parametrize("box", ["8 0 2 2", "0 6 2 2", "-3 0 3 2", "0 -3 3 3", "1 1 0 2", "1 1 2 -1", "nan 1 2 2"])
def test_boxes_outside_of_the_image(top, box) -> None:
    rewrite(top / "bounding_boxes.txt", "3 2.5 1.5 3.0 2.0", f"3 {box}")
    message = r"box of id 3 in '.*bounding_boxes\.txt' has no part inside of its image of 8 x 6 pixels: found x="
    with pytest.raises(GamlensError, match=message):
        cub(top)


def test_an_image_that_cannot_be_read_is_told_when_it_is_measured(top) -> None:
    (top / "images" / A1).write_text("no picture")
    one = cub(top)[0]
    assert (one.size, one.boxes) == (None, (Box(0, 2.5, 1.5, 5.5, 3.5),))
