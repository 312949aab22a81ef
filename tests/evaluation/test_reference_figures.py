"""The comparison of runs with the figures of an independent implementation (benchmarks/reference_figures.py)."""

from __future__ import annotations

from pathlib import Path

import paper_data
import pytest
import reference_figures as figures

from gamlens.evaluation.paper_layout import paper_table
from gamlens.evaluation.paper_runs import NetworkSource, measure_run, plan_table, read_run
from gamlens.evaluation.paper_table import fill_table
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.tables import Cell, Setting
from gamlens.metrics import Interval

SETTING = Setting("", "ilsvrc", "all", "", "")


def cell(metric: str, method: str, n: int) -> Cell:
    return Cell(SETTING, metric, method, n, Interval(50.0, 49.0, 51.0, 10))


def about(model: str = "ResNet", transform: str = "Transform(size=(224, 224))", **choices) -> dict[str, object]:
    protocol = {**Protocol().record(), **choices}
    weights = "embedded" if model == figures.LITE0 else f"weights/{figures.RESNET50}"
    return {"model": model, "weights": weights, "data": "ilsvrc", "transform": transform, "protocol": protocol}


@pytest.mark.parametrize(
    ("run", "subset", "confidence", "wanted", "expected"),
    [
        (about(lattice="keep"), "all", "logit", ("IoU", "gam", 2), 56.07),
        (about(lattice="keep"), "10", "logit", ("IoU", "grad_cam", 3), 11.95),
        (about(), "all", "logit", ("IoU", "gam", 2), 56.59),
        (about(), "all", "logit", ("IoU", "grad_cam", 1), 56.43),
        (about(), "all", "logit", ("IoU", "grad_cam", 2), None),
        (about(), "all", "logit", ("Pointing", "gam", 1), None),
        (about(task="dot", pairs="neighbour", hold_out_by="maps"), "all", "logit", ("IoU", "gam", 1), 54.32),
        (about(task="dot", pairs="neighbour"), "all", "logit", ("IoU", "gam", 1), None),
        (about(task="dot", hold_out_by="maps"), "all", "logit", ("IoU", "gam", 1), None),
        (about(kind="objective", lattice="keep"), "all", "probability", ("PIC", "gam", 2), 19.2),
        (about(kind="objective"), "all", "probability", ("PIC", "gam", 2), None),
        (about(kind="objective"), "all", "logit", ("ADP", "centre", 0), 20.73),
        (about(kind="objective"), "25", "logit", ("ADP", "gam", 1), None),
        (about(kind="objective", task="cosine", pairs="neighbour"), "all", "logit", ("PIC", "grad_cam", 1), 24.1),
        (about(box="largest"), "all", "logit", ("IoU", "gam", 1), 56.03),
        (about(views=["flip"]), "all", "logit", ("IoU", "gam", 1), 56.18),
        (about(transform="Transform(size=(448, 448))"), "all", "logit", ("IoU", "gam", 1), 58.17),
        (about(input="crop"), "all", "logit", ("IoU", "gam", 1), None),
        (about(figures.LITE0), "all", "logit", ("IoU", "gam", 3), 56.80),
        (about(figures.LITE0), "all", "logit", ("IoU", "grad_cam_pp", 1), None),
        (about(figures.LITE0, kind="objective"), "all", "logit", ("ADP", "gam", 2), 10.29),
    ],
)
def test_the_reference_of_a_number(run, subset: str, confidence: str, wanted: tuple[str, str, int], expected) -> None:
    assert figures.reference(run, subset, confidence, cell(*wanted)) == expected


def test_a_run_is_compared_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the table; a number without a reference is not shown."""
    root = paper_data.ilsvrc(tmp_path / "ILSVRC")
    protocol = Protocol(methods=("gam",), n=(1,), hold_out=4)
    sources = {"resnet": NetworkSource(paper_data.lens, root, named=True)}
    plan = plan_table(paper_table(2), sources, protocol, limit=9)
    plan = type(plan)(plan.table, plan.runs[:1], ())
    measure_run(plan.runs[0], tmp_path / "out", batch=8)
    filled = fill_table(plan, {run.key: read_run(run, tmp_path / "out") for run in plan.runs})
    places = figures.run_folders(tmp_path / "out")
    assert [place.name for place in places] == ["ilsvrc-resnet-classification-localization"]
    assert figures.run_folders(places[0]) == places
    found = list(figures.compare(places[0]))
    ours = {one.setting.rpartition(", ")[2]: one.ours for one in found if (one.metric, one.n) == ("IoU", 1)}
    lines = [line for line in filled.lines if line.model]
    assert ours == {line.line.subset: line.cells["gam", 1].value.mean for line in lines}
    assert figures.show(found).count("\n") == 2
    monkeypatch.setattr(figures, "reference", lambda run, subset, confidence, cell: 1.0 if cell.n else None)
    shown = figures.show(list(figures.compare(places[0])))
    assert f"{ours['25'] - 1:+.2f}" in shown
