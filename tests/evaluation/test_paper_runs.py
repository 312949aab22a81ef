"""The runs of a table: what they measure once, and the lines that are cut out of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import paper_data
import pytest

from gamlens import GamlensError, Lens, metrics
from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.paper_forecast import finished_items, other_run
from gamlens.evaluation.paper_layout import paper_table
from gamlens.evaluation.paper_runs import (
    NetworkSource,
    PaperRun,
    measure_run,
    plan_table,
    read_run,
)
from gamlens.evaluation.paper_table import cut, fill_table
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import Engine

PROTOCOL = Protocol(methods=("gam", "grad_cam_pp_literal"), n=(1, 2), hold_out=4)
RESNET = "resnet"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paper_data.ilsvrc(tmp_path_factory.mktemp("data") / "ILSVRC")


def planned(root: Path, table: int = 2, **options) -> list[PaperRun]:
    source = NetworkSource(paper_data.lens, root, named=True)
    return list(plan_table(paper_table(table), {RESNET: source}, PROTOCOL, **options).runs)


@pytest.fixture(scope="module")
def measured(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PaperRun, results.Run]]:
    """The runs of Table 2 by task."""
    out = tmp_path_factory.mktemp("out")
    found = {}
    for run in planned(root):
        assert finished_items(run, out, 16) == 0
        measure_run(run, out, batch=5, chunk=16)
        assert finished_items(run, out, 16) == len(run.items)
        found[run.protocol.task] = (run, read_run(run, out))
    return found


def separate(run: PaperRun, lens: Lens, subset: str) -> results.Run:
    """A run of its own for one subset."""
    protocol = replace(run.protocol, subset=subset)
    items = units(load("ilsvrc", run.dataset.root), protocol)
    rows = [row for part in evaluate(lens, items, protocol, batch=5) for row in part]
    return results.collect(results.describe(lens, run.dataset, protocol, len(items)), rows)


@pytest.mark.parametrize("task", ["classification", "cosine"])
@pytest.mark.parametrize("subset", ["all", "25", "10"])
def test_a_line_is_what_a_run_of_its_own_measures(measured, task: str, subset: str) -> None:
    """Also for pairs, which are drawn anew from the small objects, and have a hold-out of their own."""
    run, whole = measured[task]
    mine, own = cut(whole, run.rows[subset], subset), separate(run, paper_data.lens(), subset)
    assert mine.about["protocol"] == own.about["protocol"]
    assert mine.about["items"] == own.about["items"]
    a, b = tables.cells(mine), tables.cells(own)
    assert len(a) == len(b) > 0
    for cell, other in zip(a, b, strict=True):
        assert (cell.metric, cell.method, cell.n) == (other.metric, other.method, other.n)
        assert (cell.threshold, cell.left_out, cell.value.n) == (other.threshold, other.left_out, other.value.n)
        ours, theirs = ([c.value.mean, c.value.low, c.value.high] for c in (cell, other))
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_every_item_is_measured_once(root: Path, measured) -> None:
    """Small items are a part of all; pairs are the union of three draws, and a pair of several draws is in it once."""
    run, whole = measured["classification"]
    assert [unit.name for unit in run.items] == [unit.name for unit in run.rows["all"]]
    assert "manifests" not in whole.about
    run, whole = measured["cosine"]
    drawn = {subset: {unit.name for unit in items} for subset, items in run.rows.items()}
    assert {unit.name for unit in run.items} == set.union(*drawn.values())
    assert len(run.items) == len(set.union(*drawn.values())) > len(drawn["all"])
    assert whole.about["subsets"] == {subset: len(items) for subset, items in run.rows.items()}
    assert len(whole.about["manifests"]["items"]) == 64
    assert sorted(set(whole.groups["gam", 1]["item"])) == sorted(unit.name for unit in run.items)


def test_a_pair_that_is_drawn_twice_counts_twice(measured) -> None:
    run, whole = measured["cosine"]
    pair = run.rows["all"][0]
    once, twice = (cut(whole, [pair] * count, "all").groups["gam", 1] for count in (1, 2))
    assert len(twice["item"]) == 2 * len(once["item"]) == 4
    assert twice["side"] == ["x", "y", "x", "y"]
    np.testing.assert_array_equal(twice["iou"], np.concatenate([once["iou"]] * 2))


def test_a_limit_is_of_each_line(root: Path) -> None:
    classes, pairs = planned(root, limit=3)[:2]
    for run in (classes, pairs):
        assert [len(items) for items in run.rows.values()] == [3, 3, 3]
        for subset, items in run.rows.items():
            protocol = replace(run.protocol, subset=subset)
            assert [unit.name for unit in items] == [unit.name for unit in units(run.dataset, protocol)[:3]]
    assert 3 < len(classes.items) <= 9


@pytest.mark.parametrize(("limit", "said"), [(None, None), (3, 3), (31, 31), (32, None)])
def test_a_limit_counts_only_where_it_leaves_items_out(root: Path, limit: int | None, said: int | None) -> None:
    """There are 32 items, and fewer pairs."""
    source = NetworkSource(paper_data.lens, root, named=True)
    assert plan_table(paper_table(2), {RESNET: source}, PROTOCOL, limit=limit).limit == said


def test_a_temperature_is_for_the_probability_of_a_class(root: Path) -> None:
    source = NetworkSource(paper_data.lens, root, named=True)
    protocol = replace(PROTOCOL, kind="objective", temperature=2.5)
    runs = plan_table(paper_table(1), {RESNET: source}, protocol, limit=3).runs
    found = {run.protocol.task: run.protocol.temperature for run in runs}
    assert found == {"classification": 2.5, "cosine": 1, "dot": 1}


def test_another_run_in_the_folder_is_found_before_it_is_refused(root: Path, tmp_path: Path) -> None:
    run, longer = planned(root, limit=3)[0], planned(root, limit=4)[0]
    how = {"batch": 5, "chunk": 16, "engine": Engine()}
    assert other_run(run, tmp_path, **how) == ""
    measure_run(run, tmp_path, batch=5, chunk=16)
    assert other_run(run, tmp_path, **how) == ""
    assert other_run(run, tmp_path, **{**how, "engine": Engine("ray")}) == ""
    for one, options, said in ((longer, how, "items: "), (run, {**how, "batch": 6}, "batch: 5 there, 6 now")):
        assert said in other_run(one, tmp_path, **options)
        with pytest.raises(GamlensError, match=f"holds another run: .*{said}"):
            measure_run(one, tmp_path, **options)


def test_forwards_are_counted(root: Path) -> None:
    """One per image, and one per map of every method, n and control but the one that hides nothing."""
    masked = 2 * 2 + len(metrics.CONTROLS) - 1
    assert [run.forwards for run in planned(root, 1)] == [1 + masked, 2 * (1 + masked), 2 * (1 + masked)]
    assert [run.forwards for run in planned(root, 2)] == [1, 2, 2]


def test_what_is_missing_is_said(root: Path) -> None:
    def broken() -> Lens:
        raise GamlensError("no weights.")

    sources = {RESNET: NetworkSource(paper_data.lens, root, named=True), "densenet": NetworkSource(broken, root),
               "chexnet": NetworkSource(broken)}  # fmt: skip
    plan = plan_table(paper_table(2), sources, PROTOCOL)
    said = {missing.what: missing.why for missing in plan.missing}
    assert "no weights." in said["VRC, DenseNet201"]
    assert "--weights densenet=FILE" in said["VRC, DenseNet201"]
    assert said["XRAY, CheXNet"] == "Give the folder of ChestX-ray8 with --chestxray FOLDER."
    assert "left out on request" in said["COCO, TResNet-L"]
    with pytest.raises(GamlensError, match="no weights"):
        plan_table(paper_table(2), {"densenet": NetworkSource(broken, root, named=True)}, PROTOCOL)
    with pytest.raises(GamlensError, match=r"for 'voc', but no data: give the folder of PASCAL VOC with --voc FOLDER"):
        plan_table(paper_table(2), {"voc": NetworkSource(broken, named=True)}, PROTOCOL)
    with pytest.raises(GamlensError, match=r"Nothing of Table 1 can be measured\. VRC, ResNet101: Give the folder"):
        plan_table(paper_table(1), {RESNET: NetworkSource(broken)}, PROTOCOL)


def test_lines_without_data_keep_the_papers_numbers(measured) -> None:
    plan = plan_table(paper_table(2), {RESNET: NetworkSource(paper_data.lens, Path(measured["dot"][0].dataset.root))},
                      PROTOCOL)  # fmt: skip
    filled = fill_table(plan, {run.key: whole for run, whole in measured.values()})
    assert len(filled.lines) == 25
    assert [bool(line.model) for line in filled.lines[:7]] == [False] * 3 + [True] * 3 + [False]
    coco = next(line for line in filled.lines if line.line.network.short == "COCO")
    assert (coco.cells, coco.paper["gam", 2].value, coco.better) == ({}, 30.7, "up")
    ours = filled.lines[3]
    assert ours.cells["gam", 2].value.mean == pytest.approx(_iou(measured["classification"][1]), abs=1e-6)


def _iou(run: results.Run) -> float:
    """The mean IoU of GAM at n = 2 by hand: the threshold is the best on the hold-out."""
    columns = run.groups["gam", 2]
    grid, held = columns["iou"].astype(np.float64), columns["held_out"]
    return 100 * float(grid[~held][:, grid[held].mean(0).argmax()].mean())
