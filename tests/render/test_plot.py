"""Line plots: colours where the values are, marks, labels, errors."""

import numpy as np
import pytest

from gamlens.errors import GamlensError
from gamlens.render import PALETTE, Curve, legend, plot
from gamlens.render.plot import _marks


def centre(picture, color):
    """Where a colour lies on average, (x, y), or None."""
    near = np.abs(np.asarray(picture).astype(int) - np.array(color)).sum(axis=2) < 40
    return (np.argwhere(near).mean(axis=0)[::-1]) if near.any() else None


def test_a_higher_line_lies_higher_and_a_level_goes_across():
    high, low = Curve("high", (0.9, 0.8, 0.9), PALETTE[0]), Curve("low", (0.1, 0.2, 0.1), PALETTE[1])
    picture = plot([high, low, Curve("level", (0.5,), PALETTE[2], dashed=True)], ["a", "b", "c"], low=0, high=1)
    assert picture.size == (360, 250)
    heights = [centre(picture, color)[1] for color in PALETTE[:3]]
    assert heights[0] < heights[2] < heights[1]


def test_a_gap_is_left_where_there_is_no_value():
    whole = plot([Curve("x", (1.0, 2.0, 3.0, 4.0), PALETTE[0])], list("abcd"))
    gap = plot([Curve("x", (1.0, 2.0, float("nan"), 4.0), PALETTE[0])], list("abcd"))
    assert (np.asarray(whole) != np.asarray(gap)).any()


@pytest.mark.parametrize("steps", [["only"], ["a very long name of a block"] * 9, ["ünïcode", "b"]])
def test_any_steps_can_be_drawn(steps):
    assert plot([Curve("x", (0.5,) * len(steps), PALETTE[0])], steps).size == (360, 250)


def test_marks_are_round_and_hold_the_range():
    assert _marks(48.2, 56.4) == [48, 50, 52, 54, 56, 58]
    assert _marks(-0.31, 1) == [-0.5, 0, 0.5, 1]
    for low, high in ((0, 0), (3, 3), (1e-7, 2e-7), (-5, 1200)):
        marks = _marks(low, high)
        assert marks[0] <= low
        assert marks[-1] >= high
        assert 2 <= len(marks) <= 9


def test_a_legend_wraps():
    lines = [Curve(f"method number {i}", (1.0,), PALETTE[i]) for i in range(6)]
    assert legend(lines, width=300).height > legend(lines, width=1500).height


def test_errors():
    with pytest.raises(GamlensError, match="3 values for 2 steps"):
        plot([Curve("x", (1.0, 2.0, 3.0), PALETTE[0])], ["a", "b"])
    with pytest.raises(GamlensError, match="found none"):
        plot([Curve("x", (float("nan"),), PALETTE[0])], ["a"])
