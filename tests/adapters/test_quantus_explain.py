"""The adapter for Quantus: its metrics run on it, and the model that it passes is the one that is explained."""

from __future__ import annotations

import copy
from typing import Any

import nets
import numpy as np
import pytest
import torch

from gamlens import GamlensError, GamlensWarning, Lens, Transform, adapters

INPUTS = nets.images(3).float()
TARGETS = np.array([1, 4, 7])


def other_model(lens: Lens) -> torch.nn.Module:
    """A copy of the lens's model with other weights in every layer."""
    model = copy.deepcopy(lens.model)
    model.load_state_dict(nets.small(seed=5).float().state_dict())
    return model


def test_maps_are_those_of_classify(lens: Lens) -> None:
    explain = adapters.quantus(lens, method="layer_cam", n=1, score="softmax")
    expected = lens.classify(INPUTS, [1, 4, 7], method="layer_cam", n=1, score="softmax").maps.numpy()
    for inputs, targets in (
        (INPUTS, torch.tensor(TARGETS)),
        (INPUTS.numpy(), TARGETS),
        (INPUTS.double().numpy(), TARGETS.tolist()),
    ):
        found = explain(model=lens.model, inputs=inputs, targets=targets, device="cpu", softmax=False)
        assert found.shape == (3, 1, 64, 64)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found[:, 0], expected)


def test_options_of_one_call(lens: Lens) -> None:
    explain = adapters.quantus(lens, method="gam", n=1)
    found = explain(lens.model, INPUTS, TARGETS, method="layer_cam", n=2, fuse="max", score="probability")
    expected = lens.classify(INPUTS, [1, 4, 7], method="layer_cam", n=2, fuse="max", score="probability")
    np.testing.assert_array_equal(found[:, 0], expected.numpy())
    with pytest.warns(GamlensWarning, match=r"'GAM, one block'.* made by 'gam'"):
        named = explain(lens.model, INPUTS, TARGETS, method="GAM, one block")  # as quantus.evaluate calls it
    np.testing.assert_array_equal(named, explain(lens.model, INPUTS, TARGETS))


def test_another_model_is_explained_itself(lens: Lens) -> None:
    other = other_model(lens)
    found = adapters.quantus(lens, n=2)(other, INPUTS, TARGETS)
    expected = Lens(other, transform=Transform((64, 64))).classify(INPUTS, [1, 4, 7], n=2).numpy()
    np.testing.assert_array_equal(found[:, 0], expected)
    assert not np.allclose(found, adapters.quantus(lens, n=2)(lens.model, INPUTS, TARGETS), atol=0.05)
    assert lens.model is not other

    class Wrapper:
        def get_model(self) -> torch.nn.Module:
            return other

    np.testing.assert_array_equal(adapters.quantus(lens, n=2)(Wrapper(), INPUTS, TARGETS), found)


@pytest.mark.parametrize(
    ("model", "message"),
    [(nets.dense(), "has no layer 'dropout'"), ("resnet50", "models of PyTorch; found a str")],
    ids=["dense", "name"],
)
def test_a_model_that_is_no_copy_is_refused(lens: Lens, model: Any, message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        adapters.quantus(lens)(model, INPUTS, TARGETS)


def test_metrics_of_quantus(lens: Lens) -> None:
    quantus = pytest.importorskip("quantus")
    explain = adapters.quantus(lens, method="gam", n=2)
    given = {"model": lens.model, "x_batch": INPUTS.numpy(), "y_batch": TARGETS, "explain_func": explain}
    quiet = {"disable_warnings": True, "display_progressbar": False}
    sparse = quantus.Sparseness(**quiet)(**given, a_batch=None, device="cpu")
    ours = quantus.Sparseness(**quiet)(**given, a_batch=lens.classify(INPUTS, [1, 4, 7], n=2).numpy()[:, None])
    assert sparse == ours
    assert all(0 < value < 1 for value in sparse)
    moved = quantus.MaxSensitivity(nr_samples=2, lower_bound=0.2, **quiet)(**given, a_batch=None, device="cpu")
    assert all(0 < value < 2 for value in moved)


def test_quantus_sees_the_randomised_model(lens: Lens) -> None:
    """The test randomises parameters layer by layer from the head on: maps move away from the original ones."""
    quantus = pytest.importorskip("quantus")
    called: list[bool] = []
    explain = adapters.quantus(lens, method="gam", n=2)

    def counted(model: torch.nn.Module, inputs: Any, targets: Any, **kwargs: Any) -> Any:
        called.append(model is lens.model)
        return explain(model, inputs, targets, **kwargs)

    metric = quantus.MPRT(
        similarity_func=quantus.similarity_func.correlation_spearman, disable_warnings=True, display_progressbar=False
    )
    scores = metric(lens.model, INPUTS.numpy(), TARGETS, a_batch=None, explain_func=counted, device="cpu")
    assert called.count(True) == 2  # for the original maps, and once more
    assert called.count(False) == len(scores) - 1 == 9  # 4 convolutions, 4 norms and the head
    assert np.allclose(scores["original"], 1)
    assert np.mean(scores["stem.0"]) < 0.8  # all layers are random
    assert list(lens.model.state_dict()) == list(nets.small().state_dict())
