"""Class names that a checkpoint itself holds: their order, what is wrong with them, and labels that the user gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gamlens import GamlensWarning, Lens
from gamlens.cli import app
from gamlens.data import Dataset, Sample, align
from gamlens.data.class_names import VOC_CLASSES
from gamlens.models import load
from gamlens.models.class_order import whole_number

DIGITS = ("nil", "ace", "two", "trey", "four", "five", "six", "seven", "ate", "nine")
NUMBERED = dict(reversed(list(enumerate(DIGITS))))


def tensors() -> dict[str, torch.Tensor]:
    return nets.small().float().state_dict()


@pytest.mark.parametrize(
    "beside",
    [
        {"idx_to_class": NUMBERED},
        {"idx_to_class": {str(number): name for number, name in NUMBERED.items()}},
        {"class_to_idx": {name: number for number, name in NUMBERED.items()}},
        {"classes": list(DIGITS)},
        {"idx_to_class": NUMBERED, "classes": ["other"] * 10},
    ],
)
def test_names_come_in_the_order_of_their_numbers(beside: dict[str, Any], tmp_path: Path) -> None:
    torch.save({"state_dict": tensors(), "num_classes": 10, **beside}, tmp_path / "mine.pth")
    lens = Lens(nets.small().float(), weights=str(tmp_path / "mine.pth"))
    assert lens.labels == DIGITS
    assert lens.classify(torch.rand(1, 3, 64, 64), "trey").targets.tolist() == [3]
    inside = load(nets.small().float(), weights={"model": {"state_dict": tensors(), **beside}})
    assert inside.labels == DIGITS


def test_labels_of_the_user_come_first_even_where_the_file_is_wrong() -> None:
    given = {"state_dict": tensors(), "idx_to_class": {0: "a", 2: "b"}}
    lens = Lens(nets.small().float(), weights=given, labels=[name.upper() for name in DIGITS])
    assert lens.labels[1] == "ACE"


@pytest.mark.parametrize("beside", [{}, {"classes": 10}, {"classes": [1, 2]}, {"idx_to_class": None, "classes": []}])
def test_something_else_under_these_names_is_not_read(beside: dict[str, Any]) -> None:
    assert load(nets.small().float(), weights={"state_dict": tensors(), **beside}).labels == ()


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"idx_to_class": {**NUMBERED, 11: "jack"}}, "its 11 classes from 0 to 10: class 10 is missing"),
        ({"idx_to_class": {number + 1: name for number, name in NUMBERED.items()}}, "class 0 is missing"),
        ({"idx_to_class": {**NUMBERED, 9: "nine", 0.5: "half"}}, "class 10 is missing"),
        ({"class_to_idx": {"a": 0, "b": 0}}, "does not number its 2 classes from 0 to 1: class 1 is missing"),
        ({"class_to_idx": {"a": "9" * 5000}}, "class 0 is missing"),
        ({"class_to_idx": {"a": torch.tensor([0, 1])}}, "class 0 is missing"),
        ({"idx_to_class": {**NUMBERED, 4: 4.5}}, "4.5, which is no name"),
        ({"idx_to_class": {**NUMBERED, 10: "jack"}}, "names 11 classes, and the last layer of the network has 10 out"),
        ({"classes": list(DIGITS[:9])}, "names 9 classes, and the last layer of the network has 10 outputs"),
        ({"classes": list(DIGITS[:8])}, "names 8 classes, and the last layer"),  # a convolution has 8 channels
    ],
)
def test_names_that_do_not_fit_are_left_out_with_a_warning(beside: dict[str, Any], said: str) -> None:
    with pytest.warns(GamlensWarning, match=rf"'state dict' are not used: .*{said}.*labels=") as told:
        found = load(nets.small().float(), weights={"state_dict": tensors(), **beside})
    assert len(told) == 1
    assert found.labels == ()
    assert all(torch.equal(value, tensors()[key]) for key, value in found.module.state_dict().items())


@pytest.mark.parametrize("number", [float, torch.tensor, np.int64, np.float32, str])
def test_whole_numbers_of_any_type_are_numbers(number: Callable[[int], Any]) -> None:
    beside = {"class_to_idx": {name: number(place) for place, name in NUMBERED.items()}}
    assert load(nets.small().float(), weights={"state_dict": tensors(), **beside}).labels == DIGITS


@pytest.mark.parametrize("given", [True, None, 1.5, "1.5", "x", float("nan"), float("inf"), 1j, torch.zeros(2)])
def test_what_is_no_whole_number(given: Any) -> None:
    assert whole_number(given) is None


def test_a_network_without_a_head_is_loaded_without_names() -> None:
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 7, 3), torch.nn.ReLU(), torch.nn.Conv2d(7, 5, 3))
    given = {"state_dict": body.state_dict(), "class_to_idx": {f"c{number}": number for number in range(7)}}
    with pytest.warns(GamlensWarning, match="names 7 classes, and the last layer of the network has 5 outputs"):
        assert load(body, weights=given).labels == ()


def test_a_network_by_name_has_as_many_classes_as_names(tmp_path: Path) -> None:
    """A layer inside has 16 outputs, the head 10: the warning and the command say so."""
    made = load("lenet5", weights="random").module.state_dict()
    assert any(len(tensor) == 16 for tensor in made.values())
    torch.save({"state_dict": made, "classes": [f"c{number}" for number in range(16)]}, tmp_path / "wrong.pth")
    with pytest.warns(GamlensWarning, match=r"wrong.pth' are not used: it names 16 classes, .* has 10 outputs"):
        load("lenet5", weights=tmp_path / "wrong.pth")
    told = CliRunner().invoke(app, ["blocks", "lenet5", "--weights", str(tmp_path / "wrong.pth")])
    assert told.exit_code == 0
    assert "names 16 classes" in " ".join(told.stderr.split())
    torch.save({"state_dict": made, "idx_to_class": NUMBERED}, tmp_path / "right.pth")
    assert Lens("lenet5", weights=tmp_path / "right.pth").labels == DIGITS


@pytest.mark.slow
def test_the_public_layout_of_tresnet_has_its_own_order() -> None:
    """20 classes are Pascal VOC's by their number; the checkpoint's own order comes before that, and data follow it."""
    import timm

    names = tuple(sorted(VOC_CLASSES, reverse=True))
    state = timm.create_model("tresnet_m", num_classes=20).state_dict()
    public = {"state_dict": state, "num_classes": 20, "idx_to_class": dict(enumerate(names))}
    network = load("tresnet_m", weights=public)
    assert network.labels == names != VOC_CLASSES
    dataset = Dataset("voc", "here", VOC_CLASSES, (Sample("a", "a.jpg", (VOC_CLASSES.index("cat"),)),))
    assert align(dataset, network.labels).samples[0].labels == (names.index("cat"),)
