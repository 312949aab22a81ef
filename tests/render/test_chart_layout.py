"""The chart engine: points where they belong, round ticks, gaps, nothing that is no number."""

from __future__ import annotations

import math

import pytest

from gamlens.errors import GamlensError
from gamlens.render import Chart, Series
from gamlens.render.chart_layout import AXIS, GUIDE, Dots, Mark, Point, Stroke, Word, lay_out, ticks


def groups(chart: Chart) -> tuple[list[Mark], list[list[Mark]]]:
    """The marks of the axes, and those of each series."""
    (_, axes), *series = lay_out(chart)
    return axes, [marks for _, marks in series]


def corners(chart: Chart) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the plot: the ends of its first and last grid line."""
    lines = [mark.points for mark in groups(chart)[0] if isinstance(mark, Stroke) and mark.ink == AXIS]
    across = [line for line in lines if line[0][1] == line[1][1]]
    return across[-1][0][0], across[-1][0][1], across[0][1][0], across[0][0][1]


def of_kind(marks: list[Mark], kind: type) -> list[tuple[Point, ...]]:
    return [mark.points for mark in marks if isinstance(mark, kind)]


def test_points_lie_at_their_share_of_the_axes() -> None:
    line = Series("a", ((0.0, 0.0), (5.0, 50.0), (10.0, 100.0)), ring=1)
    chart = Chart("title", "x", "y", (line,), x_range=(0.0, 10.0), y_range=(0.0, 100.0))
    left, top, right, bottom = corners(chart)
    middle = ((left + right) / 2, (top + bottom) / 2)
    stroke, ring = groups(chart)[1][0]
    assert stroke.points == ((left, bottom), middle, (right, top))
    assert (ring.points, ring.hollow) == ((middle,), True)


def test_a_range_is_found_from_points_and_whiskers() -> None:
    marks = Series("a", ((0.0, 1.0), (1.0, 3.0)), "marks", 2, ((0.0, 2.0), (2.0, 10.0)))
    chart = Chart("", "x", "y", (marks,), names=("small", "large"), zero=True)
    left, top, right, bottom = corners(chart)
    axes, (drawn,) = groups(chart)
    (dots,) = of_kind(drawn, Dots)
    assert [x for x, _ in dots] == [left + (right - left) / 4, left + 3 * (right - left) / 4]
    first, second = of_kind(drawn, Stroke)
    assert second[1][1] == top
    assert first[0][1] > dots[0][1] > first[1][1]
    (zero,) = (mark.points for mark in axes if isinstance(mark, Stroke) and mark.ink == GUIDE)
    assert zero == ((left, bottom), (right, bottom))
    assert zero[0][1] == first[0][1]
    assert {"small", "large", "x", "y"} <= {mark.text for mark in axes if isinstance(mark, Word)}


def test_what_is_no_number_is_left_out_and_what_is_beyond_is_held_in() -> None:
    points = ((0.0, math.nan), (0.5, 0.5), (math.inf, 0.2), (9.0, 9.0))
    chart = Chart("", "x", "y", (Series("a", points, "dots"),), x_range=(0.0, 1.0), y_range=(0.0, 1.0), diagonal=True)
    left, top, right, bottom = corners(chart)
    axes, (drawn,) = groups(chart)
    assert of_kind(drawn, Dots) == [(((left + right) / 2, (top + bottom) / 2), (right, top))]
    (guide,) = (mark.points for mark in axes if isinstance(mark, Stroke) and mark.ink == GUIDE)
    assert guide == ((left, bottom), (right, top))
    for empty in ((), ((math.nan, 1.0),), ((1.0, 1.0),)):
        assert len(groups(Chart("", "x", "y", (Series("a", empty),)))[1]) == 1


def test_a_line_has_a_gap_where_there_is_no_value_and_marks_over_names() -> None:
    line = Series.over_names("x", (1.0, 2.0, math.nan, 4.0, math.nan, 1.0, 2.0))
    (drawn,) = groups(Chart("", "", "", (line,), names=tuple("abcdefg")))[1]
    assert [len(points) for points in of_kind(drawn, Stroke)] == [2, 2]
    assert [len(points) for points in of_kind(drawn, Dots)] == [5]
    (alone,) = groups(Chart("", "", "", (Series("x", line.points),)))[1]
    assert [len(points) for points in of_kind(alone, Dots)] == [1]


def test_a_level_goes_across() -> None:
    chart = Chart("", "", "", (Series.over_names("x", [0.5], "level"),), names=("a", "b"), y_range=(0.0, 1.0))
    left, top, right, bottom = corners(chart)
    ((level,),) = groups(chart)[1]
    assert level.points == ((left, (top + bottom) / 2), (right, (top + bottom) / 2))
    assert level.dash


@pytest.mark.parametrize("names", [("only",), ("a very long name of a block",) * 9, ("ünïcode", "b")])
def test_names_are_slanted_where_they_do_not_fit(names: tuple[str, ...]) -> None:
    axes, _ = groups(Chart("", "", "", (Series.over_names("x", (0.5,) * len(names)),), names=names))
    words = [mark for mark in axes if isinstance(mark, Word)][-len(names) :]
    assert all(word.slanted == (len(names) > 2) for word in words)
    assert all(word.text == name or word.text.endswith("…") for word, name in zip(words, names, strict=True))


def test_more_values_than_names_are_refused() -> None:
    with pytest.raises(GamlensError, match=r"x = 2, and the chart has 2 names"):
        Chart("", "", "", (Series.over_names("x", (1.0, 2.0, 3.0)),), names=("a", "b"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (0.21, 0.24, [0.21, 0.215, 0.22, 0.225, 0.23, 0.235, 0.24]),
        (48.2, 56.4, [48, 50, 52, 54, 56, 58]),
        (-0.31, 1, [-0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, 3), (1e-7, 2e-7), (-5, 1200)])
def test_ticks_hold_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 9


def test_labels_stand_beside_their_points_and_do_not_cover_each_other() -> None:
    near = tuple((1 + 0.01 * step, 50 + 0.5 * step) for step in range(8))
    points = (*near, (3.0, 10.0), (math.nan, 1.0))
    labels = tuple(str(step + 10) for step in range(10))
    series = Series("a", points, "marks", labels=labels)
    (_, dots), (name, marks) = lay_out(Chart("t", "x", "y", (series,)))[1:]
    words = [mark for mark in marks if isinstance(mark, Word)]
    assert (name, [word.text for word in words]) == ("", list(labels[:9]))
    places = [point for mark in dots if isinstance(mark, Dots) for point in mark.points]
    assert math.dist(words[8].at, places[8]) < 15
    assert max(math.dist(word.at, place) for word, place in zip(words, places, strict=True)) < 50
    for a, one in enumerate(words):
        for other in words[:a]:
            assert abs(one.at[0] - other.at[0]) > 13 or abs(one.at[1] - other.at[1]) > 9
    assert len(lay_out(Chart("t", "x", "y", (Series("a", points, "marks"),)))) == 2
