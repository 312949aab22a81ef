"""The table of readings: which are measured, how they are named, and what a line of the table says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import readings
import torch

from gamlens import Lens
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.tables import Cell, Setting
from gamlens.metrics import Interval

METHODS = ("gam", "grad_cam")


@pytest.mark.parametrize(
    ("kind", "task", "combinations", "single"),
    [
        ("objective", "classification", 8, 4),  # input, fill, lattice
        ("objective", "dot", 16, 5),  # input, fill, masked, lattice
        ("localization", "classification", 4, 3),  # input, lattice
        ("localization", "dot", 4, 3),
    ],
)
def test_every_combination_is_read_once(kind: str, task: str, combinations: int, single: int) -> None:
    made = list(readings.protocols(kind, task, METHODS, one=False))
    assert len(made) == len(set(made)) == combinations
    few = list(readings.protocols(kind, task, METHODS, one=True))
    assert len(few) == len(set(few)) == single
    assert made[0] == few[0] == Protocol(kind, task, METHODS, pairs="neighbour")


def test_readings_of_both_networks() -> None:
    groups = list(readings.readings("resnet50", "classification", METHODS, one=True))
    names = [reading.name for group in groups for reading in group]
    assert names[:2] == ["as usual", "probability"]
    assert {"fill=mean", "fill=mean, probability", "input=crop"} <= set(names)
    names = [
        reading.name for group in readings.readings("densenet201", "cosine", METHODS, one=False) for reading in group
    ]
    usual = ["as usual", "norm5 before its ReLU", "transitions", "ReLUs of transitions"]
    assert names == usual * 2
    both = replace(groups[0][0].protocol, task="cosine", masked="both", fill="mean")
    assert replace(groups[0][0], protocol=both).name == "fill=mean, masked=both"


def test_a_line_by_hand() -> None:
    """The paper: ADP 17.47 and 17.22 for GAM, 18.49 and 18.56 for Grad-CAM, PIC 38.12 ..."""
    setting = Setting("classification", "ilsvrc", "all", "resnet50", "")
    values = {("gam", 1): 18.47, ("gam", 2): 20.22, ("grad_cam", 1): 18.49, ("blank", 0): 99.0, ("centre", 0): 20.0}
    cells = [Cell(setting, "ADP", method, n, Interval(mean, mean, mean, 7)) for (method, n), mean in values.items()]
    reading = readings.Reading("resnet50", "", Protocol("objective", methods=METHODS, fill="mean"), "probability")
    (line,) = readings.lines_of(reading, cells)
    assert (line["metric"], line["items"], line["reading"]) == ("ADP", 7, "fill=mean, probability")
    assert line["distance"] == pytest.approx((1 + 3 + 0) / 3)
    text = readings.show([line]).splitlines()
    assert text[0] == "### resnet50, classification: ADP % (lower is better), 7 items"
    assert text[2] == "| reading | GAM n=1 | GAM n=2 | Grad-CAM n=1 | blank | centre | from the paper |"
    assert text[4] == "| the paper | 17.47 | 17.22 | 18.49 |  |  |  |"
    assert text[5] == "| fill=mean, probability | 18.47 | 20.22 | 18.49 | 99.00 | 20.00 | 1.33 |"


def test_the_literal_form_stands_beside_the_numbers_of_the_paper() -> None:
    found = readings.paper_line(Protocol("objective", "dot", ("grad_cam_pp_literal",)), "ADP", "resnet50")
    assert found == {"grad_cam_pp_literal n=1": 53.45, "grad_cam_pp_literal n=2": 55.65}


def test_blocks_of_densenet_are_there_and_differ() -> None:
    """norm5 is read before the ReLU that overwrites it; transitions and their ReLUs are tensors of their own."""
    torch.manual_seed(0)
    net = Lens("densenet121", weights="random").model
    for name, blocks in readings.BLOCKS["densenet201"].items():
        if blocks:
            trace = Lens(net, blocks=list(blocks)).trace(torch.randn(1, 3, 64, 64), 0, n=4)
            assert trace.blocks == blocks
            last = trace.activations[blocks[-1]]
            assert (float(last.min()) < 0) == (name == "norm5 before its ReLU")
