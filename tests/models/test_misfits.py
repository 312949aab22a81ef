"""Models that do not fit, and what their users are told; and outputs of every kind, which do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform

X, Y = nets.images(2), nets.images(2, seed=3)
ONE_BLOCK = {"tuple block", "block twice", "unused block", "block off the path", "flat block"}


@dataclass
class Record:
    logits: Tensor


class Branches(nets.Small):
    """layer2 gives a tuple, the shared ReLU runs twice, aux is off the path, spare never runs, frozen has no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer2 = Tuples(self.layer2)
        self.act = nn.ReLU()
        self.aux = nn.Conv2d(16, 4, 1)
        self.spare = nn.Conv2d(3, 3, 1)

    def features(self, x: Tensor) -> Tensor:
        h = self.act(self.layer1(self.act(self.stem(x))))
        self.aux(h)
        return self.layer3(self.layer2(h)[0])


class Tuples(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.inner(x), 3


class NoGrad(nets.Small):
    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().features(x)


class Drops(nets.Small):
    """An embedding that is too large becomes zero."""

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.features(x).mean(dim=(2, 3))
        return self.fc(pooled * (pooled.sum(dim=1, keepdim=True) < 1e3))


class Pixels(nets.Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def broken(part: str, value: float) -> nn.Module:
    net = nets.small()
    with torch.no_grad():
        net.get_parameter(part).fill_(value)
    return net


def in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nets.small()


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "model name": (lambda: Lens("resnet5O"), r"no model 'resnet5O': did you mean 'resnet50'.*nn\.Module"),
    "no model": (lambda: Lens(3), r"nn\.Module or a name such as 'resnet50'; found int"),
    "block name": (lambda: Lens(nets.small(), blocks=["layer9"]), r"no module 'layer9': did you mean 'layer\d'"),
    "no blocks": (lambda: Lens(nets.small(), blocks=[]), r"at least one name and none twice; found \[\]"),
    "a block twice": (lambda: Lens(nets.small(), blocks=["fc", "fc"]), r"none twice; found \['fc', 'fc'\]"),
    "block grammar": (lambda: Lens(nets.small(), blocks=["layer3:input:relu"]), r"Cannot read .*'module:function'"),
    "embedding name": (lambda: Lens(nets.small(), embedding="fc1"), r"no module 'fc1': did you mean 'fc'"),
    "precision": (lambda: Lens(nets.small(), precision="bf8"), r"no precision 'bf8': did you mean 'bf16'"),
    "transform": (lambda: Lens(nets.small(), transform="stretch"), r"'squash' or 'crop'; found 'stretch'"),
    "transform object": (
        lambda: Lens(nets.small(), transform=3),
        r"'squash', 'crop', a Transform or a callable.*found 3",
    ),
    "crop": (
        lambda: Transform(size=(300, 300), mode="crop", short=256),
        r"Cannot crop \(300, 300\).*short side is 256",
    ),
    "inference mode": (lambda: Lens(in_inference_mode()), r"inside torch\.inference_mode\(\).*build it outside"),
    "tuple block": (
        lambda: Lens(nets.seeded(Branches), blocks=["layer2"]),
        r"'layer2' gives a tuple.*module inside or after it",
    ),
    "block twice": (lambda: Lens(nets.seeded(Branches), blocks=["act"]), r"'act' runs more than once .*runs once"),
    "unused block": (lambda: Lens(nets.seeded(Branches), blocks=["spare"]), r"'spare' did not run.*lens\.blocks"),
    "block off the path": (lambda: Lens(nets.seeded(Branches), blocks=["aux"]), r"does not depend on"),
    "one block off": (
        lambda: Lens(nets.seeded(Branches), blocks=["aux", "layer3"]),
        r"not depend on block 'aux', .*name earlier blocks",
    ),
    "flat block": (
        lambda: Lens(nets.small(), blocks=["fc"]),
        r"'fc' gives \(2, 10\).*before the features are flattened",
    ),
    "no_grad inside": (lambda: Lens(nets.seeded(NoGrad)), r"torch\.no_grad\(\).*inside the model's forward"),
    "NaN weights": (lambda: Lens(broken("layer2.0.weight", float("nan"))), r"'layer2' of Small .*not finite.*weights"),
    "infinite head": (lambda: Lens(broken("fc.bias", float("inf"))), r"score of row 0 is inf.*weights"),
    "no positions": (
        lambda: Lens(nn.Sequential(nn.Flatten(), nn.Linear(12288, 3).double())),
        r"No block was found.*Name",
    ),
    "maps for output": (
        lambda: Lens(nets.seeded(Pixels)),
        r"shape \(2, 10, 4, 4\).*output=",
    ),
    "tuple output": (lambda: Lens(nets.seeded(nets.Returns, lambda out: (out, 1))), r"returns a tuple of 2.*output=0"),
    "dict output": (
        lambda: Lens(nets.seeded(nets.Returns, lambda out: {"logits": out})),
        r"dict with 'logits'.*output=",
    ),
    "record output": (lambda: Lens(nets.seeded(nets.Returns, Record)), r"returns a Record.*output='logits'"),
    "wrong key": (
        lambda: Lens(nets.seeded(nets.Returns, lambda out: {"logits": out}), output="scores"),
        r"has no part 'scores', since it is a dict with 'logits'",
    ),
    "wrong position": (
        lambda: Lens(nets.seeded(nets.Returns, lambda out: (out, 1)), output=5),
        r"has no part 5, since it is a tuple of 2",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_does_not_fit(name: str) -> None:
    make, message = MODELS[name]
    with pytest.raises(GamlensError, match=f"(?s){message}"):
        make().classify(X, 3, n=1 if name in ONE_BLOCK else 2)


def test_a_pair_names_the_block_that_is_off_the_path() -> None:
    with pytest.raises(GamlensError, match=r"not depend on block 'aux', .*name earlier blocks"):
        Lens(nets.seeded(Branches), blocks=["aux", "layer3"]).compare(X, Y)


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda out: (1, out), 1),
        (lambda out: {"logits": out, "loss": None}, "logits"),
        (lambda out: {"values": out}, "values"),
        (Record, "logits"),
        (Record, lambda record: record.logits),
        (lambda out: [out], 0),
    ],
)
def test_scores_are_picked_out_of_any_output(wrap: Callable[[Tensor], Any], output: Any) -> None:
    lens, other = Lens(nets.small()), Lens(nets.seeded(nets.Returns, wrap), output=output)
    nets.same(other.classify(X, [[1, 2], None]), lens.classify(X, [[1, 2], None]))
    nets.same(
        other.trace(X, score=lambda out: out[:, 3]).explain(), lens.trace(X, score=lambda out: out[:, 3]).explain()
    )


def test_a_zero_embedding_has_no_cosine() -> None:
    lens, y = Lens(nets.seeded(Drops)), Y.clone()
    y[1] *= 1e6
    with pytest.raises(GamlensError, match=r"embedding of y\[1\] is all zeros.*score='dot'.*embedding="):
        lens.compare(X, y)


@pytest.mark.parametrize("weights", [None, nets.small().state_dict()], ids=["as it is", "with weights"])
def test_a_lazy_model_must_run_first(weights: dict[str, Tensor] | None) -> None:
    features = [nn.LazyConv2d(8, 3, stride=2), nn.LazyBatchNorm2d(), nn.ReLU()]
    net = nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5)).double()
    with pytest.raises(GamlensError, match=r"lazy parameters.*: 0\.weight, .*Run it once"):
        Lens(net, weights=weights)
    assert net.training
    assert all(nn.parameter.is_lazy(parameter) for parameter in net.parameters())
    torch.manual_seed(0)
    net(X)
    assert Lens(net).classify(X, 3).maps.shape == (2, 64, 64)
