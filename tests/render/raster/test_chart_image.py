"""Charts as pictures: colours where the values are, gaps, errors."""

import numpy as np
import pytest

from gamlens.errors import GamlensError
from gamlens.render import PALETTE, Chart, Series, draw_chart

LINE = Series.over_names


def centre(picture, color):
    """Where a colour lies on average, (x, y), or None."""
    near = np.abs(np.asarray(picture).astype(int) - np.array(color)).sum(axis=2) < 40
    return (np.argwhere(near).mean(axis=0)[::-1]) if near.any() else None


def drawn(*series, names=(), **options):
    return draw_chart(Chart("", "", "", series, names=tuple(names), **options))


def test_a_higher_line_lies_higher_and_a_level_goes_across():
    lines = LINE("high", (0.9, 0.8, 0.9)), LINE("low", (0.1, 0.2, 0.1), tone=2), LINE("level", [0.5], "level", tone=3)
    picture = drawn(*lines, names="abc", y_range=(0, 1))
    assert picture.size == (360, 250)
    heights = [centre(picture, color)[1] for color in PALETTE[1:4]]
    assert heights[0] < heights[2] < heights[1]
    level = np.asarray(picture.convert("L"))[round(heights[2]) - 1 : round(heights[2]) + 2, 40:340].min(axis=0) < 200
    assert 0.5 < level.mean() < 0.8
    assert level[:10].any()
    assert level[-10:].any()


def test_a_gap_is_left_where_there_is_no_value():
    whole, gap = (drawn(LINE("x", (1.0, 2.0, value, 4.0)), names="abcd") for value in (3.0, float("nan")))
    ink = [(np.abs(np.asarray(p).astype(int) - PALETTE[1]).sum(axis=2) < 40).sum() for p in (whole, gap)]
    assert ink[1] < 0.7 * ink[0]


@pytest.mark.parametrize("names", [["only"], ["a very long name of a block"] * 9, ["ünïcode", "b"]])
def test_any_names_can_be_drawn(names):
    assert drawn(LINE("x", (0.5,) * len(names)), names=names).size == (360, 250)


def test_every_kind_can_be_drawn():
    points, spread = ((0.0, 1.0), (1.0, 2.0), (2.0, 1.5)), ((0.5, 1.5), (1.5, 2.5), (1.0, 2.0))
    for kind in ("line", "dashed", "dotted", "dots", "marks", "level"):
        picture = drawn(Series("x", points, kind, 2, spread, ring=1), diagonal=True, zero=True)
        assert centre(picture, PALETTE[2]) is not None or kind in ("dots", "dotted")


def test_a_chart_without_a_number_is_an_error():
    with pytest.raises(GamlensError, match="found none"):
        drawn(LINE("x", [float("nan")]), names="a")
