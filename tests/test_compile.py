"""compile=True: the same maps from a compiled twin, no graph breaks, the user's model untouched."""

from __future__ import annotations

import importlib

import nets
import pytest
import torch
from torch._dynamo.utils import counters
from torchvision import models

from gamlens import Lens

room = importlib.import_module("gamlens.models.compiled")


@pytest.fixture(autouse=True)
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and cut into regions as ever, run without a C compiler."""
    monkeypatch.setattr(room, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()


def test_the_same_maps_without_graph_breaks() -> None:
    net = nets.small().float()
    before = {name: (tensor, tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    plain, fast = Lens(net), Lens(net, compile=True)
    images = nets.images(2).float()
    for n in (1, 2, 3):
        nets.same(fast.classify(images, [0, 1], n=n), plain.classify(images, [0, 1], n=n), atol=1e-5)
    pair, other = fast.compare(images, images.flip(3)), plain.compare(images, images.flip(3))
    nets.same(pair.x, other.x, atol=1e-4)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] > 0
    for name, tensor in net.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.requires_grad == before[name][0].requires_grad
    assert not any(isinstance(module, room.Region) for module in net.modules())


def test_weights_are_shared_and_followed() -> None:
    """What an optimizer does to the model is seen; a model that moved gets a new twin."""
    net = nets.small().float()
    fast, images = Lens(net, compile=True), nets.images(1).float()
    first = fast.classify(images, 0).scores.clone()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(fast.classify(images, 0).scores, first)
    nets.same(fast.classify(images, 0), Lens(net).classify(images, 0), atol=1e-5)
    net.load_state_dict({name: value * 1.1 for name, value in net.state_dict().items()}, assign=True)
    nets.same(fast.classify(images, 0), Lens(net).classify(images, 0), atol=1e-5)


def test_no_weight_gradients_are_computed() -> None:
    fast = Lens(nets.small().float(), compile=True)
    fast.classify(nets.images(1).float(), 0)
    assert fast.sight._twin is not None
    assert not any(parameter.requires_grad for parameter in fast.sight._twin.parameters())


def test_functional_blocks_and_shared_code() -> None:
    """DenseNet's last block is made by a function; its dense blocks are regions of their own."""
    torch.manual_seed(0)
    net = models.DenseNet(8, (2, 2), 16, num_classes=5).eval()
    images = torch.randn(2, 3, 64, 64)
    nets.same(Lens(net, compile=True).classify(images, [0, 1]), Lens(net).classify(images, [0, 1]), atol=1e-5)
    regions = room.compiled(net, [])
    assert isinstance(regions.features, room.Region)
    assert not counters["graph_break"]
