"""Grad-CAM, Eq. 3, and its diagnosis, Eq. 4."""

import naive
import numpy as np
import pytest
import torch
from torch import nn

from gamlens import Lens
from gamlens.methods import evidence, gam, grad_cam


def random(seed=0, shape=(3, 5, 4, 7)):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=make, dtype=torch.float64) for _ in range(2)]


def test_by_hand():
    h = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[0.0, 6.0], [1.0, 1.0]]]])
    g = torch.tensor([[[[1.0, 3.0], [5.0, -1.0]], [[-2.0, 0.0], [-1.0, -1.0]]]])
    # a = 8/4 = 2 and -4/4 = -1: 2*1 - 0, 2*2 - 6 = -2 -> 0, 2*3 - 1, 2*4 - 1
    assert grad_cam(h, g).tolist() == [[[2.0, 0.0], [5.0, 7.0]]]
    positive, negative = evidence(h, g)
    assert positive.tolist() == [[[2.0, 4.0], [6.0, 8.0]]]
    assert negative.tolist() == [[[0.0, -6.0], [-1.0, -1.0]]]


def test_a_channel_without_a_mean_gradient_says_nothing():
    h = torch.tensor([[[[5.0, 1.0]], [[1.0, 2.0]]]])
    g = torch.tensor([[[[3.0, -3.0]], [[0.5, 0.5]]]])
    assert grad_cam(h, g).tolist() == [[[0.5, 1.0]]]
    assert evidence(h, g)[0].tolist() == [[[0.5, 1.0]]]
    assert gam(h, g).tolist() == [[[15.5, 1.0]]]


def test_evidence_equals_its_twin_and_adds_up():
    h, g = random()
    positive, negative = evidence(h, g)
    expected = [naive.evidence(*item) for item in zip(h.numpy(), g.numpy(), strict=True)]
    np.testing.assert_allclose(positive.numpy(), np.stack([p for p, _ in expected]), rtol=0, atol=1e-10)
    np.testing.assert_allclose(negative.numpy(), np.stack([n for _, n in expected]), rtol=0, atol=1e-10)
    torch.testing.assert_close((positive + negative).relu(), grad_cam(h, g), rtol=0, atol=1e-13)


def test_evidence_leaves_its_inputs_and_batches():
    h, g = random(1)
    before = h.clone(), g.clone()
    positive, negative = evidence(h, g)
    assert torch.equal(h, before[0])
    assert torch.equal(g, before[1])
    for row in range(len(h)):
        one = evidence(h[row : row + 1], g[row : row + 1])
        torch.testing.assert_close(torch.cat(one), torch.stack([positive[row], negative[row]]), rtol=0, atol=1e-13)


def test_hidden_pixels_are_zero_and_others_are_not():
    h, g = random(2)
    h, g = (4 * h).round().relu(), (8 * g).round()
    positive, negative = evidence(h, g)
    hidden = negative.abs() >= positive
    assert 0 < hidden.sum() < hidden.numel()
    assert torch.equal(grad_cam(h, g) <= 1e-12, hidden)


def test_positions_of_the_gradient_are_lost():
    h, g = random(3)
    shuffled = g.flatten(2)[:, :, torch.randperm(28, generator=torch.Generator().manual_seed(4))].view_as(g)
    torch.testing.assert_close(grad_cam(h, shuffled), grad_cam(h, g), rtol=0, atol=1e-13)
    assert (gam(h, shuffled) - gam(h, g)).abs().max() > 0.1


class OneConv(nn.Module):
    """Captum's test net: one convolution of ones with the biases -50 and -75, ReLU, a layer of +1 and -1."""

    def __init__(self):
        super().__init__()
        self.conv1, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(8, 4)
        nn.init.ones_(self.conv1.weight)
        nn.init.zeros_(self.fc.bias)
        with torch.no_grad():
            self.conv1.bias.copy_(torch.tensor([-50.0, -75.0]))
            self.fc.weight.copy_(torch.tensor([1.0] * 5 + [-1.0] * 3).expand(4, 8))

    def forward(self, x):
        return self.fc(self.conv1(x).relu().flatten(1)).relu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captums_one_conv_example(dtype):
    # conv1: 45 54 81 90 less 50 and less 75; gradients 0 1 1 1 (mean 0.75) and 0 0 -1 -1 (mean -0.5):
    # 0.75*-5 + 0.5*30 = 11.25, 3 + 10.5 = 13.5, 23.25 - 3 = 20.25, 30 - 7.5 = 22.5
    lens = Lens(OneConv().to(dtype), blocks=["conv1"])
    image = torch.arange(16.0, dtype=dtype).view(1, 1, 4, 4)
    found = lens.trace(image, 0, n=1).raw("grad_cam")
    assert found.tolist() == [[[11.25, 13.5], [20.25, 22.5]]]
