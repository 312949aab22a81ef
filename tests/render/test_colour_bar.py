import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render import lut, with_colour_bar
from gamlens.render.raster.colour_bar import BAR_TEXT_LEAST, _fit
from gamlens.render.raster.lettering import font

TEXTS = ("-0.012 lowers", "0", "+0.012 raises")
INK = (24, 24, 28)
PHOTO = Image.new("RGB", (480, 360), (200, 100, 50))


def pixels(picture: Image.Image) -> NDArray[np.int64]:
    return np.asarray(picture).astype(int)


def barred(size: tuple[int, int], caption: str = "") -> Image.Image:
    low, middle, high = TEXTS
    photo = Image.new("RGB", size, (200, 100, 50))
    return with_colour_bar(photo, cmap="diverging", low=low, middle=middle, high=high, caption=caption)


def test_the_photo_stays_and_the_bar_goes_from_the_lowest_colour_to_the_highest() -> None:
    shown = with_colour_bar(PHOTO, cmap="ember", low="0", high="1")
    found = pixels(shown)
    # letters of 14, so a pad of 7, a bar of 11, half a pad, one line of 18, a pad
    assert shown.size == (480, 360 + 7 + 11 + 3 + 18 + 7)
    assert (found[:360] == (200, 100, 50)).all()
    bar = found[367:378, 7:473]
    assert (bar == bar[0]).all()
    assert bar[0, 0].tolist() == lut("ember")[0].tolist()
    assert bar[0, -1].tolist() == lut("ember")[255].tolist()
    assert bar[0, 233].tolist() == lut("ember")[round(233 / 465 * 255)].tolist()
    assert (found[366, 6:474] == INK).all()
    assert (found[366:379, 473] == INK).all()


def test_the_middle_of_a_signed_map_is_neutral_and_has_a_tick() -> None:
    found = pixels(barred((480, 360)))
    assert np.abs(found[370, 240] - 246).max() <= 2
    assert (found[379:381, 239] == INK).all()
    without = pixels(with_colour_bar(PHOTO, cmap="diverging", low="a", high="b"))
    assert (without[379:, 200:280] == 255).all()


def test_texts_are_at_the_ends_and_in_the_middle() -> None:
    found = pixels(barred((480, 360)))[382:]
    written = np.flatnonzero((found < 200).all(axis=2).any(axis=0))
    assert written.min() in (7, 8)
    assert written.max() in (471, 472)
    parts = np.split(written, np.flatnonzero(np.diff(written) > 28) + 1)
    assert len(parts) == 3
    assert abs(parts[1].mean() - 239.5) <= 1.5


@pytest.mark.parametrize("width", [60, 100, 160, 224, 480, 4000])
def test_all_text_fits_below_pictures_of_any_width(width: int) -> None:
    size, rows = _fit(TEXTS, max(9, width / 34), width - 8)
    assert size >= BAR_TEXT_LEAST
    said = [" ".join(line for row in rows for line in row[place]) for place in range(3)]
    assert said == list(TEXTS)
    for row in rows:
        widths = [max(map(font(size).getlength, lines), default=0) for lines in row]
        assert max(widths) <= width - 8
        if widths[1] and widths[0]:
            assert max(widths[0], widths[2]) + widths[1] / 2 < (width - 8) / 2


def test_texts_are_side_by_side_in_two_lines_or_in_rows() -> None:
    assert [len(_fit(TEXTS, 14, room).rows) for room in (466, 148, 50)] == [1, 1, 3]
    assert _fit(TEXTS, 14, 148).rows[0] == (["-0.012", "lowers"], ["0"], ["+0.012", "raises"])
    assert _fit(("", " ", ""), 14, 100).rows == ()


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (60, 40), (4000, 5), (60, 3000)])
def test_odd_pictures(size: tuple[int, int]) -> None:
    shown = barred(size, caption="What it shows")
    assert shown.width == size[0]
    assert shown.height > size[1]
    assert (pixels(shown)[: size[1]] == (200, 100, 50)).all()


def test_everything_grows_with_the_picture() -> None:
    small, large = barred((480, 360)).height - 360, barred((4800, 3600)).height - 3600
    assert 9.5 * small < large < 10.5 * small


def test_a_caption_is_wrapped_below() -> None:
    plain, short, long = (barred((480, 360), caption) for caption in ("", "Short.", "A long one. " * 12))
    assert short.height == plain.height + 3 + 18
    assert long.height == plain.height + 3 + 2 * 18
    assert (pixels(long)[plain.height :, :7] == 255).all()


def test_colours_as_over_a_photo_are_those_of_an_overlay() -> None:
    over = pixels(with_colour_bar(PHOTO, cmap="diverging", low="", high="", over=True))
    # a grey photo of 150, at the neutral middle about 0.755 of it
    assert np.abs(over[370, 240] - 0.755 * 150).max() <= 3
    assert over.shape[0] == 360 + 7 + 11 + 3 + 7


def test_an_unknown_colour_map_is_an_error() -> None:
    with pytest.raises(GamlensError, match="diverging"):
        with_colour_bar(PHOTO, cmap="divergin", low="", high="")
