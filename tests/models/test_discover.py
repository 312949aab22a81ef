"""Which blocks and which embedding are found: known networks by name, users' networks by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import Lens

KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "resnet18": (("layer1", "layer2", "layer3", "layer4"), "fc:input"),
    "resnet50": (("layer1", "layer2", "layer3", "layer4"), "fc:input"),
    "densenet121": (
        ("features.denseblock1", "features.denseblock2", "features.denseblock3", "features:relu"),
        "classifier:input",
    ),
    "vgg11": (("features.9", "features.14", "features.19", "features"), "classifier.6:input"),
    "mobilenet_v2": (("features.3", "features.6", "features.13", "features"), "classifier.1:input"),
    "efficientnet_b0": (("features.2", "features.3", "features.5", "features"), "classifier.1:input"),
    "convnext_tiny": (("features.1", "features.3", "features.5", "features"), "classifier.2:input"),
    "shufflenet_v2_x0_5": (("maxpool", "stage2", "stage3", "conv5"), "fc:input"),
    "googlenet": (("conv3", "inception3b", "inception4e", "inception5b"), "fc:input"),
}
STRIDES = [4, 8, 16, 32]
TAILS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "convnext_tiny": lambda net, h: net.classifier[0](h.mean(dim=(2, 3), keepdim=True)).flatten(1),
    "vgg11": lambda net, h: net.classifier[:6](net.avgpool(h).flatten(1)),
}


def embedding_from_last_block(lens: Lens, batch: Tensor, tail: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
    """The embedding is what the rest of the network makes of the last block: mean pooling unless `tail` says more."""
    pair = lens.trace_pair(batch[:1], batch[1:], n=1)
    h = pair.records[0].blocks[lens.blocks[-1]].detach()
    with torch.no_grad():
        expected = tail(lens.model, h) if tail is not None else h.mean(dim=(2, 3))
    found = torch.cat(pair.embeddings).detach()
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-3)
    assert found.shape[1] == lens.layout.width


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "vgg11" else name for name in KNOWN]
)
def test_known_networks(name: str) -> None:
    lens = nets.zoo(name)
    blocks, embedding = KNOWN[name]
    assert lens.blocks == blocks
    assert lens.embedding == embedding
    chosen = [stage for stage in lens.layout.stages if stage.chosen]
    assert [stage.stride for stage in chosen] == STRIDES
    trace = lens.trace(nets.images(1), 0, n=None)
    for stage in chosen:
        assert trace.activations[stage.name].shape[1:] == (stage.shape[0], 64 // stage.stride, 64 // stage.stride)
    embedding_from_last_block(lens, nets.images(2), TAILS.get(name))


def test_a_timm_network() -> None:
    timm = pytest.importorskip("timm")
    lens = Lens(timm.create_model("tf_efficientnet_lite0", pretrained=False).eval())
    assert lens.blocks == ("blocks.1", "blocks.2", "blocks.4", "bn2")
    assert lens.embedding == "classifier:input"
    embedding_from_last_block(lens, nets.images(2), None)


class Body(nn.Module):
    """Four convolutions of stride 2, without activations between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise((3, 8, 12, 16, 24)))
        self.head = nn.Linear(24, nets.CLASSES)


class Functional(Body):
    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Methods(Body):
    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x).relu_()
        return self.head(x.mean(dim=[2, 3]))


class Shared(Body):
    """One ReLU module for all, in place, as torchvision's residual blocks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.relu(conv(x))
        return self.head(x.mean(dim=(2, 3)))


class Residual(Body):
    """Each stage ends in F.relu(conv2(x) + x), in place."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for width in (8, 12, 16, 24))

    def forward(self, x: Tensor) -> Tensor:
        for conv, second in zip(self.convs, self.seconds, strict=True):
            x = F.relu(conv(x))
            out = second(x)
            out += x
            x = F.relu(out, inplace=True)
        return self.head(x.mean(dim=(2, 3)))


class ConvHead(Body):
    """The classifier is a 1x1 convolution after pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.relus = nn.ModuleList(nn.ReLU() for _ in range(4))
        self.head = nn.Conv2d(24, nets.CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv, relu in zip(self.convs, self.relus, strict=True):
            x = relu(conv(x))
        return self.head(F.adaptive_avg_pool2d(x, (1, 1))).flatten(1)


class Headless(ConvHead):
    """A backbone: what it returns is the embedding."""

    def forward(self, x: Tensor) -> Tensor:
        for conv, relu in zip(self.convs, self.relus, strict=True):
            x = relu(conv(x))
        return x.mean(dim=(2, 3))


class ByKeyword(Functional):
    """The head is called with a keyword."""

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.head(input=x.mean(dim=(2, 3)))


class NamedOutput(Functional):
    """The head bears the name that also stands for the whole model's output."""

    def __init__(self) -> None:
        super().__init__()
        self.output = self.head
        del self.head

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.output(x.mean(dim=(2, 3)))


