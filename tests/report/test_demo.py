"""The demo page: whole, self-contained, with the pictures it promises."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gamlens import GamlensError
from gamlens.data.photos import PHOTOS, path, scene
from gamlens.report import demo

SECTIONS = (
    "Why a cheetah?",
    "Two things in one photo",
    "Why are these two similar?",
    "A pair that does not match",
    "Where Grad-CAM fails, and why",
    "Block by block",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    said: list[str] = []
    page = demo.run(tmp_path_factory.mktemp("demo") / "new" / "demo", step=said.append)
    return page, said


@pytest.mark.slow
def test_page_is_whole(made: tuple[Path, list[str]]) -> None:
    page, said = made
    text = page.read_text()
    assert [title for title in SECTIONS if f">{title}</h2>" in text] == list(SECTIONS)
    assert text.count("<img") == 4 + 6 + 8 + 2 + 10 + 8
    assert not re.search(r"(src|href)=.https?:", text)
    assert len(said) == demo.STEPS


@pytest.mark.slow
def test_pictures_are_written(made: tuple[Path, list[str]]) -> None:
    files = sorted(made[0].parent.glob("*.png"))
    assert len(files) == len(SECTIONS)
    assert all(Image.open(file).width > 400 for file in files)


def test_scene_holds_both_photos() -> None:
    picture = scene("cat", "coffee", side=64)
    assert picture.size == (128, 64)
    halves = np.asarray(picture, dtype=float)
    assert abs(halves[:, :64].mean((0, 1)) - halves[:, 64:].mean((0, 1))).max() > 20


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHOTOS, "lion", ("no_such_package", "lion.jpg"))
    with pytest.raises(GamlensError, match=r"no_such_package: pip install 'gamlens\[demo\]'"):
        path("lion")


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GamlensError, match="Cannot make the folder"):
        demo.run(tmp_path / "file" / "demo")
