"""VOC: palette masks, void, XML boxes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gamlens.data import Box, Sample, voc
from gamlens.data.class_names import VOC_CLASSES
from gamlens.errors import GamlensError

PIXELS = np.array([[0, 8, 8, 255], [15, 8, 0, 255], [15, 15, 0, 0]], np.uint8)


def palette(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.frombytes("P", values.shape[::-1], values.tobytes())
    image.putpalette([number for number in range(256) for _ in range(3)])
    image.save(path)


@pytest.fixture
def devkit(tmp_path, image, xml) -> Path:
    top = tmp_path / "VOCdevkit/VOC2012"
    for name in ("2007_2", "2007_1", "2007_3"):
        image(top / f"JPEGImages/{name}.jpg", (3, 4))
    palette(top / "SegmentationClass/2007_1.png", PIXELS)
    xml(top / "Annotations/2007_1.xml", [("cat", 2, 1, 3, 2), ("dog", 1, 1, 4, 3)], (3, 4))
    xml(top / "Annotations/2007_2.xml", [("tvmonitor", 1, 1, 2, 2)], (3, 4))
    (top / "ImageSets/Segmentation").mkdir(parents=True)
    (top / "ImageSets/Main").mkdir()
    (top / "ImageSets/Segmentation/val.txt").write_text("2007_3\n2007_1\n")
    (top / "ImageSets/Main/val.txt").write_text("2007_2\n2007_1\n")
    (top / "ImageSets/Main/cat_train.txt").write_text("2007_1  1\n2007_2 -1\n")
    return tmp_path


def test_segmentation(devkit) -> None:
    found = voc(devkit)
    assert found.classes == VOC_CLASSES
    one, three = found
    assert (one.name, one.labels, one.size) == ("2007_1", (7, 14), (3, 4))
    assert one.boxes == (Box(7, 2.0, 1.0, 3.0, 2.0), Box(11, 1.0, 1.0, 4.0, 3.0))
    assert np.array_equal(one.load_mask(7), PIXELS == 8)
    assert np.array_equal(one.load_mask(14), PIXELS == 15)
    assert one.load_mask(0).dtype == bool
    assert not one.load_mask(0).any()
    assert np.array_equal(one.void(), PIXELS == 255)
    assert three == Sample("2007_3", str(devkit / "VOCdevkit/VOC2012/JPEGImages/2007_3.jpg"), size=(3, 4))


@pytest.mark.parametrize("root", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_any_of_the_three_roots(devkit, root) -> None:
    assert [s.name for s in voc(devkit / root)] == ["2007_1", "2007_3"]


def test_main_takes_labels_from_the_xml(devkit) -> None:
    one, two = voc(devkit, split="Main/val")
    assert (one.labels, two.labels) == ((7, 11), (19,))
    assert one.mask is not None
    assert [s.name for s in voc(devkit, split="cat_train")] == ["2007_1", "2007_2"]
    shutil.rmtree(devkit / "VOCdevkit/VOC2012/Annotations")
    one, two = voc(devkit, split="Main/val")
    assert (one.labels, two.labels) == ((7, 14), ())


def test_missing_parts(devkit) -> None:
    with pytest.raises(GamlensError, match=r"'trainval'.*ImageSets/Segmentation/trainval\.txt.*Segmentation/val"):
        voc(devkit, split="trainval")
    (devkit / "VOCdevkit/VOC2012/JPEGImages/2007_3.jpg").unlink()
    with pytest.raises(GamlensError, match=r"1 of 2 images.*JPEGImages/2007_3\.jpg"):
        voc(devkit)
    assert len(voc(devkit, limit=1)) == 1
    shutil.rmtree(devkit / "VOCdevkit/VOC2012/JPEGImages")
    with pytest.raises(GamlensError, match=r"folder of images.*VOC2012/JPEGImages"):
        voc(devkit)


def test_wrong_masks(devkit) -> None:
    png = devkit / "VOCdevkit/VOC2012/SegmentationClass/2007_1.png"
    palette(png, np.full((3, 4), 21, np.uint8))
    with pytest.raises(GamlensError, match=r"2007_1\.png' holds the value 21"):
        voc(devkit)
    Image.new("RGB", (4, 3)).save(png)
    with pytest.raises(GamlensError, match=r"2007_1\.png' is RGB"):
        voc(devkit)
    png.write_bytes(b"nothing")
    with pytest.raises(GamlensError, match=r"Cannot read .*2007_1\.png' as a mask"):
        voc(devkit)


def test_an_unknown_object(devkit, xml) -> None:
    xml(devkit / "VOCdevkit/VOC2012/Annotations/2007_1.xml", [("catt", 1, 1, 2, 2)])
    with pytest.raises(GamlensError, match=r"2007_1\.xml' has the class 'catt'.*'cat'"):
        voc(devkit)


@pytest.mark.shared
@pytest.mark.parametrize(("split", "samples", "items"), [("val", 200, 268), ("train", 437, 603)])
def test_the_real_sample(shared_data, split, samples, items) -> None:
    found = voc(shared_data / "VOCdevkit", split=split)
    assert (len(found), sum(len(s.labels) for s in found)) == (samples, items)
    assert all(s.mask and s.labels and min(s.size or (0, 0)) == 256 for s in found)
    for sample in found.samples[:20]:
        void, masks = sample.void(), [sample.load_mask(label) for label in sample.labels]
        assert all(mask.shape == sample.size and mask.any() for mask in masks)
        assert (sum(mask.astype(int) for mask in masks) + void.astype(int)).max() == 1
