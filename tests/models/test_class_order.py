"""Class names that a checkpoint itself holds: their order, what is wrong with them, and labels that the user gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from typer.testing import CliRunner

from gamlens import GamlensError, Lens
from gamlens.cli import app
from gamlens.data import Dataset, Sample, align
from gamlens.data.class_names import VOC_CLASSES
from gamlens.models import load

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
        ({"class_to_idx": {"a": 0, "b": 0}}, "does not number its 2 classes from 0 to 1: class 1 is missing"),
        ({"class_to_idx": {"a": "9" * 5000}}, "class 0 is missing"),
        ({"idx_to_class": {**NUMBERED, 4: 4.5}}, "4.5 is no name"),
        ({"idx_to_class": {**NUMBERED, 10: "jack"}}, "names of 11 classes, and no layer with 11 outputs"),
        ({"classes": list(DIGITS[:9])}, "names of 9 classes, and no layer with 9 outputs"),
    ],
)
def test_a_wrong_order_is_an_error(beside: dict[str, Any], said: str) -> None:
    with pytest.raises(GamlensError, match=rf"{said}.*labels=") as caught:
        load(nets.small().float(), weights={"state_dict": tensors(), **beside})
    assert "'state dict'" in str(caught.value)


def test_a_network_by_name_has_as_many_classes_as_names(tmp_path: Path) -> None:
    """A layer inside has 16 outputs, the head 10: the file of weights and the command say so."""
    made = load("lenet5", weights="random").module.state_dict()
    assert any(len(tensor) == 16 for tensor in made.values())
    torch.save({"state_dict": made, "classes": [f"c{number}" for number in range(16)]}, tmp_path / "wrong.pth")
    with pytest.raises(GamlensError, match="'lenet5' has the names of 16 classes and weights for 10"):
        load("lenet5", weights=tmp_path / "wrong.pth")
    told = CliRunner().invoke(app, ["blocks", "lenet5", "--weights", str(tmp_path / "wrong.pth")])
    assert told.exit_code == 1
    assert "names of 16 classes and weights for 10" in " ".join(told.stderr.split())
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
