"""Charts as SVG: points where they belong, words escaped, nothing that is no number."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from gamlens.render import Chart, Charts, Heading, Page, Section, Series, html
from gamlens.render.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart, ticks

EVIL = '<script>alert("x")</script>" onload="y'


def paths(part: Chart, kind: str) -> list[list[tuple[float, float]]]:
    """The places in every path of that class."""
    tree = ElementTree.fromstring(chart(part))
    found = [path for path in tree.iter("path") if kind in path.attrib["class"].split()]
    pairs = [re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]) for path in found]
    return [[(float(x), float(y)) for x, y in one] for one in pairs]


def test_points_lie_at_their_share_of_the_axes() -> None:
    line = Series("a", ((0.0, 0.0), (5.0, 50.0), (10.0, 100.0)), ring=1)
    part = Chart("title", "x", "y", (line,), x_range=(0.0, 10.0), y_range=(0.0, 100.0))
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert paths(part, "curve") == [[(LEFT, HEIGHT - BOTTOM), middle, (WIDTH - RIGHT, TOP)]]
    ring = next(ElementTree.fromstring(chart(part)).iter("circle"))
    assert (float(ring.attrib["cx"]), float(ring.attrib["cy"])) == middle


def test_a_range_is_found_from_points_and_whiskers() -> None:
    marks = Series("a", ((0.0, 1.0), (1.0, 3.0)), "marks", 2, ((0.0, 2.0), (2.0, 10.0)))
    part = Chart("", "x", "y", (marks,), names=("small", "large"), zero=True)
    (whiskers,) = paths(part, "whisker")
    (dots,) = paths(part, "marks")
    assert [x for x, _ in dots] == [LEFT + (WIDTH - LEFT - RIGHT) / 4, LEFT + 3 * (WIDTH - LEFT - RIGHT) / 4]
    assert min(y for _, y in whiskers) >= TOP
    assert max(y for _, y in whiskers) <= HEIGHT - BOTTOM
    assert whiskers[0][1] > dots[0][1] > whiskers[1][1]
    (zero,) = paths(part, "guide")
    assert zero[0][1] == whiskers[0][1]
    assert "small" in chart(part)


def test_what_is_no_number_is_left_out_and_what_is_beyond_is_held_in() -> None:
    points = ((0.0, math.nan), (0.5, 0.5), (math.inf, 0.2), (9.0, 9.0))
    part = Chart("", "x", "y", (Series("a", points, "dots"),), x_range=(0.0, 1.0), y_range=(0.0, 1.0), diagonal=True)
    (dots,) = paths(part, "dots")
    assert dots == [((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2), (WIDTH - RIGHT, TOP)]
    assert paths(part, "guide") == [[(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]]
    for empty in ((), ((math.nan, 1.0),), ((1.0, 1.0),)):
        assert "<svg" in chart(Chart("", "x", "y", (Series("a", empty),)))


def test_words_are_escaped_and_a_legend_names_several() -> None:
    one = Chart(EVIL, EVIL, EVIL, (Series(EVIL, ((0.0, 1.0),)),), EVIL)
    two = Chart("t", "x", "y", (Series(EVIL, ((0.0, 1.0),)), Series("b", ((0.0, 2.0),), "dotted", 0)), names=(EVIL,))
    page = html(Page("p", sections=(Section("s", (one, Charts((two, two)), Heading(EVIL))),)))
    assert page.count("<script>") == 1
    assert "onload=" not in re.sub(r"&quot; onload=&quot;y", "", page)
    assert 'class="legend"' not in chart(one)
    assert chart(two).count("<li>") == 2


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (0.21, 0.24, [0.21, 0.215, 0.22, 0.225, 0.23, 0.235, 0.24]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
