"""METRICS drives the evaluation: a metric that is one function and one entry is measured, stored, read and shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from run_files import titles, write_run
from torch import Tensor

from gamlens import METRICS, GamlensError, GamlensWarning, Lens, render
from gamlens.data import Dataset, load
from gamlens.evaluation import ablation, results, runs, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.metric_columns import left_out_note, measure_metrics, metric_column_types
from gamlens.evaluation.protocol import Protocol, units
from gamlens.metrics import THRESHOLDS, Metric, MetricInput
from gamlens.report import evaluation as report
from gamlens.scores import PAIR_SCORES

IMAGES = 12
PROTOCOL = Protocol(methods=("gam", "grad_cam"), n=(1, 2), hold_out=4)


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(IMAGES, lambda number: 20 + 5 * number)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """A metric as somebody would add it: one function, one entry."""
    entry = Metric.on_boxes(share_inside, "Inside", "up", column="inside")
    monkeypatch.setitem(METRICS, "inside", entry)
    return entry


def share_inside(maps: Tensor, boxes: Sequence[Tensor]) -> Tensor:
    """The share of the saliency that lies in the first box: (N,H,W), N of (K_i,4) -> (N,)."""
    found = []
    for values, (x0, y0, x1, y1) in zip(maps, (own[0].int().tolist() for own in boxes), strict=True):
        found.append(values[y0:y1, x0:x1].sum() / values.sum())
    return torch.stack(found)


def share_at(maps: Tensor, boxes: Sequence[Tensor]) -> Tensor:
    """The share of pixels that reach each threshold: (N,T). A grid of its own."""
    return torch.stack([(maps >= t).flatten(1).double().mean(1) for t in THRESHOLDS], dim=1)


def rows_of(lens: Lens, root: Path, protocol: Protocol) -> tuple[Dataset, list[dict]]:
    dataset = load("table", root / "items.csv")
    return dataset, [row for part in evaluate(lens, units(dataset, protocol), protocol, batch=5) for row in part]


def measured(lens: Lens, root: Path, protocol: Protocol) -> results.Run:
    dataset, rows = rows_of(lens, root, protocol)
    return results.collect(results.describe(lens, dataset, protocol, len(rows)), rows)


def test_a_new_metric_is_in_rows_files_tables_and_the_report(
    mine: Metric, lens: Lens, root: Path, tmp_path: Path
) -> None:
    run = measured(lens, root, PROTOCOL)
    row = next(row for row in run.rows if (row["item"], row["method"], row["n"]) == ("03.png", "gam", 2))
    maps = lens.classify(str(root / "03.png"), 1, n=2).maps
    expected = float(share_inside(maps, [torch.tensor([row["truth"]])])[0])
    assert row["inside"] == pytest.approx(expected)
    write_run(tmp_path / "run", run.about, run.rows)
    for again in (results.read(tmp_path / "run"), results.read(tmp_path / "run", only=tables.needed())):
        np.testing.assert_array_equal(again.groups["gam", 2]["inside"], run.groups["gam", 2]["inside"])
        cell = next(c for c in tables.cells(again) if (c.metric, c.method, c.n) == ("Inside", "gam", 2))
        assert cell.value.mean == pytest.approx(100 * float(run.groups["gam", 2]["inside"].mean()))
        assert cell.value.n == IMAGES
    _, lines = tables.rows_of(tables.cells(run))
    assert [line[3] for line in lines] == list(titles("localization"))
    assert any(contest.metric == "Inside" for contest in tables.contests(run))
    page = report.page([("loc", run)], report.ReportOptions(count=0))
    assert "Inside ↑" in render.html(page)


def test_a_new_metric_is_in_the_ablation(mine: Metric, lens: Lens, root: Path, tmp_path: Path) -> None:
    plan = ablation.Plan(("gam",), (1, 2), ("mean", "max"))
    dataset, rows = rows_of(lens, root, plan.protocol(lens))
    about = results.describe(lens, dataset, plan.protocol(lens), len(rows))
    found = ablation.table(rows, about, plan)
    own = [row["inside"] for row in rows if (row["method"], row["n"], row.get("fuse")) == ("gam", 2, "max")]
    assert found["gam", 2, "max"]["Inside"].value.mean == pytest.approx(100 * float(np.mean(own)))
    ablation.write(found, plan, tmp_path, about)
    assert (tmp_path / "inside.csv").read_text().startswith("Inside %,")


def test_a_grid_of_thresholds_is_cut_like_iou(lens: Lens, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "at", Metric.on_boxes(share_at, "At", "up", column="at", type="[float32]"))
    run = measured(lens, root, PROTOCOL)
    cell = next(cell for cell in tables.cells(run) if (cell.metric, cell.method, cell.n) == ("At", "gam", 1))
    columns = run.groups["gam", 1]
    held = columns["held_out"]
    best = int(columns["at"][held].mean(axis=0).argmax())
    assert cell.threshold == THRESHOLDS[best]
    assert cell.value.mean == pytest.approx(100 * float(columns["at"][~held, best].mean()))
    assert (cell.left_out, cell.why) == (3, "belong to the hold-out")


def test_a_run_from_before_the_metric_is_read(
    lens: Lens, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table lacks the metric. A run that was broken off before and went on after is refused: half has no value."""
    old = measured(lens, root, PROTOCOL)
    write_run(tmp_path / "old", old.about, old.rows)
    numbers = tables.rows_of(tables.cells(old))
    part = next((tmp_path / "old" / "parts").iterdir())
    earlier = results.encode(old.rows)
    monkeypatch.setitem(METRICS, "at", Metric.on_boxes(share_at, "At", "up", column="at", type="[float32]"))
    monkeypatch.setitem(METRICS, "inside", Metric.on_boxes(share_inside, "Inside", "up", column="inside"))
    for again in (results.read(tmp_path / "old"), results.read(tmp_path / "old", only=tables.needed())):
        assert tables.rows_of(tables.cells(again)) == numbers
        assert "inside" not in again.groups["gam", 1]
    later = measured(lens, root, PROTOCOL)
    for name, first, second in (("a", earlier, results.encode(later.rows)), ("b", results.encode(later.rows), earlier)):
        write_run(tmp_path / name, old.about, old.rows)
        folder = tmp_path / name / "parts"
        (folder / part.name).write_bytes(first)
        (folder / part.name.replace("00.", "01.")).write_bytes(second)
        (tmp_path / name / "manifest.json").unlink()
        about = {**old.about, "chunks": 2}
        (tmp_path / name / "run.json").write_text(json.dumps(about))
        with pytest.raises(
            GamlensError, match=r"Part 1 .*has other columns.*inside \(double\).*start over with --fresh"
        ):
            results.read(tmp_path / name)


