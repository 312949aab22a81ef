"""The report: whole, self-contained, readable in a browser, and honest about what is missing."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from run_files import write_run
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform, metrics, render
from gamlens.cli import app
from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.render import Chart, Charts, Grid, Table, Text
from gamlens.report import cases
from gamlens.report import evaluation as report
from gamlens.report import evaluation_sections as sections
from gamlens.report.cases import source
from gamlens.report.paired_values import Column, aligned, columns, difference, reference, rivals

IMAGES, SIDE = 24, 64
TITLES = ["Numbers", "IoU against threshold", "Item by item", "Gains by object size", "Best and worst cases", "Errors",
          "How it was measured"]  # fmt: skip


@pytest.fixture(scope="module")
def data(boxed: Callable[..., Path]) -> Path:
    """Boxes from small to large."""
    return boxed(IMAGES, lambda number: 20 + 3 * number, ("0", "1"))


def measured(lens: Lens, data: Path, kind: str = "localization", task: str = "classification") -> results.Run:
    protocol = Protocol(kind, task, hold_out=4)
    dataset = load("table", data / "items.csv")
    items = units(dataset, protocol)
    rows = [row for part in evaluate(lens, items, protocol, batch=16) for row in part]
    return results.collect(results.describe(lens, dataset, protocol, len(items)), rows)


@pytest.mark.parametrize("task", ["classification", "cosine"])
def test_cases_of_a_refined_run_show_refined_maps(lens: Lens, data: Path, task: str) -> None:
    protocol = Protocol("localization", task, refine=1, keep=0.25, pairs="neighbour", hold_out=4)
    dataset = load("table", data / "items.csv")
    unit = units(dataset, protocol)[0]
    run = results.Run(results.describe(lens, dataset, protocol, 1), {}, [])
    shown = [mock.Mock(method="gam", n=2)]
    (found,) = cases._maps(run, unit, "y", shown, lens)
    images = [str(sample.image) for sample in unit.samples]
    how = protocol.refinement
    expected = (
        lens.classify(images[0], unit.label, refine=how) if len(images) == 1 else lens.compare(*images, refine=how).y
    )
    torch.testing.assert_close(found.maps, expected.maps)
    assert found.about["refine"]["keep"] == 0.25


@pytest.fixture(scope="module")
def run(lens: Lens, data: Path) -> results.Run:
    return measured(lens, data)


def synthetic(items: int, root: str) -> results.Run:
    """A run of so many items whose IoU rises by method and falls with the threshold."""
    make = random.Random(0)
    rows: list[dict[str, Any]] = []
    groups = [("gam", 1), ("gam", 2), ("grad_cam", 1), ("grad_cam", 2), ("grad_cam_pp", 2), ("centre", 0)]
    for item in range(items):
        hard = make.random()
        for method, n in groups:
            level = min(1.0, hard * (1 + 0.2 * (method == "gam")) + 0.1 * make.random())
            iou = [level * (1 - abs(t - 0.3)) for t in metrics.THRESHOLDS]
            rows.append({"item": f"{item:05d}.jpg", "label": item % 10, "held_out": item % 10 == 0,
                         "method": method, "n": n, "side": "", "map_mean": 0.2, "error": "", "iou": iou,
                         "pointing": float(level > 0.5)})  # fmt: skip
    about = {"model": "Small", "weights": "file.pth", "data": "table", "root": root, "items": items,
             "protocol": Protocol().record(), "versions": {"gamlens": "0"},
             "command": "gamlens evaluate ..."}  # fmt: skip
    return results.collect(about, rows)


def blocks(page: render.Page, title: str) -> list[Any]:
    return list(next(section.blocks for section in page.sections if section.title == title))


def words(found: list[Any]) -> str:
    return " ".join(block.text for block in found if isinstance(block, Text))


def test_columns_and_pairs_by_hand(run: results.Run) -> None:
    found = columns(run)
    base = reference(found)
    assert base is not None
    assert (base.name, len(base.keys)) == ("GAM, n=2", IMAGES)
    cell = next(c for c in tables.cells(run) if (c.method, c.n, c.metric) == ("gam", 2, "IoU"))
    assert base.mean() == pytest.approx(cell.value.mean)
    assert base.threshold == cell.threshold
    others = rivals(found, base)
    assert [(o.method, o.n) for o in others if o.method == "gam"] == [("gam", 1)]
    assert {o.method for o in others} == {"gam", "grad_cam", "grad_cam_pp"}
    falling = replace(base.metric, better="down")
    worst = rivals([replace(column, metric=falling) for column in found], replace(base, metric=falling))[0]
    assert worst.mean() <= next(o for o in others if o.method == worst.method).mean()
    _, mine, theirs = aligned(base, others[0])
    by_hand = [
        100 * (_iou(run, "gam", 2, key[0], base.threshold) - _iou(run, others[0].method, others[0].n, key[0],
                                                                  others[0].threshold))
        for key in base.keys if int(key[0][:2]) % 4
    ]  # fmt: skip
    assert (mine - theirs).tolist() == pytest.approx(by_hand)
    gap = difference(replace(base, metric=falling), others[0])
    assert gap.mean == pytest.approx(-np.mean(by_hand))
    assert gap.wins == sum(value < 0 for value in by_hand)


def test_a_report_of_pairs_counts_whole_pairs(lens: Lens, data: Path) -> None:
    """Every item has two values; intervals and the sign test are by pairs, in all sections."""
    run = measured(lens, data, "localization", "cosine")
    found = columns(run)
    base = reference(found)
    assert base is not None
    pairs = len(set(base.clusters))
    assert (len(base.keys), base.clusters[0]) == (2 * pairs, base.keys[0][0])
    other = rivals(found, base)[0]
    keys, mine, theirs = aligned(base, other)
    gap = difference(base, other)
    assert gap == metrics.paired(mine, theirs, clusters=[item for item, _ in keys])
    assert gap.wins + gap.losses + gap.ties == len({item for item, _ in keys}) == len(keys) / 2
    page = report.page([("pairs", run)])
    table = next(block for block in blocks(page, "Numbers") if isinstance(block, Table))
    place = table.header.index("IoU: gain over smallest n")
    cell = next(c for c in tables.cells(run) if (c.method, c.n, c.metric) == ("gam", 2, "IoU"))
    line = next(row for row in table.rows if row[:2] == ("GAM", "2"))
    assert cell.gain is not None
    assert line[place] == f"{cell.gain.mean:+.2f} [{cell.gain.low:+.2f}, {cell.gain.high:+.2f}]"
    assert all(row[place] == "" for row in table.rows if row[1] in ("1", ""))
    assert f"count {len(keys)} maps of {len(keys) // 2} pairs" in words(blocks(page, "Numbers"))
    assert "whole pairs" in words(blocks(page, "Item by item"))


def test_a_run_of_an_early_version_held_out_single_maps(lens: Lens, data: Path) -> None:
    about = measured(lens, data, "localization", "cosine").about
    old = {**about, "protocol": {k: v for k, v in about["protocol"].items() if k != "hold_out_by"}}
    for described, single in ((about, False), (old, True)):
        found = source(results.Run(described, {}), root=None, split=None)
        assert any(x != y for x, y in (unit.held_out for unit in found.units.values())) == single


def test_gains_by_size_resample_whole_pairs() -> None:
    """25 pairs whose maps have one size: the first of five groups has the first ten maps, of five pairs."""
    keys = tuple((f"{item:02d}", side) for item in range(25) for side in "xy")
    draw = np.random.default_rng(0).random(25).repeat(2)  # both maps of a pair gain alike
    clusters, used = tuple(item for item, _ in keys), torch.ones(50, dtype=torch.bool)
    ours, theirs = (
        Column("gam", n, keys, metrics.METRICS["iou"], values, used, clusters=clusters)
        for n, values in ((2, torch.from_numpy(draw)), (1, torch.zeros(50, dtype=torch.float64)))
    )
    chart, _ = sections.sizes(ours, [theirs], dict.fromkeys(keys, 0.1))
    expected = metrics.bootstrap(torch.from_numpy(draw[:10]), clusters=clusters[:10])
    assert chart.series[0].spread[0] == (expected.low, expected.high)
    plain = metrics.bootstrap(torch.from_numpy(draw[:10]))
    assert expected.high - expected.low > 1.2 * (plain.high - plain.low)
    many, _ = sections.sizes(ours, [theirs] * 30, dict.fromkeys(keys, 0.1))
    assert isinstance(many, Chart)
    ends = [point[0] for one in many.series for point in one.points]
    assert -0.5 < min(ends) < max(ends) < len(many.names) - 0.5  # every mark stays at the name of its group


def _iou(run: results.Run, method: str, n: int, item: str, threshold: float | None) -> float:
    row = next(row for row in run.rows if (row["method"], row["n"], row["item"]) == (method, n, item))
    return float(row["iou"][metrics.THRESHOLDS.index(threshold)])


def test_one_run_has_every_part(run: results.Run, lens: Lens) -> None:
    page = report.page([("loc", run)], report.ReportOptions(lens=lens, count=2))
    assert [section.title for section in page.sections] == TITLES
    assert "1 could not be measured" in page.lead
    table = next(block for block in blocks(page, "Numbers") if isinstance(block, Table))
    assert table.header[:3] == ("method", "n", "IoU ↑")
    assert [row[0] for row in table.rows][-4:] == [f"{name} (control)" for name in metrics.CONTROLS]
    cell = next(c for c in tables.cells(run) if (c.method, c.n, c.metric) == ("gam", 1, "IoU"))
    assert f"{cell.value.mean:.2f} [{cell.value.low:.1f}, {cell.value.high:.1f}]" in table.rows[0]
    (curve,) = blocks(page, "IoU against threshold")
    assert len(curve.series) == 3 * 2 + len(metrics.CONTROLS)
    first = next(one for one in curve.series if one.name == "GAM, n=1")
    assert first.points[first.ring][1] == pytest.approx(cell.value.mean)
    charts = next(block for block in blocks(page, "Item by item") if isinstance(block, Charts))
    assert [len(chart.series[0].points) for chart in charts.items] == [18] * 3
    sizes = next(block for block in blocks(page, "Gains by object size") if isinstance(block, Chart))
    assert len(sizes.names) == 5
    assert [one.name for one in sizes.series][-1] == "over GAM, n=1"
    grids = [block for block in blocks(page, "Best and worst cases") if isinstance(block, Grid)]
    assert len(grids) == 4
    assert (len(grids[0].rows), grids[0].columns[:2]) == (2, ("Photo", "GAM, n=2"))
    best = max(columns(run), key=lambda c: (c.method, c.n) == ("gam", 2))
    top = max(float(v) for v in best.values[best.used])
    assert grids[0].rows[0][1].caption == f"IoU {top:.1f} %"
    (errors,) = [block for block in blocks(page, "Errors") if isinstance(block, Table)]
    assert [row[0] for row in errors.rows] == ["broken.png"]
    text = str(blocks(page, "How it was measured"))
    assert all(part in text for part in ("Small", "fingerprint", "protocol: hold_out", "version of torch"))


def test_gains_by_size_are_those_of_the_bins(run: results.Run) -> None:
    page = report.page([("loc", run)])
    chart = next(block for block in blocks(page, "Gains by object size") if isinstance(block, Chart))
    found = {(c.method, c.n): c for c in columns(run)}
    base, other = found["gam", 2], found["gam", 1]
    small = [n for n, key in enumerate(base.keys) if int(key[0][:2]) < 5 and bool(base.used[n])]
    expected = float((base.values[small] - other.values[small]).mean())
    assert chart.series[-1].points[0][1] == pytest.approx(expected)
    assert chart.names[0] == "6-14 %"


@pytest.mark.parametrize(("kind", "task"), [("objective", "classification"), ("localization", "cosine")])
def test_other_kinds_of_run(kind: str, task: str, lens: Lens, data: Path) -> None:
    page = report.page([("run", measured(lens, data, kind, task))], report.ReportOptions(lens=lens, count=1))
    titles = [section.title for section in page.sections]
    assert ("IoU against threshold" in titles) == (kind == "localization")
    grid = next(block for block in blocks(page, "Best and worst cases") if isinstance(block, Grid))
    assert grid.rows[0][1].caption.startswith("drop" if kind == "objective" else "IoU")
    assert len(render.html(page)) < 3_000_000


def test_several_runs_have_a_section_each(run: results.Run, data: Path, lens: Lens) -> None:
    random_run = replace(run, about={**run.about, "weights": "random"})
    page = report.page([("a", run), ("b", random_run)])
    assert [section.title for section in page.sections] == ["All runs", "a", "b"]
    assert "random weights" in words(list(page.sections[2].blocks))
    assert not any(isinstance(block, Charts) for block in page.sections[2].blocks)


def test_a_run_with_only_errors_says_so(run: results.Run) -> None:
    failed = replace(run, groups={})
    page = report.page([("bad", failed)])
    assert "No item could be measured" in words(blocks(page, "Numbers"))
    assert [row[0] for row in blocks(page, "Errors")[1].rows] == ["broken.png"]
    both = report.page([("bad", failed), ("worse", failed)])
    assert "None of the runs has a result" in words(list(both.sections[0].blocks))


def test_what_is_not_at_hand_is_said(run: results.Run, data: Path, lens: Lens, tmp_path: Path) -> None:
    gone = replace(run, about={**run.about, "root": str(tmp_path / "gone.csv")})
    page = report.page([("loc", gone)], report.ReportOptions(lens=lens))
    for title in ("Gains by object size", "Best and worst cases"):
        assert "gone.csv" in words(blocks(page, title))
        assert "--root" in words(blocks(page, title))
    moved = report.page([("loc", gone)], report.ReportOptions(root=data / "items.csv", count=1))
    said = blocks(moved, "Best and worst cases")
    assert "--model" in words(said)
    grid = next(block for block in said if isinstance(block, Grid))
    assert (grid.width, "GAM, n=2" in grid.rows[0][0].caption) == (1, True)
    unknown = replace(run, about={name: value for name, value in run.about.items() if name != "root"})
    assert "does not say where" in words(blocks(report.page([("loc", unknown)]), "Best and worst cases"))
    other = Lens(nets.small().float(), transform=Transform((SIDE, SIDE)))
    other.name = "Other"
    with pytest.raises(GamlensError, match=r"measured with Small, and --model gives Other"):
        report.page([("loc", run)], report.ReportOptions(lens=other))
    with pytest.raises(GamlensError, match="no run"):
        report.page([])
    with pytest.raises(GamlensError, match="logit or probability, not 'logits'"):
        report.ReportOptions(confidence="logits")


def test_a_picture_that_is_gone_is_said(run: results.Run, data: Path, lens: Lens) -> None:
    """The files are there when the table is read and cannot be opened when the pictures are made."""
    best = reference(columns(run))
    order = sorted(
        best.keys, key=lambda key: -float(best.values[best.keys.index(key)]) * bool(best.used[best.keys.index(key)])
    )
    victim = data / order[0][0]
    kept = victim.read_bytes()
    try:
        victim.write_bytes(b"no longer an image")
        said = words(
            blocks(report.page([("loc", run)], report.ReportOptions(lens=lens, count=1)), "Best and worst cases")
        )
    finally:
        victim.write_bytes(kept)
    assert "pictures are missing" in said
    assert victim.name in said


@pytest.mark.slow
def test_five_thousand_items_are_a_small_file(lens: Lens, tmp_path: Path) -> None:
    """With pictures of noise, which compress worst of all; every item's file is the same one."""
    items = 5000
    noise = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "one.jpg", quality=50)
    lines = ["path,label,x0,y0,x1,y1"]
    for item in range(items):
        os.link(tmp_path / "one.jpg", tmp_path / f"{item:05d}.jpg")
        lines.append(f"{item:05d}.jpg,{item % 10},5,5,{50 + item // 10},{50 + item // 15}")
    (tmp_path / "items.csv").write_text("\n".join(lines))
    made = synthetic(items, str(tmp_path / "items.csv"))
    write_run(tmp_path / "run", made.about, made.rows)
    page = report.page([("run", results.read(tmp_path / "run"))], report.ReportOptions(lens=lens, count=8))
    text = render.write(page, tmp_path / "report.html").read_text()
    assert 2_000_000 < (tmp_path / "report.html").stat().st_size < 20_000_000
    assert text.count("<img") == 4 * 8 * 3
    assert text.count("800 of 4500 items drawn") == 3
    assert "gamlens evaluate ..." in text


