"""Charts as SVG: words escaped, a legend, the colours of pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from gamlens.render import PALETTE, Chart, Charts, Heading, Page, Section, Series, html
from gamlens.render.html.charts_and_tables import chart_html
from gamlens.render.html.document import asset

EVIL = '<script>alert("x")</script>" onload="y'


def test_every_mark_is_drawn() -> None:
    series = (
        Series("line", ((0.0, 1.0), (1.0, 2.0)), ring=1),
        Series("dashed", ((0.0, 1.0), (1.0, 2.0)), "dashed", 2),
        Series("dots", ((0.0, 1.0), (1.0, 2.0), (0.5, 2.0)), "dots", 3),
    )
    tree = ElementTree.fromstring(chart_html(Chart("t", "x", "y", series, diagonal=True)))
    classes = [path.attrib["class"] for path in tree.find("svg").iter("path")]  # type: ignore[union-attr]
    assert classes[-3:] == ["tone1 stroke", "tone2 stroke", "tone3 stroke"]
    assert "guide stroke" in classes
    dashed = [path for path in tree.iter("path") if path.attrib["class"] == "tone2 stroke"]
    assert [path.attrib["stroke-dasharray"] for path in dashed] == ["6 4", "6 4"]
    assert len(list(tree.iter("circle"))) == 1
    assert [title.text for title in tree.iter("title")] == ["line", "dashed", "dots"]


def test_words_are_escaped_and_a_legend_names_several() -> None:
    one = Chart(EVIL, EVIL, EVIL, (Series(EVIL, ((0.0, 1.0),)),), EVIL)
    two = Chart("t", "x", "y", (Series(EVIL, ((0.0, 1.0),)), Series("b", ((0.0, 2.0),), "dotted", 0)), names=(EVIL,))
    page = html(Page("p", sections=(Section("s", (one, Charts((two, two)), Heading(EVIL))),)))
    assert page.count("<script>") == 1
    assert "onload=" not in re.sub(r"&quot; onload=&quot;y", "", page)
    assert 'class="legend"' not in chart_html(one)
    assert chart_html(two).count("<li>") == 2


def test_pages_and_pictures_have_the_same_colours() -> None:
    light = asset("page.css").split("@media")[0]
    assert len(PALETTE) == 9
    for tone, colour in enumerate(PALETTE):
        assert f"--c{tone}:#{bytes(colour).hex()};" in light
        assert f".tone{tone}{{stroke:var(--c{tone});fill:var(--c{tone})}}" in asset("page.css")
