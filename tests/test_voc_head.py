"""The VOC head: average precision by hand, the minimum that the fit reaches, and the whole network from its file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import voc_head

from gamlens import GamlensError


def test_average_precision_by_hand() -> None:
    """Hits at ranks 1, 3, 4 of 5: precision 1, 2/3, 3/4, and the envelope lifts 2/3 to 3/4."""
    scores = torch.tensor([5.0, 1.0, 3.0, 4.0, 2.0])
    shown = torch.tensor([1, 0, 1, 0, 1])
    assert voc_head.average_precision(scores, shown) == pytest.approx((1 + 3 / 4 + 3 / 4) / 3)


@pytest.mark.parametrize(
    ("scores", "shown", "expected"),
    [
        ([3.0, 2.0, 1.0], [1, 1, 0], 1.0),
        ([3.0, 2.0, 1.0], [0, 0, 1], 1 / 3),
        ([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0], 1 / 4),
        ([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 1], 1 / 4),
    ],
)
def test_average_precision_of_simple_orders(scores: list[float], shown: list[int], expected: float) -> None:
    """The last two: ties are one step, whatever the order of the images."""
    assert voc_head.average_precision(torch.tensor(scores), torch.tensor(shown)) == pytest.approx(expected)


def test_average_precision_without_a_hit() -> None:
    assert math.isnan(voc_head.average_precision(torch.tensor([1.0, 2.0]), torch.tensor([0, 0])))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 60, generator=draw, dtype=torch.float64) + 3
    return x, torch.stack([x[:, 0] > 3, x[:, 1] + x[:, 2] > 7]).T.double()


def test_the_fit_is_at_its_minimum() -> None:
    """The gradient by hand is zero: weight X^T(p - y)/N + l2 w, bias the mean of p - y."""
    x, y = data()
    weight, bias = voc_head.fit(x, y, 0.1)
    error = torch.sigmoid(x @ weight.T + bias) - y
    assert error.mean(dim=0).abs().max() < 1e-5
    assert (error.T @ x / len(x) + 0.1 * weight).abs().max() < 1e-4


def test_the_choice_of_l2_is_the_held_out_cost() -> None:
    """One weight of L2, two folds, done again without turning the features."""
    x, y = data()
    found = voc_head.choose(x, y, weights=(0.3, 0.03), folds=2)
    for l2, value in found.items():
        costs = []
        for held in (slice(0, None, 2), slice(1, None, 2)):
            seen = torch.ones(40, dtype=torch.bool)
            seen[held] = False
            weight, bias = voc_head.fit(x[seen], y[seen], l2)
            costs.append(float(voc_head.cost(x[held] @ weight.T + bias, y[held])))
        assert value == pytest.approx(sum(costs) / 2, abs=1e-4)


def test_a_class_that_a_fold_has_not_seen_costs_nothing_there() -> None:
    """One image shows the second class: held out, nothing is known of it; else it is a class like any other."""
    x, y = data()
    y[:, 1] = 0
    y[0, 1] = 1
    found = voc_head.choose(x, y, weights=(0.3,), folds=2)[0.3]
    weight, bias = voc_head.fit(x[1::2], y[1::2, :1], 0.3)
    held = voc_head.cost(x[::2] @ weight.T + bias, y[::2, :1])
    weight, bias = voc_head.fit(x[::2], y[::2], 0.3)
    other = voc_head.cost(x[1::2] @ weight.T + bias, y[1::2])
    assert found == pytest.approx(float(held + other) / 2, abs=1e-4)


def test_build_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(voc_head.HEAD, raising=False)
    with pytest.raises(GamlensError, match="Set GAMLENS_VOC_HEAD"):
        voc_head.build()


@pytest.mark.slow
@pytest.mark.shared
def test_the_whole_network(
    shared_weights: Path, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits are the head's on the trunk's features; its labels the classes the head was fitted for."""
    import real

    from gamlens.data import load

    dataset = load("voc", shared_data / "VOCdevkit", limit=2)
    draw = torch.Generator().manual_seed(0)
    head = {"weight": torch.randn(3, 2048, generator=draw).double(), "bias": torch.randn(3, generator=draw).double()}
    torch.save({**head, "classes": torch.tensor([7, 11, 14])}, tmp_path / "head.pth")
    monkeypatch.setenv(voc_head.HEAD, str(tmp_path / "head.pth"))
    monkeypatch.setattr(real, "DATA", shared_data)
    lens = voc_head.build()
    assert list(lens.labels) == ["cat", "dog", "person"]
    assert lens.multi_label
    assert lens.weights != "random"
    trace = lens.trace([sample.image for sample in dataset], "person", n=1)
    expected = voc_head.features(dataset).double() @ head["weight"].T + head["bias"]
    torch.testing.assert_close(trace.output.double(), expected, atol=1e-3, rtol=1e-4)
