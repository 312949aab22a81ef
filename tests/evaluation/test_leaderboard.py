"""Leaderboards: ranks, ties, missing items, controls that win, and correlations against scipy."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from gamlens import GamlensError, metrics
from gamlens.evaluation import leaderboard_texts as texts
from gamlens.evaluation import results
from gamlens.evaluation.leaderboard import (
    COST_GROUP,
    PLACE_GROUP,
    SCORE_GROUP,
    average_ranks,
    board,
    board_columns,
    kendall_tau,
    rank_correlation,
    row_intervals,
)
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.row_titles import method_title, row_title
from gamlens.evaluation.run_scores import needed
from gamlens.metrics import METRICS, Metric, MetricValues, StoredColumns

ITEMS = 24
LEVELS = {  # what the value of each row is about, from 0 to 1
    ("gam", 2): 0.7, ("gam", 1): 0.5, ("gam+refine", 2): 0.8, ("captum:Saliency", 1): 0.3,
    ("my_file.py:explain", 1): 0.3, ("blank", 0): 0.05, ("centre", 0): 0.6,
}  # fmt: skip
SECONDS = {("gam", 2): 0.02, ("gam", 1): 0.01, ("gam+refine", 2): 0.2, ("captum:Saliency", 1): 0.015,
           ("my_file.py:explain", 1): 3.0}  # fmt: skip


def _milliseconds(stored: StoredColumns) -> MetricValues:
    return MetricValues(1000 * stored.columns["seconds"].double())


@pytest.fixture(autouse=True)
def _few_metrics() -> Iterator[None]:
    """Boards of three metrics of quality, one of which is better if lower, and of time. The order comes back, too."""
    before = dict(METRICS)
    lost = Metric(lambda x: x, "Lost", "down", ("objective",), {"lost": "float64"}, lambda given: {},
                  fooled_by="Ones lose nothing.")  # fmt: skip
    time = Metric(lambda x: x, "Time, ms", "down", ("objective", "localization"), {"seconds": "float64"},
                  lambda given: {}, _milliseconds, unit="ms")  # fmt: skip
    METRICS.clear()
    METRICS.update(pointing=before["pointing"], pxap=before["pxap"], lost=lost, time=time)
    yield
    METRICS.clear()
    METRICS.update(before)


def made(*, skip: dict[tuple[str, int], int] | None = None, noise: float = 0.05, **protocol: Any) -> results.Run:
    """A run of two kinds; with `skip`, a row has only every k-th item."""
    draw, rows = random.Random(0), []
    for item in range(ITEMS):
        hard = 0.2 * draw.random()
        for (method, n), level in LEVELS.items():
            one = level + hard * 0.5 + noise * draw.random()
            row = {"item": f"{item:02d}.jpg", "image": f"{item:02d}.jpg", "label": 1, "method": method, "n": n,
                   "side": "", "held_out": item % 6 == 0, "error": "", "pxap": one, "lost": 1 - one,
                   "pointing": float(item < 24 * level)}  # fmt: skip
            if (method, n) in SECONDS:
                row["seconds"] = SECONDS[method, n]
            if item % (skip or {}).get((method, n), 1) == 0:
                rows.append(row)
    about = {"model": "Small", "weights": "file.pth", "data": "table", "items": ITEMS,
             "protocol": {**Protocol().record(), "kind": "objective+localization", **protocol}}  # fmt: skip
    return results.collect(about, rows)


def test_titles_of_rows() -> None:
    assert [row_title(*key) for key in LEVELS][:3] == ["GAM, n=2", "GAM, n=1", "GAM, refined, n=2"]
    assert row_title("gam+refine+views", 2) == "GAM, refined, views, n=2"
    assert (row_title("blank", 0), row_title("random_refined", 0)) == ("blank (control)", "random, refined (control)")
    assert method_title("no_such_library:Thing+views").endswith(", views")
    assert "n=" not in row_title("captum:Saliency", 1)


def test_rows_ranks_and_ties_by_hand() -> None:
    found = board(made())
    order = [row.key for row in found.rows]
    assert order[:3] == [("gam+refine", 2), ("gam", 2), ("gam", 1)]
    assert [row.is_control for row in found.rows] == [False] * 5 + [True] * 2
    pointing = {row.key: row.cells["pointing"].rank for row in found.methods}
    assert pointing[("captum:Saliency", 1)] == pointing[("my_file.py:explain", 1)] == 4.5
    assert all(math.isnan(cell.rank) for row in found.controls for cell in row.cells.values())
    best = found.row(("gam+refine", 2))
    assert best.mean_rank == 1.0
    assert (best.cells["pxap"].best, best.cells["pxap"].tied) == (True, False)
    assert found.row(("gam", 2)).mean_rank == 2.0
    assert not found.row(("gam", 1)).cells["pxap"].tied
    assert [m.group for m in found.metrics] == [PLACE_GROUP, PLACE_GROUP, SCORE_GROUP, COST_GROUP]
    assert [m.ranked for m in found.metrics] == [True, True, True, False]
    assert found.row(("gam", 2)).mean("time") == pytest.approx(20)
    assert math.isnan(found.row(("blank", 0)).mean("time"))


def test_numbers_are_those_of_bootstrap_and_paired() -> None:
    run = made()
    found = board(run)
    own = {key: 100 * torch.from_numpy(columns["lost"]) for key, columns in run.groups.items()}
    names = run.groups["gam", 1]["item"]
    for key in LEVELS:
        cell, value = found.row(key).cells["lost"], metrics.bootstrap(own[key], clusters=names)
        assert list(vars(cell.value).values()) == pytest.approx(list(vars(value).values()))
        gap = metrics.paired(-own[key], -own["gam", 2], clusters=names)
        assert cell.gain is not None
        assert (cell.gain.mean, cell.gain.low, cell.gain.high) == pytest.approx((gap.mean, gap.low, gap.high))
    assert found.row(("gam+refine", 2)).cells["lost"].gain.mean > 0  # type: ignore[union-attr]


def test_intervals_of_many_lines_with_gaps_and_clusters() -> None:
    make = torch.Generator().manual_seed(3)
    values = torch.rand(5, 30, generator=make, dtype=torch.float64)
    values[1, ::4] = math.nan
    values[2, 3:6] = math.nan
    values[4] = math.nan
    clusters = [f"{at // 3:02d}" for at in range(30)]
    for line, one in zip(values, row_intervals(values, clusters), strict=True):
        expected = metrics.bootstrap(line, clusters=clusters)
        assert [one.mean, one.low, one.high, one.n] == pytest.approx([*vars(expected).values()], nan_ok=True)


def test_rows_of_fewer_items_are_compared_on_the_common_ones() -> None:
    run = made(skip={("captum:Saliency", 1): 3})
    found = board(run)
    assert (found.items, found.choice) == (8, "common")
    assert {row.cells["pxap"].value.n for row in found.rows} == {8}
    assert found.row(("gam", 2)).items == ITEMS
    assert "the same 8 items" in texts.items_note(found)
    assert "Rows have 8 to 24; the fewest have" in texts.items_note(found)
    third = 100 * torch.from_numpy(run.groups["gam", 2]["pxap"][::3])
    assert found.row(("gam", 2)).mean("pxap") == pytest.approx(float(third.mean()))
    every = board(run, items="all")
    assert every.items == ITEMS
    assert [every.row(key).cells["pxap"].value.n for key in (("gam", 2), ("captum:Saliency", 1))] == [24, 8]
    gain = every.row(("captum:Saliency", 1)).cells["pxap"].gain
    assert gain is not None
    assert gain == found.row(("captum:Saliency", 1)).cells["pxap"].gain
    assert "from 8 to 24" in texts.items_note(every)
    assert "Every row is measured on the same 24 items." in texts.board_notes(board(made()))


def test_values_that_a_method_lacks_are_left_out_for_all() -> None:
    run = made()
    run.groups["gam", 1]["pxap"][:4] = math.nan
    found = board(run)
    assert {row.cells["pxap"].value.n for row in found.rows} == {20}
    assert any(note.startswith("PxAP counts 20 of these items") for note in texts.board_notes(found))
    assert found.row(("gam", 2)).cells["lost"].value.n == ITEMS


def test_a_metric_that_some_methods_lack_has_ranks_but_no_weight() -> None:
    run = made()
    del run.groups["gam", 1]["lost"]
    found = board(run)
    assert [m.ranked for m in found.metrics if m.name == "lost"] == [False]
    assert found.row(("gam", 1)).mean_rank == pytest.approx(3)
    assert found.row(("gam+refine", 2)).cells["lost"].rank == 1
    assert "Not in the mean rank, because some methods do not have it: Lost." in texts.board_notes(found)
    assert 'gam,1,"GAM, n=1",no,lost' not in texts.leaderboard_csv([("b", found)])


def test_controls_that_win() -> None:
    found = board(made())
    best = found.best_control("pxap")
    assert best is not None
    assert best.key == ("centre", 0)
    assert found.row(("gam", 2)).cells["pxap"].beats_controls is True
    assert found.row(("gam", 1)).cells["pxap"].beats_controls is False
    assert found.row(("gam", 1)).cells["time"].beats_controls is None
    header, lines = texts.control_table(found)
    line = dict(zip(header, next(line for line in lines if line[0] == "Lost ↓"), strict=True))
    assert (line["best control"], line["methods it beats"], line["clearly"]) == ("centre", "3 of 5", "3")
    assert line["what fools it"] == "Ones lose nothing."
    assert line["best method"].endswith("(GAM, refined, n=2)")


def test_rank_functions_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    make = torch.Generator().manual_seed(1)
    for size in (3, 8, 30):
        a = torch.randint(0, size, (size,), generator=make).double()
        b = torch.rand(size, generator=make, dtype=torch.float64)
        assert average_ranks(a).tolist() == stats.rankdata(a.numpy()).tolist()
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
        assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
        gap = torch.cat([a, torch.tensor([math.nan, 1.0])]), torch.cat([b, torch.tensor([5.0, math.nan])])
        assert rank_correlation(*gap) == pytest.approx(rank_correlation(a, b))
        assert kendall_tau(*gap) == pytest.approx(kendall_tau(a, b))
    constant = torch.ones(5)
    assert math.isnan(rank_correlation(constant, torch.arange(5.0)))
    assert math.isnan(kendall_tau(constant, torch.arange(5.0)))
    assert math.isnan(rank_correlation(torch.arange(2.0), torch.arange(2.0)))


def test_agreement_of_metrics_with_a_plain_loop() -> None:
    stats = pytest.importorskip("scipy.stats")
    run = made(noise=0.6)
    found = board(run)
    own = found.agreement
    assert own.names == ("pointing", "pxap", "lost")
    keys = [row.key for row in found.methods]
    means = {name: [found.row(key).mean(name) for key in keys] for name in own.names}
    assert own.spearman[0][1] == pytest.approx(stats.spearmanr(means["pointing"], means["pxap"]).statistic)
    assert own.kendall[1][2] == pytest.approx(-stats.kendalltau(means["pxap"], means["lost"]).statistic)
    single = []
    for item in range(ITEMS):
        points, parts = ([run.groups[key][name][item] for key in keys] for name in ("pointing", "pxap"))
        if len(set(points)) > 1:
            single.append(stats.spearmanr(points, parts).statistic)
    assert own.by_item[0][1] == pytest.approx(sum(single) / len(single))
    assert own.by_item[1][2] == pytest.approx(1)
    said = texts.agreement_sentences(found)
    assert "agree most: PxAP and Lost (Spearman 1.00, Kendall 1.00, item by item 1.00)" in said[0]
    assert "Pointing agrees least with the others" in said[-1]


def test_the_front_of_quality_and_time() -> None:
    found = board(made())
    assert [row.key for row in found.pareto_front("pxap")] == [("gam", 1), ("gam", 2), ("gam+refine", 2)]
    assert [row.key for row in found.pareto_front()] == [("gam", 1), ("gam", 2), ("gam+refine", 2)]
    assert [title for _, title in texts.front_metrics(found)] == ["mean rank", "Pointing", "Lost"]
    assert texts.front_sentences(found)[0].endswith(
        "GAM, n=1 (10.0 ms); GAM, n=2 (20.0 ms); GAM, refined, n=2 (200 ms)."
    )
    run = made()
    for columns in run.groups.values():
        columns.pop("seconds", None)
    untimed = board(run)
    assert (untimed.time, untimed.pareto_front(), texts.front_sentences(untimed)) == (None, (), [])


def test_the_reference() -> None:
    run = made()
    assert board(run, reference=("gam", 1)).reference == ("gam", 1)
    less = replace(run, groups={key: own for key, own in run.groups.items() if key != ("gam", 2)})
    assert board(less).reference == ("gam", 1)
    other = replace(run, groups={key: own for key, own in run.groups.items() if key[0] != "gam"})
    assert board(other).reference == ("gam+refine", 2)
    with pytest.raises(GamlensError, match=r"no row gam with n=7 .* choose one of gam \(n=2\)"):
        board(run, reference=("gam", 7))


def test_what_cannot_be_a_board() -> None:
    run = made()
    with pytest.raises(GamlensError, match="random weights"):
        board(replace(run, about={**run.about, "weights": "random"}))
    with pytest.raises(GamlensError, match="no method to rank"):
        board(replace(run, groups={key: own for key, own in run.groups.items() if key[1] == 0}))
    with pytest.raises(GamlensError, match="'common' or 'all'"):
        board(run, items="some")  # type: ignore[arg-type]
    run.groups["gam", 1]["item"] = [f"other {name}" for name in run.groups["gam", 1]["item"]]
    with pytest.raises(GamlensError, match="No item was measured for every row"):
        board(run)
    with pytest.raises(GamlensError, match="has no metric 'nothing'"):
        board(made()).metric("nothing")


def test_pairs_are_matched_by_side_and_resampled_whole() -> None:
    run = made(task="cosine")
    for number, columns in enumerate(run.groups.values()):
        columns["item"] = [f"{at // 2:02d}~{at // 2 + 1:02d}" for at in range(ITEMS)]
        columns["side"] = ["xy"[at % 2] for at in range(ITEMS)]
        if number == 1:
            for name, values in columns.items():
                columns[name] = values[::-1] if isinstance(values, list) else values[::-1].copy()
    found = board(run)
    assert (found.items, found.clusters, found.unit) == (ITEMS, ITEMS // 2, "pairs")
    gain = found.row(("gam", 1)).cells["pxap"].gain
    mine, theirs = (100 * torch.from_numpy(run.groups[key]["pxap"].copy()) for key in (("gam", 1), ("gam", 2)))
    expected = metrics.paired(mine.flip(0), theirs, clusters=run.groups["gam", 2]["item"])
    assert gain is not None
    assert (gain.mean, gain.low, gain.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert {*board_columns()} == {*needed(), "side"}


def test_tables_and_markdown() -> None:
    found = board(made())
    tables = texts.leaderboard_tables(found)
    assert list(tables) == [
        "Where the object is", "What the model's score says", "Cost",
        "Differences to the reference: where the object is",
        "Differences to the reference: what the model's score says", "Differences to the reference: cost",
        "Rank correlation", "Controls",
    ]  # fmt: skip
    header, lines = tables["Where the object is"]
    assert header == ("row", "n", "mean rank", "Pointing ↑", "PxAP ↑")
    assert lines[0][:3] == ("1. GAM, refined", "2", "1.0")
    assert lines[0][-1].startswith("**")
    assert next(line for line in lines if "GAM" in line[0] and line[1] == "1")[-1].endswith(" †")
    assert lines[-1][0] == "centre (control)"
    assert len(tables["Cost"][1]) == 5
    differences = tables["Differences to the reference: what the model's score says"][1]
    assert ("2. GAM, n=2 (reference)", "–") in differences
    assert differences[0][1].startswith("**+")
    assert tables["Rank correlation"][0] == ("metric", "1", "2", "3")
    page = texts.leaderboard_markdown([("first | run", found)])
    assert page.startswith("# Leaderboard: first | run\n\n5 methods and 2 controls: `Small`")
    assert "## Controls\n\n| metric | best control |" in page
    assert page.count("\n## ") == len(tables) + 2
    assert "95 % bootstrap intervals, which resample whole images" in page


def test_wide_groups_are_split_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "METRICS_PER_TABLE", 1)
    names = list(texts.metric_groups(board(made())))
    assert names == [
        "Where the object is (1 of 2)",
        "Where the object is (2 of 2)",
        "What the model's score says",
        "Cost",
    ]


def test_rows_that_are_tied_with_the_best_are_marked() -> None:
    run = made(noise=0.0)
    run.groups["gam", 2]["pxap"] = run.groups["gam+refine", 2]["pxap"].copy()
    run.groups["gam", 1]["pxap"] = run.groups["gam+refine", 2]["pxap"] + [0.1, -0.11] * (ITEMS // 2)
    found = board(run)
    assert [found.row(key).cells["pxap"].best for key in (("gam", 2), ("gam+refine", 2), ("gam", 1))] == [
        True,
        True,
        False,
    ]
    assert found.row(("gam", 2)).cells["pxap"].rank == 1.5
    assert found.row(("gam", 1)).cells["pxap"].tied
    pxap = found.metric("pxap")
    assert texts.marked(found.row(("gam", 1)).cells["pxap"], pxap).endswith(texts.TIED_MARK)


def test_csv_and_json_hold_every_number() -> None:
    boards = [("one", board(made())), ("two", board(made(), items="all"))]
    lines = list(csv.DictReader(io.StringIO(texts.leaderboard_csv(boards))))
    assert len(lines) == 2 * (5 * 4 + 2 * 3)
    line = next(one for one in lines if (one["method"], one["n"], one["metric"]) == ("gam", "1", "lost"))
    cell = boards[0][1].row(("gam", 1)).cells["lost"]
    assert float(line["mean"]) == pytest.approx(cell.value.mean, rel=1e-5)
    assert float(line["difference"]) == pytest.approx(cell.gain.mean, rel=1e-5)  # type: ignore[union-attr]
    assert (line["time"], line["better than controls"], line["rank"], line["items"]) == ("10", "no", "3", str(ITEMS))
    first, second = json.loads(texts.leaderboard_json(boards))
    assert (first["items"]["choice"], second["items"]["choice"]) == ("common", "all")
    assert first["rows"][0]["metrics"]["pxap"]["rank"] == 1
    assert first["rows"][-1]["mean rank"] is None
    assert first["pareto"]["Pointing"][0] == ["gam", 1]


def test_methods_of_pairs_stand_once() -> None:
    """VDSN reads the last block whatever n, so that its rows at larger n are repetitions."""
    run = made()
    again = {("vdsn", n): run.groups["gam", 1] for n in (1, 2)}
    found = board(results.Run(run.about, {**run.groups, **again}))
    assert [row.key for row in found.methods if row.method == "vdsn"] == [("vdsn", 1)]
