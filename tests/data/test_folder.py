"""Folders of images."""

import pytest

from gamlens.data import folder
from gamlens.errors import GamlensError


def test_classes(tmp_path, image) -> None:
    for name in ("val/dog/b.jpg", "val/cat/z.png", "val/cat/deep/a.JPG", "val/dog/._b.jpg", "train/x/1.png"):
        image(tmp_path / name)
    (tmp_path / "val/empty").mkdir()
    (tmp_path / "val/cat/notes.txt").write_text("no image")
    found = folder(tmp_path / "val")
    assert found.classes == ("cat", "dog")
    assert [(s.name, s.labels) for s in found] == [("cat/deep/a.JPG", (0,)), ("cat/z.png", (0,)), ("dog/b.jpg", (1,))]
    assert found[1].image == str(tmp_path / "val/cat/z.png")
    assert folder(tmp_path, split="val").samples == found.samples


def test_flat(tmp_path, image) -> None:
    for name in ("b.png", "a.png", "more/c.png"):
        image(tmp_path / name)
    found = folder(tmp_path)
    assert (found.classes, [(s.name, s.labels) for s in found]) == ((), [("a.png", ()), ("b.png", ())])


def test_nothing_there(tmp_path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(GamlensError, match="no images in"):
        folder(tmp_path)
    with pytest.raises(GamlensError, match=r"split 'val'.*Folders there: cat"):
        folder(tmp_path, split="val")
