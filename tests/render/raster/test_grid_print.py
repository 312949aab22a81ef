"""Grids for print: groups, widths, breaks, keys, and one width for every figure."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render import (
    PALETTE,
    Grid,
    LineKey,
    Page,
    Panel,
    ScaleKey,
    Section,
    Series,
    boxed,
    draw,
    html,
    lut,
    outlined,
    typeset,
)
from gamlens.render.raster.grid_layout import GridLayout
from gamlens.render.raster.keys import arranged, ramp
from gamlens.render.raster.lettering import fitting, font, wrapped

BLUE = (0, 0, 255)


def solid(width: int, height: int, colour: str = "blue") -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def extents(picture: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero((np.asarray(picture) == colour).all(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def test_columns_of_relative_widths_hold_pictures_of_one_height() -> None:
    grid = Grid(((Panel(solid(200, 100)), Panel(solid(100, 100, "red"))),), widths=(2.0, 1.0))
    sheet = draw(grid, cell=200)
    assert extents(sheet, BLUE) == (16, 16, 216, 116)
    assert extents(sheet, (255, 0, 0)) == (230, 16, 330, 116)


def test_groups_stand_over_their_columns_and_apart() -> None:
    panels = tuple(Panel(solid(10, 10)) for _ in range(3))
    plain, grouped = Grid((panels,)), Grid((panels,), groups=(("one", 2), ("two", 1)))
    a, b = GridLayout(plain, cell=100), GridLayout(grouped, cell=100)
    shift = [after[0] - before[0] for before, after in zip(a.cells[0], b.cells[0], strict=True)]
    assert shift == [0, 0, 14]
    assert b.cells[0][0][1] - a.cells[0][0][1] == 20 + 6
    ink = np.asarray(draw(grouped, cell=100).convert("L"))[16:36] < 128
    columns = np.flatnonzero(ink.any(axis=0))
    assert columns[0] > 16 + 90
    assert columns[-1] < b.size[0] - 16 - 20


def test_a_break_parts_rows_with_a_rule() -> None:
    rows = ((Panel(solid(10, 10)),), (Panel(solid(10, 10)),))
    together, parted = GridLayout(Grid(rows), cell=50), GridLayout(Grid(rows, breaks=(1,)), cell=50)
    assert parted.cells[1][0][1] - together.cells[1][0][1] == 14
    between = np.asarray(draw(Grid(rows, breaks=(1,)), cell=50))[16 + 50 : parted.cells[1][0][1], 40]
    assert (between < 230).all(axis=1).sum() == 1


def test_keys_lie_under_the_grid_in_lines_that_fit() -> None:
    keys = (ScaleKey("Saliency"), LineKey("predicted", (1, 2, 3)), LineKey("true", (250, 9, 9), dashed=True))
    wide = GridLayout(Grid(((Panel(solid(10, 10)),),), keys=keys), cell=600)
    narrow = GridLayout(Grid(((Panel(solid(10, 10)),),), keys=keys), cell=180)
    assert [[piece for _, piece in line if isinstance(piece, str)] for line in wide.keys] == [
        ["Saliency", "0", "1", "predicted", "true"]
    ]
    assert len(narrow.keys) > 1
    assert wide.size[1] == wide.keys_top + 17 + 16
    sheet = np.asarray(draw(Grid(((Panel(solid(10, 10)),),), keys=keys), cell=600))[wide.keys_top :]
    assert (sheet == (1, 2, 3)).all(axis=2).any()
    assert (abs(sheet.astype(int) - lut("ember")[128]) < 8).all(axis=2).any()
    assert [len(line) for line in arranged(keys, 10, 1.0)] == [4, 2, 2]
    (small,), (large,) = (arranged(keys[:1], 10, scale) for scale in (1.0, 2.0))
    assert large[-1][0] > small[-1][0]


def test_series_are_keys_as_well() -> None:
    series = tuple(Series(f"series {tone}", (), "line" if tone else "dashed", tone) for tone in range(6))
    grids = [Grid(((Panel(solid(10, 10)),),), keys=series)] * 2
    wide, narrow = (GridLayout(grid, cell=cell) for grid, cell in zip(grids, (900, 300), strict=True))
    assert len(narrow.keys) > len(wide.keys) == 1
    sheet = np.asarray(draw(grids[0], cell=900))[wide.keys_top :]
    assert all((sheet == colour).all(axis=2).any() for colour in PALETTE[:6])
    assert html(Page("p", sections=(Section("s", grids[:1]),))).count("</svg>series ") == 6


def test_a_scale_over_photos_shows_what_overlays_show() -> None:
    plain, over = ramp(ScaleKey("a")), ramp(ScaleKey("a", over=True))
    assert (np.asarray(plain)[0] == lut("ember")).all()
    assert len(set(over.getpixel((0, 0)))) == 1
    assert np.ptp(np.asarray(over.getpixel((255, 0)), dtype=int)) > 60


@pytest.mark.parametrize(("columns", "inches", "expected"), [(3, None, 3.5), (6, None, 7.16), (2, 5.0, 5.0)])
def test_typeset_is_as_wide_as_asked(columns: int, inches: float | None, expected: float) -> None:
    row = tuple(Panel(solid(30, 20)) for _ in range(columns))
    grid = Grid((row, row), tuple(f"Method {n}" for n in range(columns)), ("a row", "another"), keys=(ScaleKey("Map"),))
    picture = typeset(grid, inches=inches, dpi=150)
    assert abs(picture.width - 150 * expected) <= columns + 2
    with pytest.raises(GamlensError, match="72 to 1200"):
        typeset(grid, dpi=20)


def test_print_labels_run_upwards() -> None:
    grid = Grid(((Panel(solid(100, 100)),),), labels=("HHHHHH",))
    sheet = np.asarray(draw(grid, cell=100, tight=True).convert("L"))
    left = GridLayout(grid, cell=100, tight=True).cells[0][0][0]
    ink = np.argwhere(sheet[:, : left - 1] < 128)
    assert np.ptp(ink[:, 0]) > 2 * np.ptp(ink[:, 1])


def test_words_shrink_before_they_are_cut() -> None:
    assert fitting(["ab"], [500], 20) == 20
    room = font(20).getlength("Activations") * 0.9
    size = fitting(["Activations"], [room], 20)
    assert 14 <= size < 20
    assert wrapped("Activations", font(size), room, most=1) == ["Activations"]
    assert fitting(["Activations"], [10], 20) == 14


def test_boxes_and_outlines_in_colour() -> None:
    photo = solid(180, 180, "gray")
    whole, dashed = (
        np.asarray(boxed(photo, [(40, 30, 150, 140)], colour=(1, 200, 3), dashed=d)) for d in (False, True)
    )
    mine = (whole == (1, 200, 3)).all(axis=2)
    assert extents(Image.fromarray(whole), (1, 200, 3)) == (41, 31, 149, 139)
    assert mine[31, 41:149].all()
    share = (dashed == (1, 200, 3)).all(axis=2)[31, 41:149].mean()
    assert 0.4 < share < 0.7
    thick = np.asarray(boxed(photo, [(40, 30, 150, 140)], colour=(1, 200, 3), thick=4))
    assert (thick == (1, 200, 3)).all(axis=2).sum() > 3 * mine.sum()
    mask = np.zeros((180, 180), dtype=bool)
    mask[50:90, 60:100] = True
    lines = np.asarray(outlined(photo, mask, colour=(9, 8, 200)))
    assert extents(Image.fromarray(lines), (9, 8, 200)) == (60, 50, 100, 90)
    with pytest.raises(GamlensError, match="mask must have the image's size"):
        outlined(photo, mask[:5])


def test_groups_and_keys_reach_the_page() -> None:
    panel = Panel(solid(80, 80))
    keys = (ScaleKey("Map <1>", "low", "high"), LineKey("true", (1, 2, 3), dashed=True))
    grid = Grid(((panel, panel),), ("a", "b"), groups=(("both <2>", 2),), keys=keys)
    page = html(Page("p", sections=(Section("s", (grid,)),)))
    assert 'style="grid-column:span 2">both &lt;2&gt;</div>' in page
    assert "Map &lt;1&gt; low" in page
    assert "dashed rgb(1, 2, 3)" in page


def test_groups_and_widths_must_fit() -> None:
    row = (Panel(solid(4, 4)), Panel(solid(4, 4)))
    with pytest.raises(GamlensError, match="2 columns has the groups"):
        Grid((row,), groups=(("a", 1),))
    for widths in ((1.0,), (1.0, 0.0)):
        with pytest.raises(GamlensError, match="2 columns has the widths"):
            Grid((row,), widths=widths)
