"""Which positions of a block a network reads is found by running it on noise."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from lattice_nets import SIZE, images, lens_of, net, skipping
from torch import Tensor, nn

from gamlens import GamlensWarning, Lens, Transform
from gamlens.lattice import Lattice
from gamlens.models.discovery import lattices
from gamlens.models.discovery.lattices import NOISE_IMAGES


@pytest.mark.parametrize(
    ("stride", "expected"),
    [(2, Lattice((0, 0), (2, 2))), (4, Lattice((0, 0), (4, 4))), ((2, 1), Lattice((0, 0), (2, 1)))],
)
def test_a_strided_convolution_of_one_pixel_is_found(stride: int | tuple[int, int], expected: Lattice) -> None:
    lens = lens_of(skipping(stride))
    trace = lens.trace(images(), 0)
    assert trace.lattices == lens.lattices == {"0": expected}
    unread = torch.ones(16, 16, dtype=torch.bool)
    expected.select(unread).fill_(False)
    assert bool((trace.gradients["0"][..., unread] == 0).all())


@pytest.mark.parametrize(
    "between",
    [
        [nn.Conv2d(4, 4, 3, stride=2, padding=1)],
        [nn.Conv2d(4, 4, 2, stride=2)],
        [nn.Conv2d(4, 4, 3, padding=2, dilation=2)],
        [nn.Conv2d(4, 4, 3, stride=1, padding=4, dilation=4)],
        [nn.MaxPool2d(2)],
        [nn.AvgPool2d(2)],
        [nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(4, 4, 1)],
        [nn.Conv2d(4, 4, 3)],
    ],
    ids=["strided", "patches", "dilated", "widely dilated", "max pooling", "mean pooling", "overlapping", "unpadded"],
)
def test_networks_that_read_everything_are_not_mistaken(between: list[nn.Module]) -> None:
    for seed in range(3):
        model = net(*between, seed=seed)
        lens = lens_of(model)
        for batch in (images(), torch.zeros(1, 3, *SIZE)):  # equal values: a max pooling takes the first of them
            assert lens.trace(batch, 0).lattices == {}


@pytest.mark.parametrize("side", [32, 48, 64])
def test_a_global_max_pooling_of_few_channels_is_not_mistaken(side: int) -> None:
    """Each channel reads one position of an image, so one image of noise alone would show lattices of chance."""
    for seed in range(20):
        torch.manual_seed(seed)
        layers = [nn.Sequential(nn.Conv2d(i, 2, 3, stride=2, padding=1), nn.Softplus()) for i in (3, 2, 2)]
        model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(2, 3))
        lens = Lens(model, blocks=["1", "2"], transform=Transform((side, side), (0.5,) * 3, (0.5,) * 3))
        assert lens.lattices == {}, seed


def test_a_dilated_convolution_that_skips_positions_is_one() -> None:
    """Kernel 3, dilation 2, stride 2: it reads the even positions only, of three rows each."""
    trace = lens_of(net(nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2))).trace(images(), 0)
    assert trace.lattices == {"0": Lattice((0, 0), (2, 2))}


def test_the_network_is_asked_once_per_size() -> None:
    model, runs = skipping(), []
    lens = lens_of(model)
    model[0].register_forward_hook(lambda *_: runs.append(1))
    lens.classify(images(size=(224, 224)), 0)
    assert len(runs) == 1, "the lens knows it from the start for the size of its transform"
    for expected in (1 + 1 + NOISE_IMAGES, 2 + 1 + NOISE_IMAGES):  # at another size, it runs on noise once
        lens.classify(images(), 0)
        assert len(runs) == expected
    whole = net(nn.Conv2d(4, 4, 3, stride=2, padding=1))
    lens = lens_of(whole)
    whole[0].register_forward_hook(lambda *_: runs.append(1))
    runs.clear()
    lens.classify(images(size=(48, 48)), 0)
    assert len(runs) == 1, "a block that is read everywhere has a lattice at no other size"


class Residual(nn.Module):
    """A shortcut of one pixel with stride 2, beside a convolution of all positions that is scaled by `scale`."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut, self.conv = nn.Conv2d(8, 8, 1, stride=2), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.scale * self.conv(x)


def test_weights_that_change_change_what_is_found() -> None:
    model = net(Residual(), channels=8)
    lens = lens_of(model)
    assert lens.trace(images(), 0).lattices == {"0": Lattice((0, 0), (2, 2))}
    with torch.no_grad():
        model[1][0].scale.fill_(1.0)
    assert lens.trace(images(), 0).lattices == lens.lattices == {}
    untrained = skipping()
    nn.init.zeros_(untrained[4].weight)
    lens = lens_of(untrained)
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        assert lens.trace(images(), 0).lattices == {}, "nothing is read yet"
    nn.init.normal_(untrained[4].weight)
    assert lens.trace(images(), 0).lattices == lens.lattices == {"0": Lattice((0, 0), (2, 2))}


def test_a_copy_of_the_model_is_asked_itself() -> None:
    lens = lens_of(skipping())
    other = lens.with_model(skipping(4))
    assert other.trace(images(), 0).lattices == {"0": Lattice((0, 0), (4, 4))}
    assert lens.trace(images(), 0).lattices == {"0": Lattice((0, 0), (2, 2))}


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no backward here")


class WithoutBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = NoBackward.apply(x)
        return result


def test_a_network_without_a_backward_can_still_be_used_by_methods_that_need_none() -> None:
    lens = lens_of(net(nn.Conv2d(4, 4, 1, stride=2), WithoutBackward()))
    assert lens.classify(images(), 0, method="eigen_cam").maps.shape == (2, *SIZE)


def test_too_little_memory_is_not_remembered_as_no_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of(skipping())
    with monkeypatch.context() as patch:
        patch.setattr(lattices, "run_forward", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
        with pytest.raises(torch.OutOfMemoryError):
            lens.trace(images(), 0)
    assert lens.trace(images(), 0).lattices == {"0": Lattice((0, 0), (2, 2))}


def test_the_lattices_of_a_lens_follow_its_input_size() -> None:
    lens = lens_of(skipping())
    lens.transform = replace(lens.transform, size=(96, 64))
    assert lens.lattices == {"0": Lattice((0, 0), (2, 2))}


def test_asking_leaves_the_model_and_random_numbers_alone() -> None:
    model = nn.Sequential(*skipping(), nn.RReLU()).train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    lens_of(model).classify(images(), 0)
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
