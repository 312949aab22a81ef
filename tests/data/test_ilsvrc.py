"""ILSVRC in Kaggle's layout and in class folders."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from gamlens.data import Box, Dataset, ilsvrc
from gamlens.errors import GamlensError

V = "ILSVRC2012_val_0000000"
NOTES = Path("Annotations/CLS-LOC/val")


@pytest.fixture
def kaggle(tmp_path, image, xml) -> Path:
    for number in (3, 1, 2):
        image(tmp_path / f"Data/CLS-LOC/val/{V}{number}.JPEG")
    xml(tmp_path / NOTES / f"{V}1.xml", [("n03", 0, 1, 5, 4), ("n03", 2, 2, 8, 6)], (12, 16))
    xml(tmp_path / NOTES / f"{V}3.xml", [("n01", 1, 1, 2, 2)])
    (tmp_path / "LOC_synset_mapping.txt").write_text("n03 tench, Tinca tinca\nn01 cock\n")
    (tmp_path / "LOC_val_solution.csv").write_text(
        f"ImageId,PredictionString\n{V}3,n01 1 1 2 2 \n{V}1,n03 0 1 5 4 n03 2 2 8 6 \n{V}2,n01 3 1 4 5 \n"
    )
    return tmp_path


def exact(found: Dataset) -> None:
    assert found.classes == ("tench, Tinca tinca", "cock")
    assert [(s.name, s.labels, s.size) for s in found] == [
        (f"{V}1", (0,), (12, 16)),
        (f"{V}2", (1,), (6, 8)),
        (f"{V}3", (1,), (6, 8)),
    ]
    assert [s.boxes for s in found] == [
        (Box(0, 0.0, 1.0, 5.0, 4.0), Box(0, 2.0, 2.0, 8.0, 6.0)),
        (Box(1, 3.0, 1.0, 4.0, 5.0),),
        (Box(1, 1.0, 1.0, 2.0, 2.0),),
    ]
    assert all(Path(s.image).is_file() for s in found)


def test_kaggle(kaggle) -> None:
    exact(ilsvrc(kaggle))
    assert [s.name for s in ilsvrc(kaggle, limit=2)] == [f"{V}1", f"{V}2"]


@pytest.mark.parametrize("inside", [True, False])
def test_kaggle_as_the_zip_unpacks_with_the_lists_above(kaggle, tmp_path, inside) -> None:
    (tmp_path / "ILSVRC").mkdir()
    for name in ("Data", "Annotations"):
        shutil.move(tmp_path / name, tmp_path / "ILSVRC" / name)
    exact(ilsvrc(tmp_path / "ILSVRC" if inside else tmp_path))


def test_without_the_list_of_answers_the_xml_says(kaggle) -> None:
    (kaggle / "LOC_val_solution.csv").unlink()
    found = ilsvrc(kaggle)
    assert [s.labels for s in found] == [(0,), (), (1,)]
    assert found[1].boxes == ()
    assert found[1].size is None


@pytest.fixture
def folders(tmp_path, image, xml) -> Path:
    for wnid, number in (("n03", 1), ("n01", 2), ("n01", 3)):
        image(tmp_path / f"val/{wnid}/{V}{number}.JPEG")
    xml(tmp_path / f"bbox/val/{V}3.xml", [("n01", 1, 1, 2, 2)])
    return tmp_path


def test_class_folders(folders) -> None:
    found = ilsvrc(folders)
    assert found.classes == ("n01", "n03")
    assert [(s.name, s.labels) for s in found] == [(f"{V}1", (1,)), (f"{V}2", (0,)), (f"{V}3", (0,))]
    assert [s.boxes for s in found] == [(), (), (Box(0, 1.0, 1.0, 2.0, 2.0),)]


def test_class_folders_with_kaggle_annotations_and_mapping(folders) -> None:
    (folders / "Annotations/CLS-LOC").mkdir(parents=True)
    shutil.move(folders / "bbox/val", folders / NOTES)
    (folders / "LOC_synset_mapping.txt").write_text("n02 b\nn03 c\nn01 a\n")
    found = ilsvrc(folders)
    assert found.classes == ("b", "c", "a")
    assert [s.labels for s in found] == [(1,), (2,), (2,)]
    assert [len(s.boxes) for s in found] == [0, 0, 1]


def test_train_has_annotations_in_class_folders(tmp_path, image, xml) -> None:
    image(tmp_path / "Data/CLS-LOC/train/n01/n01_7.JPEG")
    xml(tmp_path / "Annotations/CLS-LOC/train/n01/n01_7.xml", [("n01", 1, 2, 3, 4)])
    (only,) = ilsvrc(tmp_path, split="train")
    assert (only.name, only.labels, only.boxes) == ("n01_7", (0,), (Box(0, 1.0, 2.0, 3.0, 4.0),))


@pytest.mark.parametrize("missing", ["LOC_synset_mapping.txt", "Data/CLS-LOC/val"])
def test_missing_parts_are_named_with_their_place(kaggle, missing) -> None:
    part = kaggle / missing
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    with pytest.raises(GamlensError) as error:
        ilsvrc(kaggle)
    assert str(part) in str(error.value)


def test_without_answers_and_annotations(kaggle) -> None:
    (kaggle / "LOC_val_solution.csv").unlink()
    shutil.rmtree(kaggle / "Annotations")
    with pytest.raises(GamlensError, match=r"LOC_val_solution\.csv"):
        ilsvrc(kaggle)


def test_a_listed_image_that_is_missing(kaggle) -> None:
    (kaggle / f"Data/CLS-LOC/val/{V}2.JPEG").unlink()
    with pytest.raises(GamlensError, match=rf"1 of 3 images .*{V}2\.JPEG"):
        ilsvrc(kaggle)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("<annotation><object>", "no element found"),
        ("<annotation><object><name>n01</name></object></annotation>", "has no <bndbox/xmin>"),
        (
            "<annotation><object><name>n99</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
            "</bndbox></object></annotation>",
            "n99",
        ),
    ],
)
def test_broken_xml_is_named(kaggle, contents, message) -> None:
    (kaggle / NOTES / f"{V}3.xml").write_text(contents)
    with pytest.raises(GamlensError, match=message) as error:
        ilsvrc(kaggle)
    assert f"{V}3.xml" in str(error.value)


@pytest.mark.parametrize("row", [f"{V}1,n03 0 1 5", f"{V}1,n03 0 1 5 x", f"{V}1,", f"{V}1"])
def test_broken_answers_are_named(kaggle, row) -> None:
    (kaggle / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{row}\n")
    with pytest.raises(GamlensError, match=r"Line 2 of .*LOC_val_solution\.csv"):
        ilsvrc(kaggle)


@pytest.mark.shared
def test_the_real_sample(shared_data) -> None:
    found = ilsvrc(shared_data / "ILSVRC")
    counts = Counter(s.labels for s in found)
    assert (len(found), len(found.classes), len(counts), set(counts.values())) == (1000, 1000, 250, {4})
    assert {labels[0] % 4 for labels in counts} == {0}
    assert sum(len(s.boxes) for s in found) == 1579
    assert all(s.boxes and min(s.size or (0, 0)) == 256 for s in found)
    assert all(box.label == s.labels[0] for s in found for box in s.boxes)
    assert found[0].boxes == (Box(516, 13.0, 1.0, 326.0, 255.0),)


@pytest.mark.shared
def test_the_real_imagenette(shared_data) -> None:
    found = ilsvrc(shared_data / "imagenette")
    assert (len(found), len(found.classes), found.classes[0]) == (250, 10, "tench")
    assert set(Counter(s.labels for s in found).values()) == {25}
    assert {s.size for s in found} == {(224, 224)}
