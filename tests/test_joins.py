"""Growing lists: the same gradients, added up once a layer; anything else is left alone."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models

from gamlens import Lens, sight
from gamlens.joins import joined
from gamlens.models import dense_layers


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def dense(layers: int) -> nn.Module:
    return nets.seeded(models.DenseNet, 4, (2, layers), 8, num_classes=5)


@pytest.mark.parametrize("layers", [4, 12])
def test_the_same_maps_with_a_few_additions_a_layer(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, images = Lens(dense(layers)), nets.images(2)
    with Operations() as ours:
        found = lens.trace(images, [1, 2], n=2)
    monkeypatch.setattr(sight, "joined", lambda layers: nullcontext())
    with Operations() as plain:
        expected = lens.trace(images, [1, 2], n=2)
    for name, gradient in expected.rows.gradients.items():
        assert float(gradient.abs().max()) > 0
        torch.testing.assert_close(found.rows.gradients[name], gradient, rtol=1e-10, atol=1e-15)
    assert torch.equal(found.output, expected.output)
    assert plain.found["aten.add.Tensor"] >= layers * (layers - 1) / 2
    assert ours.found["aten.add.Tensor"] <= 2 * layers


def test_layers_behind_a_block() -> None:
    net = dense(3)
    assert dense_layers(net, "features.denseblock1") == list(net.features.denseblock2.children())
    assert len(dense_layers(net, "features.pool0")) == 5
    for block in ("features", "features.denseblock2", "", "classifier"):
        assert dense_layers(net, block) == []
    assert dense_layers(nets.small(), "layer1") == []


class Layer(nn.Module):
    """Joins what it is given; keeps what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def forward(self, x: Any) -> Tensor:
        self.given.append(x)
        return torch.cat(x, 1) if isinstance(x, list) else x.clone()


def test_lists_that_do_not_grow_and_what_was_written_to() -> None:
    layer, a, b, c = Layer(), *(torch.randn(1, 2, 3, 3, requires_grad=True) for _ in range(3))
    d = torch.randn(1, 2, 3, 3)
    with joined([layer]):
        for parts in ([a, b], [a, b, d], [b, a, c], [a], a, [a, b, d]):
            expected = torch.cat(parts, 1) if isinstance(parts, list) else parts
            assert torch.equal(layer(parts), expected)
        d.add_(1)
        assert torch.equal(layer([a, b, d, c]), torch.cat([a, b, d, c], 1))
        with torch.no_grad():
            layer([a, b])
    assert [isinstance(given, Tensor) for given in layer.given] == [True, True, True, False, True, True, True, False]
    assert not layer._forward_pre_hooks
    layer([a, b])
    assert isinstance(layer.given[-1], list)