def test_the_command(run: results.Run, tmp_path: Path) -> None:
    write_run(tmp_path / "loc", run.about, run.rows)
    out = tmp_path / "report.html"
    outcome = CliRunner().invoke(app, ["report", str(tmp_path / "loc"), "--out", str(out), "--cases", "1"])
    assert outcome.exit_code == 0, outcome.stderr
    assert re.sub(r"\s+", "", f"{out}") in re.sub(r"\s+", "", outcome.stdout)
    assert "<h1>Report: loc</h1>" in out.read_text()
    for place, made in (
        ("new/below", "new/below/report.html"),
        ("new/a.html", "new/a.html"),
        ("new", "new/report.html"),
    ):
        outcome = CliRunner().invoke(
            app, ["report", str(tmp_path / "loc"), "-o", str(tmp_path / place), "--cases", "0"]
        )
        assert outcome.exit_code == 0, outcome.stderr
        assert "<h1>Report: loc</h1>" in (tmp_path / made).read_text()
    for arguments, message in (
        ([str(tmp_path / "loc"), "-o", f"{out}/new/page.html", "--cases", "0"], "Cannot write the page to"),
        ([str(tmp_path)], "is not a run: run.json is missing"),
        ([str(tmp_path / "none")], "is not a run: run.json is missing"),
    ):
        outcome = CliRunner().invoke(app, ["report", *arguments])
        assert outcome.exit_code == 1
        assert message in outcome.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (390, "dark")])
