"""Models that change a block's output in place and go on with the changed tensor, not with the value returned."""

from __future__ import annotations

from collections.abc import Callable

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens

Step = Callable[[nn.Module, Tensor], Tensor]
IN_PLACE: dict[str, tuple[Step, str]] = {  # what is done to y, and the step in PLAIN that gives the same values
    "F.relu_": (lambda net, y: F.relu_(y), "relu"),
    "y.relu_()": (lambda net, y: y.relu_(), "relu"),
    "inplace=True": (lambda net, y: F.relu(y, inplace=True), "relu"),
    "module": (lambda net, y: net.act(y), "module"),
    "add_ and relu_": (lambda net, y: F.relu_(y.add_(0.1)), "add and relu"),
}
PLAIN: dict[str, Step] = {
    "relu": lambda net, y: F.relu(y),
    "module": lambda net, y: net.act(y),
    "add and relu": lambda net, y: F.relu(y + 0.1),
}


class Steps(nn.Module):
    """Features that end in a batch norm, one step, pooling and a linear head.

    Args:
        step: What is done to the features.
        used: Whether the value that the step returns is used; otherwise the model goes on with the features.
        inplace: Whether the module `act` works in place.
        after: What is done to the features after pooling.
    """

    def __init__(
        self, step: Step, *, used: bool, inplace: bool = True, after: Callable[[Tensor], object] = lambda y: None
    ) -> None:
        super().__init__()
        self.step, self.used, self.after = step, used, after
        self.features = nn.Sequential(nets.stage(3, 8), nets.stage(8, 12), nn.Conv2d(12, 16, 1), nn.BatchNorm2d(16))
        self.act = nn.ReLU(inplace=inplace)
        self.fc = nn.Linear(16, nets.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        made = self.step(self, y)
        y = made if self.used else y
        pooled = y.mean(dim=(2, 3))
        self.after(y)
        return self.fc(pooled)


def in_place(step: str, *, used: bool = False, **options: Callable[[Tensor], object]) -> nn.Module:
    return nets.seeded(Steps, IN_PLACE[step][0], used=used, **options)


def plain(step: str = "relu") -> nn.Module:
    return nets.seeded(Steps, PLAIN[step], used=True, inplace=False)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("step", IN_PLACE)
def test_maps_are_those_of_the_model_that_makes_a_new_tensor(step: str, used: bool, n: int) -> None:
    x, y = nets.images(2, seed=1), nets.images(2, seed=2)
    ours, theirs = Lens(in_place(step, used=used)), Lens(plain(IN_PLACE[step][1]))
    for method in ("gam", "eigen_cam"):
        nets.same(ours.classify(x, 4, method=method, n=n), theirs.classify(x, 4, method=method, n=n), atol=0)
    a, b = ours.compare(x, y, n=n), theirs.compare(x, y, n=n)
    nets.same(a.x, b.x, atol=0)
    nets.same(a.y, b.y, atol=0)


def test_the_compiled_model_runs_as_it_is() -> None:
    x = nets.images(2)
    with pytest.warns(GamlensWarning, match="changed in place, and the value that this returns is not used"):
        found = Lens(in_place("F.relu_"), compile=True).classify(x, 4, n=1)
    nets.same(found, Lens(plain()).classify(x, 4, n=1), atol=0)


@pytest.mark.parametrize("method", ["gam", "eigen_cam"])
def test_a_later_change_does_not_reach_what_was_read(method: str) -> None:
    """The block is y after F.relu_; its sign is changed in place after pooling."""
    x = nets.images(2)
    found = Lens(in_place("F.relu_", after=Tensor.neg_)).classify(x, 4, method=method, n=1)
    nets.same(found, Lens(plain()).classify(x, 4, method=method, n=1), atol=0)


def test_a_block_that_is_changed_later_is_an_error_that_names_it() -> None:
    """With an earlier block in the graph, torch could not compute the gradient, or would give another tensor's."""
    with pytest.raises(GamlensError, match=r"changed block 'features:relu' in place after it was read.*name another"):
        Lens(in_place("F.relu_", after=Tensor.neg_)).classify(nets.images(2), 4, n=2)


class Remembers(nets.Small):
    """Reads the input of layer3 and changes it in place afterwards."""

    def features(self, x: Tensor) -> Tensor:
        y = self.layer2(self.layer1(self.stem(x)))
        z = self.layer3(y)
        y.mul_(-1)
        return z


@pytest.mark.parametrize("method", ["gam", "eigen_cam"])
def test_an_input_that_is_changed_later_is_an_error(method: str) -> None:
    found = Lens(nets.seeded(Remembers), blocks=["layer3:input"])
    with pytest.raises(GamlensError, match="changed block 'layer3:input' in place"):
        found.classify(nets.images(1), 4, method=method, n=1)


def test_an_in_place_change_that_the_backward_needs_says_so() -> None:
    """Plain torch cannot differentiate this model either: relu_ saved the tensor that neg_ changes."""
    lens = Lens(in_place("F.relu_", after=Tensor.neg_), blocks=["features.1", "features"])
    with pytest.raises(GamlensError, match="the model changes a tensor in place that its backward needs: replace"):
        lens.classify(nets.images(1), 4, n=2)


def test_a_part_of_a_tensor_is_read_before_it_is_changed() -> None:
    """torch allows no graph on a part (a view) of a tensor without one; the value returned is used here."""

    class Part(nets.Small):
        def features(self, x: Tensor) -> Tensor:
            return F.relu_(super().features(x)[:, :, 1:])

    class Whole(nets.Small):
        def features(self, x: Tensor) -> Tensor:
            return F.relu(super().features(x)[:, :, 1:])

    ours, plain = (Lens(nets.seeded(make), blocks=["layer3:getitem:relu"]) for make in (Part, Whole))
    nets.same(ours.classify(nets.images(1), 4, n=1), plain.classify(nets.images(1), 4, n=1), atol=0)


def test_an_embedding_that_is_also_a_block_is_read_before_it_is_changed() -> None:
    class Tail(nets.Small):
        def features(self, x: Tensor) -> Tensor:
            return super().features(x).mul_(-1)

    options = {"blocks": ["layer3"], "embedding": "layer3"}
    x, y = nets.images(1, seed=1), nets.images(1, seed=2)
    ours, plain = (Lens(nets.seeded(make), **options).trace_pair(x, y) for make in (Tail, nets.Small))
    assert torch.equal(ours.embeddings[0], plain.embeddings[0])


class ChangesEarlier(nets.Small):
    """Changes its first block in place, before its second reads it and again afterwards."""

    def features(self, x: Tensor) -> Tensor:
        y = self.layer1(self.stem(x))
        z = self.layer2(F.relu_(y.sub_(0.5)))
        y.mul_(-1)
        return self.layer3(z)


@pytest.mark.parametrize("block", ["layer1", "layer1:sub", "layer1:sub:relu", "layer2:input"])
def test_an_earlier_block_has_its_values_from_before_a_change(block: str) -> None:
    """What layer1 gave, that less 1/2, or what layer2 read, whatever is done to the same memory later."""
    net, x = nets.seeded(ChangesEarlier), nets.images(2)
    lens = Lens(net, blocks=[block, "layer2", "layer3"])
    trace = lens.trace(x, 4, n=1, refine=2)
    with torch.no_grad():
        first = net.layer1(net.stem(x))
    expected = {"layer1": first, "layer1:sub": first - 0.5}.get(block, (first - 0.5).relu())
    assert torch.equal(trace.earlier[block], expected)
    assert torch.equal(trace.output, net(x))