USERS: dict[type[nn.Module], tuple[str, str]] = {
    Functional: ("convs.{}:relu", "head:input"),
    Methods: ("convs.{}:relu", "head:input"),
    Shared: ("convs.{}:relu", "head:input"),
    Residual: ("seconds.{}:add:relu", "head:input"),
    ConvHead: ("relus.{}", "head:input"),
    Headless: ("relus.{}", "output"),
    ByKeyword: ("convs.{}:relu", "head:input"),
    NamedOutput: ("convs.{}:relu", "output:input"),
}


@pytest.mark.parametrize("make", USERS, ids=lambda make: make.__name__)
def test_users_networks(make: type[nn.Module]) -> None:
    block, embedding = USERS[make]
    lens = Lens(nets.seeded(make))
    assert lens.blocks == tuple(block.format(number) for number in (1, 2, 3))
    assert lens.embedding == embedding
    activations = lens.trace(nets.images(2), 1, n=None).activations
    assert [h.shape[2] for h in activations.values()] == [16, 8, 4]
    assert all(float(h.min()) == 0 for h in activations.values())
    embedding_from_last_block(lens, nets.images(2), None)


def test_a_head_that_bears_the_name_of_the_output_compares_as_any_other() -> None:
    x, y = nets.images(1), nets.images(1, seed=1)
    ours, theirs = (Lens(nets.seeded(make)).compare(x, y) for make in (NamedOutput, Functional))
    nets.same(ours.x, theirs.x)


def test_a_block_may_bear_the_name_of_the_output() -> None:
    class Last(nets.Small):
        def __init__(self) -> None:
            super().__init__()
            self.output = self.layer3
            del self.layer3

        def features(self, x: Tensor) -> Tensor:
            return self.output(self.layer2(self.layer1(self.stem(x))))

    lens, plain = Lens(nets.seeded(Last)), Lens(nets.small())
    assert lens.blocks == ("layer1", "layer2", "output")
    torch.testing.assert_close(lens.classify(nets.images(2), 3).maps, plain.classify(nets.images(2), 3).maps)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["layer3", "stem", "layer2"], ("stem", "layer2", "layer3")),
        (["layer3.2", "layer3.0", "layer1.1"], ("layer1.1", "layer3.0", "layer3.2")),
        (["layer3", "layer3.0"], ("layer3.0", "layer3")),
        (["layer3.0", "layer3:input"], ("layer3:input", "layer3.0")),
        (["layer3", "layer3:input", "layer2.1"], ("layer2.1", "layer3:input", "layer3")),
    ],
)
def test_named_blocks_are_sorted_as_they_run(asked: list[str], expected: tuple[str, ...]) -> None:
    lens = Lens(nets.small(), blocks=asked)
    assert lens.blocks == expected
    trace = lens.trace(nets.images(2), 3, n=None)
    assert trace.blocks == expected
    assert list(trace.explain(n=len(asked) - 1).blocks) == list(expected[1:])


def test_a_chain_sorts_after_its_module() -> None:
    lens = Lens(nets.seeded(nets.DenseLike, inplace=True), blocks=["features:relu", "features", "features.0"])
    assert lens.blocks == ("features.0", "features", "features:relu")
    assert lens.trace(nets.images(1), n=None).blocks == lens.blocks


@pytest.mark.parametrize("embedding", ["layer3", "fc:input", "fc", "output", "dropout"])
def test_an_embedding_can_be_named(embedding: str) -> None:
    net = nets.small()
    lens, x = Lens(net, embedding=embedding), nets.images(2)
    assert lens.embedding == embedding
    h = net.features(x)
    values: dict[str, Any] = {"layer3": h.flatten(1), "fc": net(x), "output": net(x)}
    expected = values.get(embedding, h.mean(dim=(2, 3))).detach()
    pair = lens.trace_pair(x[:1], x[1:])
    torch.testing.assert_close(torch.cat(pair.embeddings).detach(), expected)
    assert float(pair.explain(score="dot").x.maps.max()) > 0.5