def test_a_run_with_the_metric_of_somebody_else_is_read(
    mine: Metric, lens: Lens, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured(lens, root, PROTOCOL)
    write_run(tmp_path / "run", run.about, run.rows)
    monkeypatch.delitem(METRICS, "inside")
    again = results.read(tmp_path / "run")
    assert again.groups["gam", 1]["inside"] == run.groups["gam", 1]["inside"].tolist()
    assert [cell.metric for cell in tables.cells(again)][:3] == ["IoU", "MaxBoxAcc", "MaxBoxAccV2"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"mine": torch.ones(2), "more": torch.ones(2)},
            r"'made_up' measured a column 'more' that it does not declare",
        ),
        ({}, r"'made_up' declares the column 'mine', and its `measure` did not return it"),
        (
            {"mine": torch.ones(2), "pointing": torch.ones(2)},
            r"'made_up' measured a column 'pointing' that it does not",
        ),
        (
            {"mine": torch.ones(2, 19)},
            r"'made_up', column 'mine': float64 takes a tensor of shape \(N,\), found \(2, 19\)",
        ),
        ({"mine": torch.ones(3)}, r"'made_up', column 'mine': there are 2 items, found 3 values"),
    ],
)
def test_no_column_is_lost(returned: dict[str, Tensor], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Metric(share_at, "Made up", "up", ("localization",), {"mine": "float64"}, lambda given: returned)
    monkeypatch.setitem(METRICS, "made_up", entry)
    maps, boxes = torch.rand(2, 8, 8), [torch.tensor([[1.0, 1.0, 4.0, 4.0]])] * 2
    given = MetricInput(maps=maps, boxes=boxes, predicted=torch.ones(2, 19, 4))
    with pytest.raises(GamlensError, match=message):
        measure_metrics(("localization",), given)


def test_an_evaluation_with_a_lost_column_fails_at_once(
    lens: Lens, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Metric(share_at, "Made up", "up", ("localization",), {"mine": "float64"}, lambda given: {})
    monkeypatch.setitem(METRICS, "made_up", entry)
    with pytest.raises(GamlensError, match=r"'made_up' declares the column 'mine'"):
        rows_of(lens, root, PROTOCOL)


def test_columns_have_one_type_and_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "other", Metric.on_boxes(share_inside, "Other", "up", column="iou"))
    with pytest.raises(
        GamlensError, match=r"'other' declares the column 'iou' as float64, another metric as \[float32\]"
    ):
        metric_column_types()
    monkeypatch.setitem(METRICS, "other", Metric.on_boxes(share_inside, "Other", "up", column="pointing"))
    maps, boxes = torch.rand(1, 8, 8), [torch.tensor([[1.0, 1.0, 4.0, 4.0]])]
    with pytest.raises(GamlensError, match="'other' measured the column 'pointing', which another metric fills"):
        measure_metrics(("localization",), MetricInput(maps=maps, boxes=boxes, predicted=torch.ones(1, 19, 4)))
    monkeypatch.setitem(METRICS, "other", Metric.on_boxes(share_inside, "Other", "up", column="label"))
    with pytest.raises(GamlensError, match="'label', which every row has already"):
        results.column_types()


def test_rows_with_an_unknown_column_are_refused(lens: Lens, root: Path) -> None:
    _, rows = rows_of(lens, root, PROTOCOL)
    for take in (results.encode, lambda rows: results.collect({}, rows)):
        with pytest.raises(GamlensError, match="has the column odd, which no metric declares"):
            take([*rows, {**rows[-1], "odd": 1.0}])


def test_a_shared_measure_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(given: MetricInput) -> dict[str, Tensor]:
        calls.append(len(given.maps))
        return {"both": torch.ones(len(given.maps))}

    for name in ("one", "two"):
        monkeypatch.setitem(METRICS, name, Metric(share_at, name, "up", ("objective",), {"both": "float32"}, measure))
    assert measure_metrics(("objective",), MetricInput(maps=torch.rand(2, 3, 3)))["both"] == [1, 1]
    assert calls == [2]


def test_the_columns_of_files_are_as_they_were(lens: Lens, root: Path) -> None:
    """Programs that read the files of runs know these names, in this order; newer metrics stand among them."""
    schema = pq.read_schema(pa.BufferReader(results.encode(rows_of(lens, root, PROTOCOL)[1])))
    known = [
        "item", "image", "label", "method", "n", "side", "held_out", "map_mean", "area", "iou", "boxes", "truth",
        "pointing", "before_logit", "after_logit", "before_probability", "after_probability", "before_similarity",
        "after_similarity", "insertion", "deletion", "error",
    ]  # fmt: skip
    assert [name for name in schema.names if name in known] == known
    kinds = {name: str(schema.field(name).type) for name in ("label", "n", "held_out", "iou", "boxes", "truth")}
    assert kinds == {"label": "int32", "n": "int16", "held_out": "bool", "iou": "list<element: float>",
                     "boxes": "list<element: int16>", "truth": "list<element: float>"}  # fmt: skip


def test_a_share_of_a_score_that_may_be_negative_is_left_out(
    lens: Lens, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADP is no number there: it is in no table, and the evaluation and the report say so."""
    protocol = Protocol("objective", "cosine", ("gam",), (1,), pairs="neighbour")
    run = measured(lens, root, protocol)
    assert left_out_note(run.about) == ""
    assert {cell.metric for cell in tables.cells(run)} == {"ADP", "PIC", "Average gain", "Sparseness"}
    monkeypatch.setitem(PAIR_SCORES, "cosine", replace(PAIR_SCORES["cosine"], positive=False))
    assert {cell.metric for cell in tables.cells(run)} == {"PIC", "Average gain", "Sparseness"}
    page = report.page([("pairs", run)], report.ReportOptions(count=0))
    assert "Left out: ADP, ADP (equal mass), ADCC. It is a share of the explained score" in render.html(page)
    dataset = load("table", root / "items.csv")
    with pytest.warns(GamlensWarning, match="Left out: ADP, .*'cosine' may be zero or negative"):
        runs.evaluate_run(lambda: lens, dataset, units(dataset, protocol)[:2], protocol, tmp_path)
    assert tables.cells(results.read(tmp_path))


def test_adp_is_left_out_of_an_evaluation_by_euclidean_distance(lens: Lens, root: Path, tmp_path: Path) -> None:
    """The distance is stored as it is, never positive; PIC, which only compares, is measured."""
    protocol = Protocol("objective", "euclidean", ("gam",), (1,), pairs="neighbour")
    dataset = load("table", root / "items.csv")
    with pytest.warns(GamlensWarning, match="Left out: ADP, .*'euclidean' may be zero or negative"):
        runs.evaluate_run(lambda: lens, dataset, units(dataset, protocol)[:2], protocol, tmp_path)
    run = results.read(tmp_path)
    assert {cell.metric for cell in tables.cells(run)} == {"PIC", "Sparseness"}
    (before,) = {tuple(columns["before_similarity"]) for columns in run.groups.values() if len(columns["item"])}
    assert len(before) == 4
    assert max(before) < 0
