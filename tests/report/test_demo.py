"""The demo page: whole, self-contained, with the pictures it promises."""

from __future__ import annotations

import re
from pathlib import Path

import nets
import numpy as np
import pytest
from PIL import Image

from gamlens import GamlensError, Lens, Transform
from gamlens.data.photos import PHOTOS, installed, path, photo, scene
from gamlens.models import DEFAULT_MODEL
from gamlens.render import Grid, Panel
from gamlens.report import demo

SECTIONS = (
    "Why a cheetah?",
    "Two things in one photo",
    "Why are these two similar?",
    "A pair that does not match",
    "Where Grad-CAM fails, and why",
    "Block by block",
    "Sharper maps",
    "What is alike, and what still differs?",
    "Why this one rather than that one?",
    "Which place matches which?",
    "Found, and why",
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
    assert text.count("<img") == 4 + 6 + 8 + 2 + 10 + 8 + (12 + 3) + 6 + 4 + 1 + 2 * 13
    assert not re.search(r"(src|href)=.https?:", text)
    assert len(said) == demo.STEPS


@pytest.mark.slow
def test_pictures_are_written(made: tuple[Path, list[str]]) -> None:
    files = sorted(made[0].parent.glob("*.png"))
    assert len(files) == len(SECTIONS) + 2  # the sharper maps are two, and so are the searches
    assert files[-1].name == "11-found-and-why.png"
    assert all(Image.open(file).width > 400 for file in files)


@pytest.mark.slow
def test_sharper_maps_stand_beside_those_without() -> None:
    """Of every photo and of the pair, the last picture is the refined map, and another one than before."""
    lens = Lens(DEFAULT_MODEL)
    section = demo.sharper_maps(lens)
    classes, pair = (block for block in section.blocks if isinstance(block, Grid))
    _, plain, sharp = classes.rows
    wanted = lens.classify(photo("lion"), sharp=True).overlay()
    assert np.abs(pixels(sharp[1]) - np.asarray(wanted, dtype=float)).mean() < 0.5
    for before, after in (*zip(plain, sharp, strict=True), pair.rows[0][1:]):
        assert np.abs(pixels(before) - pixels(after)).mean() > 2
    assert "`lens.classify(x, sharp=True)`" in section.lead
    assert "`--sharp`" in section.lead


@pytest.mark.slow
def test_a_region_finds_what_is_in_it() -> None:
    """The whole picture finds the cat first, its half with the cup the cup, by a map that lies in that half."""
    section = demo.found_in_photos(Lens(DEFAULT_MODEL))
    whole, part = (block for block in section.blocks if isinstance(block, Grid))
    names = [[panel.caption for panel in grid.rows[0] if panel] for grid in (whole, part)]
    assert [own[1] for own in names] == ["cat", "coffee"]
    on_query = part.rows[2][1]
    assert on_query is not None
    drawn = np.asarray(on_query.image.convert("HSV"), dtype=float)[:, :, 1]
    middle = drawn.shape[1] // 2
    assert 5 * drawn[:, : middle - 20].mean() < drawn[:, middle:].mean()


def pixels(panel: Panel | None) -> np.ndarray:
    assert panel is not None
    return np.asarray(panel.image, dtype=float)


def test_scene_holds_both_photos() -> None:
    picture = scene("cat", "coffee", side=64)
    assert picture.size == (128, 64)
    halves = np.asarray(picture, dtype=float)
    assert abs(halves[:, :64].mean((0, 1)) - halves[:, 64:].mean((0, 1))).max() > 20


def test_photos_of_packages_that_are_missing_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `demo` does not install scikit-learn, which has two of the photos."""
    for name in ("pagoda", "flower"):
        monkeypatch.setitem(PHOTOS, name, ("no_such_package", f"{name}.jpg"))
    assert installed() == [name for name in PHOTOS if name not in ("pagoda", "flower")]
    section = demo.found_in_photos(Lens(nets.small().float(), transform=Transform((64, 64))))
    assert len([block for block in section.blocks if isinstance(block, Grid)]) == 2


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHOTOS, "lion", ("no_such_package", "lion.jpg"))
    with pytest.raises(GamlensError, match=r"needs the package 'no_such_package': pip install 'gamlens\[demo\]'"):
        path("lion")


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GamlensError, match="Cannot make the folder"):
        demo.run(tmp_path / "file" / "demo")
