import numpy as np
import pytest
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render import Grid, Panel, draw
from gamlens.render.raster.grid import MARK_COLOURS
from gamlens.render.raster.grid_layout import GridLayout
from gamlens.render.raster.lettering import ellipsized, font, plain, wrapped


def solid(width: int, height: int, colour: str = "blue") -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def extent(picture: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (half-open) of all pixels of one colour."""
    rows, columns = np.nonzero((np.asarray(picture) == colour).all(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


BLUE = (0, 0, 255)


def test_bare_panels_are_set_by_margin_and_gap() -> None:
    sheet = draw(Grid(((Panel(solid(100, 100, "red")), Panel(solid(300, 300))),)))
    assert sheet.size == (16 + 240 + 14 + 240 + 16, 16 + 240 + 16)
    assert extent(sheet, (255, 0, 0)) == (16, 16, 256, 256)
    assert extent(sheet, BLUE) == (270, 16, 510, 256)


def test_pictures_keep_their_shape_in_the_middle_of_equal_cells() -> None:
    wide, tall = solid(400, 100), solid(100, 400, "red")
    sheet = draw(Grid(((Panel(wide), Panel(tall)),)), cell=200)
    assert extent(sheet, BLUE) == (16, 16 + 75, 216, 16 + 125)
    assert extent(sheet, (255, 0, 0)) == (16 + 214 + 75, 16, 16 + 214 + 125, 216)


def test_a_row_is_no_higher_than_its_pictures_need() -> None:
    sheet = draw(Grid(((Panel(solid(400, 100)),), (Panel(solid(400, 200, "red")),))), cell=200)
    assert sheet.size == (232, 16 + 50 + 14 + 100 + 16)
    assert extent(sheet, (255, 0, 0)) == (16, 80, 216, 180)


def test_scale_multiplies_everything() -> None:
    grid = Grid(((Panel(solid(50, 50)), None),))
    small, large = draw(grid, cell=100), draw(grid, cell=100, scale=2)
    assert large.size == (2 * small.width, 2 * small.height)
    assert extent(large, BLUE) == tuple(2 * side for side in extent(small, BLUE))


def test_an_empty_cell_keeps_its_place() -> None:
    sheet = draw(Grid(((None, Panel(solid(10, 10))),)), cell=100)
    assert extent(sheet, BLUE) == (130, 16, 230, 116)
    assert (np.asarray(sheet)[:, :130] == 255).all()


def test_words_make_room_above_left_and_below() -> None:
    panel = Panel(solid(10, 10), title="title", caption="caption")
    place = GridLayout(Grid(((panel,),), ("head",), ("label",), "name"), cell=100)
    label = round(font(15).getlength("label")) + 14
    top = 16 + (25 + 6) + (20 + 6) + (17 + 3)
    assert place.cells == [[(16 + label, top, 100, 100)]]
    assert place.size == (16 + label + 100 + 16, top + 100 + 17 + 6 + 16)


def test_words_are_where_they_belong_and_centred() -> None:
    sheet = draw(Grid(((Panel(solid(10, 10), caption="HOH"),),), ("HOH",)), cell=100)
    ink = np.asarray(sheet.convert("L")) < 128
    picture = extent(sheet, BLUE)
    ink[picture[1] : picture[3], picture[0] : picture[2]] = False
    for band in (ink[: picture[1]], ink[picture[3] :]):
        columns = np.flatnonzero(band.any(axis=0))
        assert abs((columns[0] + columns[-1]) / 2 - 65.5) <= 1.5


@pytest.mark.parametrize("mark", ["good", "bad"])
def test_a_mark_is_a_frame_just_outside_the_picture(mark: str) -> None:
    sheet = draw(Grid(((Panel(solid(10, 10), mark=mark),),)), cell=100)
    pixels = np.asarray(sheet)
    assert pixels[80, 12:17].tolist() == [[255] * 3, *[list(MARK_COLOURS[mark])] * 3, [0, 0, 255]]
    assert pixels[116:120, 60].tolist() == [*[list(MARK_COLOURS[mark])] * 3, [255] * 3]


def test_small_pictures_are_enlarged_in_squares() -> None:
    checks = Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]] * 2, np.uint8))
    sheet = np.asarray(draw(Grid(((Panel(checks),),)), cell=100))[16:116, 16:116]
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) == 2


def test_text_too_long_is_ellipsized_to_fit() -> None:
    face = font(13)
    cut = ellipsized("a very long column head indeed", face, 80)
    assert cut.startswith("a very")
    assert cut.endswith("…")
    assert face.getlength(cut) <= 80
    assert ellipsized("short", face, 80) == "short"


def test_wrapping_fills_lines_then_cuts_the_last() -> None:
    face = font(13)
    assert wrapped("", face, 80, most=2) == []
    lines = wrapped("one two three four five six seven eight nine ten", face, 80, most=2)
    assert len(lines) == 2
    assert lines[0].startswith("one two")
    assert lines[1].endswith("…")
    assert max(map(face.getlength, lines)) <= 80


def test_letters_the_font_lacks_are_respelled_and_markup_dropped() -> None:
    assert plain("**Café** 2 × `3` → [x](#y) ≥ 漢") == "Cafe 2 x 3 -> x >= ?"


@pytest.mark.parametrize("grid", [Grid(()), Grid(((),))])
def test_nothing_to_draw_is_an_error(grid: Grid) -> None:
    with pytest.raises(GamlensError, match="at least one"):
        draw(grid)


def test_heads_and_labels_must_fit_the_rows() -> None:
    panel = Panel(solid(4, 4))
    with pytest.raises(GamlensError, match="1 rows has 2 labels"):
        Grid(((panel,),), labels=("a", "b"))
    with pytest.raises(GamlensError, match="2 panels has 1 column"):
        Grid(((panel, panel),), columns=("a",))
    with pytest.raises(GamlensError, match="cell"):
        draw(Grid(((panel,),)), cell=0)
