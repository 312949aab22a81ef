"""Class names of a data set and of a model."""

import numpy as np
import pytest

from gamlens import GamlensError, GamlensWarning
from gamlens.data import Box, Dataset, Sample, align, match
from gamlens.data.class_names import CHEST_FINDINGS, COCO_CLASSES, VOC_CLASSES
from gamlens.models.zoo.torchvision import imagenet_labels

SHARED = {
    "airplane": "aeroplane",
    "bicycle": "bicycle",
    "bird": "bird",
    "boat": "boat",
    "bottle": "bottle",
    "bus": "bus",
    "car": "car",
    "cat": "cat",
    "chair": "chair",
    "couch": "sofa",
    "cow": "cow",
    "dining table": "diningtable",
    "dog": "dog",
    "horse": "horse",
    "motorcycle": "motorbike",
    "person": "person",
    "potted plant": "pottedplant",
    "sheep": "sheep",
    "train": "train",
    "tv": "tvmonitor",
}


def test_voc_is_in_coco_either_way() -> None:
    found = match(COCO_CLASSES, VOC_CLASSES)
    assert {COCO_CLASSES[theirs]: VOC_CLASSES[ours] for theirs, ours in found.items()} == SHARED
    assert match(VOC_CLASSES, COCO_CLASSES) == {ours: theirs for theirs, ours in found.items()}


def test_names_match_whole_and_once() -> None:
    assert match(["hot dog", "teddy-bear", "Pleural_Thickening"], ["dog", "teddy bear", "pleural thickening"]) == {
        1: 1,
        2: 2,
    }
    assert match(["crane", "crane", "cat"], ["crane", "cat"]) == {2: 1}
    assert match(["crane", "cat"], ["crane", "cat", "Crane"]) == {1: 1}
    assert match(CHEST_FINDINGS, VOC_CLASSES) == {}
    assert match(imagenet_labels(), imagenet_labels()).items() <= {k: k for k in range(1000)}.items()


class Numbers:
    """A mask whose every pixel is the number asked for."""

    def read(self, label: int) -> np.ndarray:
        return np.full((1, 1), label)

    def void(self) -> np.ndarray:
        return np.ones((1, 1), bool)


def dataset(classes: tuple[str, ...]) -> Dataset:
    boxes = (Box(0, 0, 0, 1, 1), Box(2, 0, 0, 2, 2))
    return Dataset("mine", "x", classes, (Sample("a", "a.png", (0, 1, 2), boxes, (4, 4), Numbers()), Sample("b", "b")))


def test_align_renumbers_labels_boxes_and_masks() -> None:
    with pytest.warns(GamlensWarning, match=r"The model has 2 of the 3 classes of mine. Left out are zebra\.$"):
        found = align(dataset(("tv", "zebra", "cat")), ["cat", "dog", "sofa", "tvmonitor"])
    one, two = found
    assert found.classes == ("cat", "dog", "sofa", "tvmonitor")
    assert one.labels == (0, 3)
    assert one.boxes == (Box(3, 0, 0, 1, 1), Box(0, 0, 0, 2, 2))
    assert (one.load_mask(0).item(), one.load_mask(3).item()) == (2, 0)
    assert one.void() is not None
    assert two == Sample("b", "b")


def test_align_by_name_in_another_order() -> None:
    found = align(dataset(("a", "b", "c")), ["c", "a", "b"])
    assert found[0].labels == (0, 1, 2)
    assert [box.label for box in found[0].boxes] == [1, 0]


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (("a", "b", "c"), ["a", "b", "c"]),
        (("a", "b", "c"), []),
        (("0", "1", "2"), ["x", "y"]),
        (("a", "b", "c"), ["x", "b, or so", "y"]),
    ],
)
def test_align_leaves_alone_what_fits_or_has_no_names(classes: tuple[str, ...], labels: list[str]) -> None:
    given = dataset(classes)
    assert align(given, labels) is given


def test_no_shared_class_is_an_error() -> None:
    with pytest.raises(
        GamlensError, match=r"The model has 2 classes \(x, y, .*mine has 3 \(a, b, c.*no name is in both"
    ):
        align(dataset(("a", "b", "c")), ["x", "y"])
