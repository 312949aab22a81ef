import tracemalloc

import numpy as np
import pytest
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render import lut, overlay

PHOTO = np.full((100, 120, 3), (200, 100, 50), np.uint8)
NOTHING, EVERYTHING = np.zeros((100, 120), np.float32), np.ones((100, 120), np.float32)
BLACK = np.zeros((100, 120, 3), np.uint8)
DARK, LIGHT = [18, 18, 22], [255, 255, 255]


def pixel(picture: Image.Image, x: int = 0, y: int = 0) -> list[int]:
    return np.asarray(picture)[y, x].tolist()


def test_heat_quietens_where_nothing_is_salient_and_glows_where_all_is() -> None:
    # 0.755 of the photo, 98 % of it grey (luma 124.2); then 0.3 photo + 0.7 colour x (0.82 + 0.32 luma)
    assert pixel(overlay(PHOTO, NOTHING)) == [95, 93, 93]
    assert pixel(overlay(PHOTO, EVERYTHING)) == [234, 194, 123]


def test_heat_keeps_the_texture_of_a_salient_object() -> None:
    stripes = PHOTO.copy()
    stripes[:, ::2] //= 2
    shown = np.asarray(overlay(stripes, EVERYTHING)).astype(int)
    assert (shown[0, 1] - shown[0, 0]).min() >= 15


def test_flat_is_a_constant_blend() -> None:
    shown = pixel(overlay(PHOTO, EVERYTHING, style="flat", opacity=0.5, cmap="gray"))
    assert shown == [228, 178, 153]
    assert pixel(overlay(PHOTO, NOTHING, style="flat", opacity=1)) == lut("ember")[0].tolist()


def test_spotlight_is_photo_times_map() -> None:
    half = np.full((100, 120), 0.6)
    assert pixel(overlay(PHOTO, half, style="spotlight")) == [120, 60, 30]
    assert np.asarray(overlay(PHOTO, NOTHING, style="spotlight")).max() == 0
    assert (np.asarray(overlay(PHOTO, EVERYTHING, style="spotlight")) == PHOTO).all()


@pytest.mark.parametrize("style", ["heat", "flat"])
def test_no_opacity_leaves_the_photo_alone(style: str) -> None:
    noise = np.random.default_rng(0)
    photo = noise.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    assert (np.asarray(overlay(photo, noise.random((40, 50)), opacity=0, style=style)) == photo).all()


def test_a_signed_map_is_quiet_at_its_neutral_middle() -> None:
    neutral = pixel(overlay(PHOTO, np.full((100, 120), 0.5), cmap="diverging"))
    low, high = (pixel(overlay(PHOTO, level, cmap="diverging")) for level in (NOTHING, EVERYTHING))
    assert np.abs(np.subtract(neutral, [95, 93, 93])).max() <= 6
    assert low[2] > low[0]
    assert high[0] > high[2] + 60


def test_a_long_photo_is_the_same_in_every_strip() -> None:
    noise = np.random.default_rng(1)
    photo = noise.integers(0, 256, (300_000, 2, 3), dtype=np.uint8)
    level = noise.integers(0, 256, (300_000, 2))
    expected = np.floor(photo.astype(np.float32) * (level / 255)[..., None].astype(np.float32) + 0.5)
    assert (np.asarray(overlay(photo, level / 255, style="spotlight")) == expected).all()


def test_memory_stays_below_three_floats_a_pixel() -> None:
    photo, level = np.zeros((2000, 2000, 3), np.uint8), np.zeros((2000, 2000))
    tracemalloc.start()
    try:
        overlay(photo, level)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2000 * 2000 * 12 + 40e6


def test_a_box_is_a_light_line_between_dark_ones() -> None:
    shown = np.asarray(overlay(BLACK, NOTHING, style="spotlight", boxes=[(10.4, 20, 30.2, 40)]))
    assert shown[30, 9:14].tolist() == [[0, 0, 0], DARK, LIGHT, DARK, [0, 0, 0]]
    assert shown[30, 27:32].tolist() == [[0, 0, 0], DARK, LIGHT, DARK, [0, 0, 0]]
    assert shown[36:41, 20].tolist() == [[0, 0, 0], DARK, LIGHT, DARK, [0, 0, 0]]


def test_a_box_is_clipped_to_the_picture() -> None:
    shown = np.asarray(overlay(BLACK, NOTHING, style="spotlight", boxes=[(-50, -9, 1e6, 10), (500, 0, 600, 9)]))
    assert shown[:4, 60].tolist() == [DARK, LIGHT, DARK, [0, 0, 0]]
    assert shown[5, [0, 1, -2, -1]].tolist() == [DARK, LIGHT, LIGHT, DARK]
    assert shown[10:].max() == 0


def test_a_box_line_grows_with_the_picture() -> None:
    large = np.zeros((1800, 1800, 3), np.uint8)
    shown = np.asarray(overlay(large, np.zeros((1800, 1800)), style="spotlight", boxes=[(0, 0, 1800, 1800)]))
    assert (shown[:, 900] == LIGHT).all(axis=1).sum() == 20


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (9, 5, 1, 9), (0, 0, np.nan, 4)])
def test_a_box_without_an_inside_is_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(GamlensError, match="box"):
        overlay(PHOTO, NOTHING, boxes=[box])


def test_a_mask_is_outlined_along_its_inside() -> None:
    mask = np.zeros((100, 120), bool)
    mask[20:40, 10:30] = True
    mask[60:, 100:] = True
    shown = np.asarray(overlay(BLACK, NOTHING, style="spotlight", mask=mask))
    assert shown[30, 9:13].tolist() == [[0, 0, 0], LIGHT, DARK, [0, 0, 0]]
    assert shown[19:23, 20].tolist() == [[0, 0, 0], LIGHT, DARK, [0, 0, 0]]
    assert shown[80, -3:].tolist() == [[0, 0, 0], DARK, LIGHT]
    assert not shown[~mask].any()


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA", "CMYK"])
def test_every_8_bit_mode_is_converted(mode: str) -> None:
    white = Image.new("RGB", (120, 100), "white").convert(mode)
    shown = overlay(white, EVERYTHING, style="spotlight")
    assert shown.mode == "RGB"
    assert pixel(shown) == [255, 255, 255]


def test_transparency_shows_white_not_the_hidden_colour() -> None:
    clear = Image.new("RGBA", (120, 100), (255, 0, 0, 0))
    assert pixel(overlay(clear, EVERYTHING, style="spotlight")) == [255, 255, 255]


def test_the_photo_itself_is_not_drawn_on() -> None:
    photo = Image.fromarray(PHOTO)
    overlay(photo, EVERYTHING, boxes=[(1, 1, 50, 50)], mask=EVERYTHING > 0)
    assert (np.asarray(photo) == PHOTO).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"map": NOTHING.T}, r"map .*\(100, 120\).*\(120, 100\)"),
        ({"mask": np.ones((3, 3), bool)}, r"mask .*\(3, 3\)"),
        ({"style": "heet"}, "'heat'"),
        ({"cmap": "oceans"}, "'ocean'"),
        ({"opacity": 70}, "opacity"),
        ({"image": PHOTO.astype(np.float32)}, "uint8"),
        ({"image": PHOTO.transpose(2, 0, 1)}, "channels last"),
        ({"image": "cat.jpg"}, "found str"),
        ({"image": Image.new("I;16", (120, 100))}, "8 bits"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        overlay(**({"image": PHOTO, "map": NOTHING} | change))
