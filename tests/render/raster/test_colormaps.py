import numpy as np
import pytest

from gamlens.errors import GamlensError
from gamlens.render import COLORMAPS, colorize, lut


def lightness(table: np.ndarray) -> np.ndarray:
    """CIE L* of sRGB colours (N, 3)."""
    linear = np.where(table / 255 <= 0.04045, table / 255 / 12.92, ((table / 255 + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


@pytest.mark.parametrize("name", COLORMAPS)
def test_a_table_runs_from_the_first_anchor_to_the_last(name: str) -> None:
    table = lut(name)
    assert table.shape == (256, 3)
    assert table.dtype == np.uint8
    assert table[0].tolist() == COLORMAPS[name][0]
    assert table[-1].tolist() == COLORMAPS[name][-1]
    assert np.abs(np.diff(table.astype(int), axis=0)).max() <= 8, "neighbours must not jump"


@pytest.mark.parametrize("name", ["ember", "ocean", "gray"])
def test_more_salient_is_always_lighter(name: str) -> None:
    light = lightness(lut(name))
    steps = np.diff(light[::3])
    assert np.diff(light).min() >= 0
    assert steps.min() > 0.4 * steps.mean()
    assert steps.max() < 1.6 * steps.mean()
    assert light[-1] - light[0] > 80


def test_diverging_is_neutral_in_the_middle_and_blue_to_red() -> None:
    middle = colorize(np.array([[0.5]]), cmap="diverging")[0, 0].astype(int)
    assert np.ptp(middle) <= 3
    assert middle.min() >= 240
    low, high = colorize(np.array([[0.0, 1.0]]), cmap="diverging")[0].astype(int)
    assert low[2] > low[0] + 80
    assert high[0] > high[2] + 80


def test_a_table_cannot_be_changed_for_everyone() -> None:
    with pytest.raises(ValueError, match="read-only"):
        lut("ember")[0] = 0


def test_colorize_looks_values_up() -> None:
    values = np.array([[0, 0.2], [0.6, 1]])
    assert colorize(values, cmap="gray")[..., 0].tolist() == [[0, 51], [153, 255]]
    assert colorize(values.astype(np.float16), cmap="gray")[1, 1].tolist() == [255, 255, 255]
    assert colorize(values > 0.5, cmap="gray")[..., 0].tolist() == [[0, 0], [255, 255]]


def test_an_unknown_name_gets_its_near_match() -> None:
    with pytest.raises(GamlensError, match=r"'embre'.*'ember'"):
        lut("embre")


@pytest.mark.parametrize(
    "values",
    [np.array([[0, np.nan]]), np.array([[0, 1.1]]), np.array([[-0.1, 0]]), np.array([[0, 255]], np.uint8)],
)
def test_values_outside_the_unit_interval_are_refused(values: np.ndarray) -> None:
    with pytest.raises(GamlensError, match=r"\[0, 1\]"):
        colorize(values)


@pytest.mark.parametrize("values", [np.zeros(4), np.zeros((1, 4, 4)), np.zeros((0, 4)), np.zeros((2, 2), complex)])
def test_only_one_real_map_at_a_time(values: np.ndarray) -> None:
    with pytest.raises(GamlensError, match=r"\(H, W\)"):
        colorize(values)


def test_rounding_noise_beyond_the_interval_is_forgiven() -> None:
    assert colorize(np.array([[-1e-6, 1 + 1e-6]]), cmap="gray")[0, :, 0].tolist() == [0, 255]
