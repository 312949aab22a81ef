"""Heads and wrappings: cosine and sigmoid heads, headless backbones, embedders, Lightning-like and siamese modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import GamlensError, Lens


class Trunk(nn.Module):
    """Two stages and pooling: (B,3,64,64) -> (B,12)."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(self.stage1(x)).mean(dim=(2, 3))


class CosineHead(nn.Module):
    """Logits are cosines with class vectors, times a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.weight = nn.Parameter(torch.randn(5, 12))

    def forward(self, x: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(self.trunk(x)), F.normalize(self.weight))


class Sigmoid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.fc = Trunk(), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(self.trunk(x)))


class Embedder(nn.Module):
    """A projection, normalised: the output is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.fc = Trunk(), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.fc(self.trunk(x)))


class Lightning(nn.Module):
    """A training module that holds the network in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = nn.Sequential(Trunk(), nn.Linear(12, 5)), nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Trunk()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cosine_similarity(self.backbone(x), self.backbone(y))


class Twice(nn.Module):
    """Runs its backbone on the image and on its mirror image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.fc = Trunk(), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.backbone(x) + self.backbone(x.flip(3)))


def made(kind: type[nn.Module]) -> Any:
    torch.manual_seed(3)
    return kind().double()


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(seed)).double()


BLOCKS = ("stage1", "stage2")


@pytest.mark.parametrize(
    ("kind", "prefix", "embedding"),
    [
        (CosineHead, "trunk.", "trunk:normalize"),
        (Sigmoid, "trunk.", "fc:input"),
        (Embedder, "trunk.", "output"),
        (Trunk, "", "output"),
        (Lightning, "net.0.", "net.1:input"),
    ],
)
def test_blocks_and_embedding(kind: type[nn.Module], prefix: str, embedding: str) -> None:
    lens = Lens(made(kind))
    assert lens.blocks == tuple(prefix + name for name in BLOCKS)
    assert lens.embedding == embedding


@pytest.mark.parametrize("kind", [CosineHead, Sigmoid, Lightning])
def test_classify_explains_the_heads_own_score(kind: type[nn.Module]) -> None:
    """The gradient of the model's own output, whatever the head is."""
    net, batch = made(kind), images(2)
    trace = Lens(net).trace(batch, 2, n=1)
    trunk = next(module for module in net.modules() if isinstance(module, Trunk))
    kept: list[Tensor] = []
    with_graph = trunk.stage2.register_forward_hook(lambda module, args, output: kept.append(output))
    score = net(batch)[:, 2]
    with_graph.remove()
    (expected,) = torch.autograd.grad(score.sum(), kept)
    torch.testing.assert_close(next(iter(trace.gradients.values())), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(trace.scores, score.detach())


@pytest.mark.parametrize("kind", [Trunk, Embedder, CosineHead, Lightning])
def test_compare_uses_the_embedding(kind: type[nn.Module]) -> None:
    net, x, y = made(kind), images(2), images(2, seed=1)
    trunk = next(module for module in net.modules() if isinstance(module, Trunk))
    embed = net if kind is Embedder else trunk
    with torch.no_grad():
        expected = F.cosine_similarity(embed(x), embed(y))
    pair = Lens(net).compare(x, y)
    torch.testing.assert_close(pair.scores, expected.float())
    assert float(pair.x.maps.max()) > 0


def test_a_named_layer_is_the_embedding() -> None:
    net, x, y = made(Embedder), images(2), images(2, seed=1)
    with torch.no_grad():
        expected = (net.fc(net.trunk(x)) * net.fc(net.trunk(y))).sum(1)
    torch.testing.assert_close(Lens(net, embedding="fc").compare(x, y, score="dot").scores, expected.float())


def test_a_siamese_module_is_explained_by_its_backbone() -> None:
    net, x, y = made(Siamese), images(2), images(2, seed=1)
    with torch.no_grad():
        expected = net(x, y)
    torch.testing.assert_close(Lens(net.backbone).compare(x, y).scores, expected.float())
    with pytest.raises(GamlensError, match=r"missing 1 required positional argument.*siamese.*backbone"):
        Lens(net).classify(x)


def test_a_backbone_that_runs_twice_has_no_single_activation() -> None:
    net = made(Twice)
    with pytest.raises(GamlensError, match="runs more than once in one forward"):
        Lens(net, blocks=["backbone.stage2"]).classify(images(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_images_come_to_the_models_dtype(dtype: torch.dtype) -> None:
    net = made(Lightning).to(dtype)
    result = Lens(net).classify(images(2).float())
    assert result.maps.dtype == torch.float32
    assert result.maps.shape == (2, 64, 64)