def test_in_a_browser(
    width: int, scheme: str, browser: Any, run: results.Run, data: Path, lens: Lens, tmp_path: Path
) -> None:
    """No error, no request but the file itself, every picture loads, tables sort, nothing sticks out of the page."""
    page = report.page(
        [("loc", run), ("adp", measured(lens, data, "objective"))], report.ReportOptions(lens=lens, count=1)
    )
    file = render.write(page, tmp_path / "report.html")
    said: list[str] = []
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(file.as_uri())
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    loaded = tab.eval_on_selector_all("main img", "all => all.map(i => i.complete && i.naturalWidth > 0)")
    assert len(loaded) >= 12
    assert all(loaded)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("svg[role=img]").count() >= 8
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
    table = tab.locator("table").nth(1)
    column = "t => [...t.tBodies[0].rows].map(r => parseFloat(r.cells[2].dataset.sort))"
    button = table.locator("th button").nth(2)
    button.click()
    down = table.evaluate(column)
    button.click()
    assert down == sorted(down, reverse=True)
    assert table.evaluate(column) == down[::-1] == sorted(down)
    assert len(set(down)) > 3
    tab.close()


def test_a_run_records_its_command(run: results.Run, data: Path, lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load("table", data / "items.csv")
    assert run.about["root"] == str(data / "items.csv")
    for program, expected in (
        ("/usr/bin/gamlens", "gamlens evaluate 'a b'"),
        ("/lib/gamlens/__main__.py", "gamlens evaluate 'a b'"),
        ("/usr/bin/pytest", ""),
    ):
        monkeypatch.setattr("sys.argv", [program, "evaluate", "a b"])
        assert results.describe(lens, dataset, Protocol(), 1)["command"] == expected
