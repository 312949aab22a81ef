"""Several backwards through one record: together or one by one, the same gradients."""

from __future__ import annotations

from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn

from gamlens import Lens
from gamlens.capture import backward

X = nets.images(3)


class Stubborn(torch.autograd.Function):
    """The identity, with a backward that looks at its values, which no batched backward can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient if float(gradient.abs().sum()) >= 0 else -gradient


class Odd(nets.Small):
    def features(self, x: Tensor) -> Tensor:
        return Stubborn.apply(super().features(x))


def vectors(count: int) -> Tensor:
    return torch.randn(count, len(X), nets.CLASSES, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("make", [nets.Small, Odd])
@pytest.mark.parametrize("most", [1, 3, 7, 12, 64])
def test_together_equals_one_by_one(make: type[nn.Module], most: int) -> None:
    lens = Lens(nets.seeded(make), blocks=["layer2", "layer3"])
    record = lens.forward(X, n=2)
    asked = vectors(5)
    found = backward.batched_gradients(record.output, asked, record, keep_graph=True, most=most)
    for turn in range(5):
        plain = torch.autograd.grad((record.output * asked[turn]).sum(), [*record.blocks.values()], retain_graph=True)
        for name, expected in zip(record.blocks, plain, strict=True):
            assert float(expected.abs().max()) > 0
            torch.testing.assert_close(found[name][turn], expected, rtol=1e-12, atol=1e-15)


def test_many_targets_equal_one_at_a_time() -> None:
    lens = Lens(nets.small())
    classes = [[1, 2, 3], [4], [5, 6]]
    many = lens.trace(X, classes, n=2)
    rows = [(image, target) for image, own in enumerate(classes) for target in own]
    assert many.index.tolist() == [image for image, _ in rows]
    for row, (image, target) in enumerate(rows):
        one = lens.trace(X[image : image + 1], target, n=2)
        for name in many.blocks:
            torch.testing.assert_close(many.gradients[name][row], one.gradients[name][0], rtol=1e-9, atol=0)


def test_channels_last() -> None:
    lens, batch = nets.zoo("swin_t"), torch.randn(1, 3, 64, 64)
    many, one = lens.trace(batch, [[3, 4]], n=2), lens.trace(batch, 4, n=2)
    name = many.blocks[0]
    assert name.endswith(":nhwc")
    torch.testing.assert_close(many.gradients[name][1], one.gradients[name][0], rtol=1e-3, atol=1e-6)
