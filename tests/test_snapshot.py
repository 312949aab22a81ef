"""What `benchmarks/snapshot.py` calls a difference, and what it accepts."""

from __future__ import annotations

import math
from typing import Any

import nets
import pytest
import snapshot
import snapshot_cases
import torch

from gamlens import GamlensError, Lens


@pytest.mark.parametrize(
    ("a", "b", "size"),
    [
        (1, 1, None),
        (1.0, 1.5, 0.5),
        (10.0, 11.0, 0.1),
        ("a", "b", math.inf),
        (1, True, math.inf),
        (None, 0, math.inf),
        (math.nan, math.nan, None),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), None),
        (torch.tensor([0.0]), torch.tensor([-0.0]), None),
        (torch.tensor([0.5, 0.25]), torch.tensor([0.5, 0.5]), 0.25),
        (torch.tensor([4.0, 1.0]), torch.tensor([4.0, 2.0]), 0.25),
        (torch.tensor([1.0]), torch.tensor([math.nan]), math.inf),
        (torch.tensor([1.0]), torch.tensor([1]), math.inf),
        (torch.zeros(2), torch.zeros(3), math.inf),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
    ],
)
def test_distance(a: Any, b: Any, size: float | None) -> None:
    found = snapshot.distance(a, b)
    assert (found and found[0]) == size


def test_what_is_missing_differs() -> None:
    old, new = {"a": {"x": 1, "y": 2}, "b": {}}, {"a": {"x": 1, "z": 2}, "c": {}}
    assert [(one.case, one.leaf) for one in snapshot.differences(old, new)] == [
        *(("a", "y"), ("a", "z"), ("b", ""), ("c", "")),
    ]


@pytest.mark.parametrize(
    ("case", "gap", "atol", "fine"),
    [
        ("resnet50/classify n=2", 1e-7, 0.0, False),
        ("resnet50/classify n=2", 1e-7, 1e-6, True),
        ("densenet201/classify n=2", 5e-7, 0.0, True),
        ("densenet201/classify n=1", 5e-7, 0.0, False),
        ("densenet201/classify n=2", 2e-6, 0.0, False),
    ],
)
def test_what_is_accepted(case: str, gap: float, atol: float, fine: bool, capsys: pytest.CaptureFixture[str]) -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    assert snapshot.report({case: {"maps": zero}}, {case: {"maps": zero + gap}}, atol) is fine
    assert ("accepted" if fine else "DIFFERS") in capsys.readouterr().out


def test_an_explanation_is_stored_whole_and_is_the_same_again() -> None:
    lens, batch = Lens(nets.small().float()), nets.images(2).float()
    cases = [("net/classify n=2", lambda: lens.classify(batch, [1, 2], n=2)), ("net/compare", _failing)]
    first, second = (snapshot.computed(iter(cases), "", stop=True) for _ in range(2))
    assert not list(snapshot.differences(first, second))
    leaves = first["net/classify n=2"]
    assert leaves["/maps"].shape == (2, 64, 64)
    assert {"/scores", "/targets", "/boxes", "/about/method", "/blocks/layer3", "warnings"} <= set(leaves)
    assert not [name for name in leaves if "versions" in name]
    assert first["net/compare"]["error"] == "GamlensError"


def _failing() -> None:
    raise GamlensError("no")


def test_other_errors_end_a_stored_run_and_are_noted_in_a_comparison() -> None:
    cases = [("a", lambda: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        snapshot.computed(iter(cases), "", stop=True)
    assert "ZeroDivisionError" in snapshot.computed(iter(cases), "", stop=False)["a"]["error"]


def test_leaves_name_the_way_to_a_value() -> None:
    found = dict(snapshot_cases.leaves({"a": [1, {"b": "text"}], "versions": {"torch": "2"}}))
    assert found == {"/a/length": 2, "/a/0": 1, "/a/1/b": "text"}
