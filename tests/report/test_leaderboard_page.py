"""The page of leaderboards and the folder of their files."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gamlens import GamlensError
from gamlens.evaluation import results
from gamlens.evaluation.leaderboard import Board, board
from gamlens.evaluation.protocol import Protocol
from gamlens.metrics import METRICS, Metric, MetricValues, StoredColumns
from gamlens.render import Chart, Charts, Page, Table, Text, html
from gamlens.report.leaderboard_page import BOARD_FILES, FRONT_NAME, page, write_board

ROWS = {("gam", 2): 0.7, ("gam", 1): 0.5, ("gam+refine", 2): 0.8, ("captum:Saliency", 1): 0.3,
        ("grad_cam_lib:ScoreCAM", 1): 0.6, ("ones", 0): 0.4}  # fmt: skip
TITLES = ["Ranks", "Numbers", "Quality against time", "Which metrics agree", "Controls", "Differences to GAM, n=2",
          "Notes", "Errors", "How it was measured"]  # fmt: skip


def _milliseconds(stored: StoredColumns) -> MetricValues:
    return MetricValues(1000 * stored.columns["seconds"].double())


@pytest.fixture(autouse=True)
def _few_metrics() -> Iterator[None]:
    """Three metrics of quality, and time. The registry comes back in its order."""
    before = dict(METRICS)
    kept = Metric(lambda x: x, "Kept", "up", ("objective",), {"kept": "float64"}, lambda given: {})
    lost = Metric(lambda x: x, "Lost", "down", ("objective",), {"lost": "float64"}, lambda given: {},
                  fooled_by="Ones are perfect by <lost>.")  # fmt: skip
    time = Metric(lambda x: x, "Time, ms", "down", ("objective",), {"seconds": "float64"}, lambda given: {},
                  _milliseconds, unit="ms")  # fmt: skip
    METRICS.clear()
    METRICS.update(pxap=before["pxap"], kept=kept, lost=lost, time=time)
    yield
    METRICS.clear()
    METRICS.update(before)


def made(*, timed: bool = True, controls: bool = True, **about: Any) -> Board:
    draw, rows = random.Random(0), []
    for item in range(12):
        for place, ((method, n), level) in enumerate(ROWS.items()):
            one = level + 0.1 * draw.random()
            row = {"item": f"{item}.jpg", "image": f"{item}.jpg", "label": 1, "method": method, "n": n, "side": "",
                   "held_out": False, "error": "", "pxap": one, "lost": 1 - one, "kept": 1 - level}  # fmt: skip
            if timed and n:
                row["seconds"] = 0.004 * 10**place
            rows += [row] if n or controls else []
    rows.append({"item": "broken.jpg", "method": "gam", "n": 2, "error": "cannot be read"})
    protocol = {**Protocol().record(), "kind": "objective+localization"}
    described = {"model": "Small", "weights": "file.pth", "data": "table", "items": 13, "protocol": protocol,
                 "versions": {"gamlens": "0"}, "command": "gamlens evaluate ...", **about}  # fmt: skip
    return board(results.collect(described, rows))


def blocks(found: Page, title: str) -> list[Any]:
    return list(next(section.blocks for section in found.sections if section.title == title))


def words(found: list[Any]) -> str:
    return " ".join(block.text for block in found if isinstance(block, Text))


def test_the_page_of_one_board() -> None:
    found = page([("first", made())])
    assert [section.title for section in found.sections] == TITLES
    assert found.title == "Leaderboard: first"
    assert "5 methods and 1 control: `Small`" in found.lead
    assert "**GAM, refined, n=2**" in found.lead
    ranks = blocks(found, "Ranks")[0]
    assert isinstance(ranks, Table)
    assert ranks.header == ("row", "mean rank", "PxAP", "Kept", "Lost", "Time, ms")
    assert ranks.rows[0][0] == "1. GAM, refined, n=2"
    assert (ranks.shades[0][2], min(line[2] for line in ranks.shades)) == (1.0, -1.0)
    assert "1 is the best of 5" in words(blocks(found, "Ranks"))
    assert "does not count Time, ms" in words(blocks(found, "Ranks"))
    assert "cannot be read" in str(blocks(found, "Errors"))
    assert "Ones are perfect by <lost>." in words(blocks(found, "Notes"))
    shown = html(found)
    assert "Ones are perfect by &lt;lost&gt;." in shown
    assert "position:sticky" in shown


def test_correlations_and_differences_are_shaded() -> None:
    found = page([("first", made())])
    matrix, single = (block for block in blocks(found, "Which metrics agree") if isinstance(block, Table))
    assert matrix.rows[0] == ("1. PxAP", "", "-1.00", "1.00")
    assert matrix.shades[1][1:] == pytest.approx((-1, math.nan, -1), nan_ok=True)
    assert single.rows[0][3] == "1.00"
    table = next(block for block in blocks(found, "Differences to GAM, n=2") if isinstance(block, Table))
    assert [row[0] for row in table.rows][:2] == ["1. GAM, refined, n=2", "2. GAM, n=2 (reference)"]
    assert (table.shades[0][1] > 0, table.shades[1][1], table.shades[-1][1] < 0) == (True, 0, True)


def test_quality_against_time_is_on_a_logarithmic_axis() -> None:
    own = made()
    charts = [
        chart
        for block in blocks(page([("first", own)]), TITLES[2])
        if isinstance(block, Charts)
        for chart in block.items
    ]
    assert [chart.title for chart in charts] == ["mean rank against time", "PxAP against time", "Kept against time"]
    chart: Chart = charts[1]
    assert chart.names == ("1", "10", "100", "1000", "10000", "100000")
    series = {one.name: one for one in chart.series}
    assert set(series) == {FRONT_NAME, "gamlens", "gamlens, refined or views", "captum", "grad_cam_lib"}
    x, y = series["grad_cam_lib"].points[0]
    assert (x, y) == pytest.approx((math.log10(40000), own.row(("grad_cam_lib:ScoreCAM", 1)).mean("pxap")))
    place = next(at for at, row in enumerate(own.methods, start=1) if row.method.startswith("grad_cam_lib"))
    assert series["grad_cam_lib"].labels == (str(place),)
    assert [point[0] for point in series[FRONT_NAME].points] == pytest.approx([math.log10(4), math.log10(400)])
    assert len({one.tone for one in chart.series}) == 5
    assert "lower is better" in charts[0].y
    assert "no other row is both faster and better than: GAM, n=2 (4.00 ms)" in words(
        blocks(page([("a", own)]), TITLES[2])
    )


def test_a_board_without_time_or_controls_has_fewer_sections() -> None:
    found = page([("first", made(timed=False, controls=False))])
    assert [section.title for section in found.sections] == [t for t in TITLES if t not in (TITLES[2], "Controls")]
    assert html(found)


def test_the_page_of_several_boards() -> None:
    found = page([("first", made()), ("second", made(model="Other"))], title="All models")
    assert [section.title for section in found.sections] == ["All boards", "first", "second"]
    assert found.title == "All models"
    table = blocks(found, "All boards")[0]
    assert table.header == ("row", "mean", "first", "second")
    assert table.rows[0][0] == "GAM, refined, n=2"
    assert html(found).count("Which metrics agree") == 2
    with pytest.raises(GamlensError, match="no board to show"):
        page([])


def test_files_of_a_board(tmp_path: Path) -> None:
    files = write_board(tmp_path / "out", [("first", made())])
    assert [file.name for file in files] == [*BOARD_FILES]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(BOARD_FILES)
    assert "<!doctype html>" in files[0].read_text().lower()
    assert files[1].read_text().startswith("# Leaderboard: first")
    assert files[2].read_text().startswith("board,task,data,model,method,n,title")
    assert files[3].read_text().startswith("[")
    (tmp_path / "in the way").write_text("a file")
    with pytest.raises((GamlensError, OSError)):
        write_board(tmp_path / "in the way", [("first", made())])
