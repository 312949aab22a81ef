"""What stands under the maps of a figure, and how few colours show them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import Lens, render
from gamlens.data import load
from gamlens.figures import Example, FigureRequest, from_dataset, make, save
from gamlens.figures.panels import inside, share_in_boxes

SIDE = 160


def naive_share(values: np.ndarray, boxes: list[list[float]]) -> float:
    total = covered = 0.0
    for row, line in enumerate(values.astype(np.float64)):
        for column, value in enumerate(line):
            total += value
            if any(x0 <= column + 0.5 < x1 and y0 <= row + 0.5 < y1 for x0, y0, x1, y1 in boxes):
                covered += value
    return covered / total


def test_share_by_hand() -> None:
    """A box from 0.6 to 2 holds the centre at 1.5 and not the one at 0.5; overlapping boxes count a pixel once."""
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 5.0]])
    assert share_in_boxes(values, torch.tensor([[0.6, 0.0, 2.0, 1.0]])) == 2 / 20
    assert share_in_boxes(values, torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 1.0]])) == 15 / 20
    assert share_in_boxes(values, torch.tensor([[0.0, 0.0, 3.0, 2.0]])) == 1
    assert share_in_boxes(torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 3.0, 2.0]])) == 0


def test_share_against_a_loop() -> None:
    draw = np.random.default_rng(0)
    for _ in range(10):
        values = draw.random((9, 13), dtype=np.float32)
        corners = np.sort(draw.uniform(-1, 14, (3, 2, 2)), axis=2).transpose(0, 2, 1).reshape(3, 4)
        found = share_in_boxes(torch.from_numpy(values), torch.from_numpy(corners))
        assert found == pytest.approx(naive_share(values, corners.tolist()), abs=1e-12)


def test_captions_of_a_data_set_with_boxes(lens: Lens, tmp_path: Path) -> None:
    """Boxes are brought from the image's pixels to the map's; classes, small and pairs show the share, photos not."""
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 255, (90, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "t.csv").write_text("path,label,x0,y0,x1,y1\n0.png,3,0,0,60,90\n1.png,3,30,45,120,90\n")
    data = load("table", tmp_path / "t.csv")
    examples = from_dataset(data, lens, takes="images", count=2)
    result = lens.classify(str(tmp_path / "1.png"), 3, n=2)
    expected = naive_share(result.maps[0].numpy(), [[16, 32, 64, 64]])
    assert inside(result, examples[1]) == f"{100 * expected:.0f} % in box"
    twice = Example(examples[1].image, boxes=((60.0, 90.0, 240.0, 180.0),), size=(180, 240))
    assert inside(result, twice) == inside(result, examples[1])
    assert inside(result, Example(examples[1].image)) == ""
    for name, takes in (("classes", "images"), ("small", "images"), ("cosine", "pairs")):
        grid = make(name, FigureRequest(lens, from_dataset(data, lens, takes=takes, count=2)))
        assert grid.rows[1][0].caption == ""
        assert all(panel.caption.endswith(" % in box") for panel in grid.rows[1][1:])
    grid = make("classes", FigureRequest(lens, examples))
    assert grid.rows[1][1].caption == inside(result, examples[1])
    single = make("small", FigureRequest(lens, examples)).rows[1][1]
    assert single.caption == inside(lens.classify(str(tmp_path / "1.png"), 3, n=1), examples[1])


def smooth_picture() -> Image.Image:
    """A wide smooth map over a smooth photo, on white paper."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    values = np.exp(-((x - 0.4) ** 2 + (y - 0.55) ** 2) / 0.08)
    photo = np.stack([200 - 90 * y, 90 + 60 * x, 60 + 40 * y], axis=2).astype(np.uint8)
    paper = Image.new("RGB", (SIDE + 40, SIDE + 40), "white")
    paper.paste(render.overlay(photo, values / values.max()), (20, 20))
    return paper


def speckles(picture: Image.Image) -> int:
    """How many pixels of the map are brighter, or darker, than all eight around them by more than three levels."""
    grey = np.asarray(picture.convert("RGB"), dtype=int).sum(axis=2)[22 : SIDE + 18, 22 : SIDE + 18]
    middle = grey[1:-1, 1:-1]
    shifts = [(dy, dx) for dy in (0, 1, 2) for dx in (0, 1, 2) if (dy, dx) != (1, 1)]
    apart = np.stack([middle - grey[dy : dy + middle.shape[0], dx : dx + middle.shape[1]] for dy, dx in shifts])
    return int(((apart > 9).all(axis=0) | (apart < -9).all(axis=0)).sum())


def test_a_smooth_map_stays_smooth_in_few_colours(tmp_path: Path) -> None:
    """Dithering would speckle it; colours stay near, white stays white, and there are at most 256 of them."""
    picture = smooth_picture()
    save(picture, tmp_path / "few.png", dpi=200, palette=True)
    few = Image.open(tmp_path / "few.png")
    assert few.mode == "P"
    assert speckles(picture) == speckles(few) == 0
    assert speckles(picture.quantize(palette=picture.quantize(256))) > 100
    apart = np.abs(np.asarray(few.convert("RGB"), dtype=int) - np.asarray(picture, dtype=int))
    assert apart.max() <= 12
    assert apart[:20].max() == apart[:, :20].max() == 0
