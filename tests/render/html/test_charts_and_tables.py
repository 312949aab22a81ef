"""Charts as SVG: words escaped, a legend, the colours of pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gamlens import GamlensError
from gamlens.render import PALETTE, Chart, Charts, Heading, Page, Section, Series, Table, html
from gamlens.render.html.charts_and_tables import chart_html, table_html
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


def test_a_shaded_table_colours_its_cells() -> None:
    rows = (("a", 0.5, "–"), ("b", -1.0, 2.0))
    plain = table_html(Table(("name", "up", "down"), rows))
    assert "style=" not in plain
    nan = float("nan")
    shaded = table_html(Table(("name", "up", "down"), rows, ((0.0, 1.0, nan), (0.0, -0.5, 7.0))))
    found = re.findall(r"color-mix\(in srgb,var\(--c(\d)\) (\d+)%,transparent\)", shaded)
    assert found == [("2", "62"), ("4", "31"), ("2", "62")]
    assert "sticky" not in shaded
    assert 'data-sort="-1.0"' in shaded
    with pytest.raises(GamlensError, match="2 rows and 3 columns has the shades"):
        Table(("name", "up", "down"), rows, ((0.0, 1.0),))


def test_a_pinned_table_keeps_its_first_column_in_view() -> None:
    table = table_html(Table(("name", "a long head"), (("a", 1), ("b", 2)), pinned=True, upright=True))
    assert table.count("position:sticky") == 3
    assert table.count("writing-mode:sideways-lr") == 1
    assert re.search(r"<th[^>]*sideways-lr[^>]*>a long head</th>", table)
