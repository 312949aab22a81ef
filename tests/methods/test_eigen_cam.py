"""Eigen-CAM."""

import naive
import nets
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gamlens import GamlensError, Lens
from gamlens.methods import eigen_cam

BIG_AND_SMALL = [1e-36, 1e-20, 1e20, 1e36]  # their squares are zero or infinite in float32


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_by_hand():
    """A = 30 (1,2,2)/3 (3,4)^T/5 + 3 (2,1,-2)/3 (4,-3)^T/5, so v_1 = (3,4)/5 and A v_1 = 10 (1,2,2)."""
    h = torch.tensor([[[[7.6, 12.8, 10.4]], [[6.8, 15.4, 17.2]]]])
    for activation in (h, -h):
        torch.testing.assert_close(eigen_cam(activation), torch.tensor([[[10.0, 20.0, 20.0]]]))


def test_it_is_not_centred():
    """The mean of each channel counts: a constant activation is its own first component, and the map is its length."""
    h = torch.tensor([3.0, 4.0]).reshape(1, 2, 1, 1).expand(1, 2, 2, 3)
    torch.testing.assert_close(eigen_cam(h), torch.full((1, 2, 3), 5.0))


@pytest.mark.parametrize(
    "shape", [(3, 2, 6, 5), (2, 30, 6, 5), (2, 40, 3, 3), (2, 5, 1, 1), (2, 1, 4, 4), (1, 9, 3, 3)]
)
@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_equals_its_twin_for_near_singular_values(shape, gap):
    """The two largest singular values differ by `gap`, a part of the first."""
    b, c, h, w = shape
    u, _, v = torch.linalg.svd(random(b, h * w, c), full_matrices=False)
    s = torch.full((b, u.shape[2]), 1 - gap, dtype=torch.float64)
    s[:, 0] = 1
    a = (u * s[:, None]) @ v
    activation = a.mT.reshape(shape)
    expected = np.stack([naive.eigen_cam(item.numpy()) for item in activation])
    np.testing.assert_allclose(eigen_cam(activation).numpy(), expected, rtol=0, atol=1e-10)


def test_the_map_of_an_activation_that_is_not_negative_is_not_either():
    """Exactly: no zero of the first component is rounded to less than zero, even if a position has no other channel."""
    for seed in range(20):
        h = random(2, 12, 4, 4, seed=seed, dtype=torch.float32).relu()
        h[0, :6, :2] = 0
        h[0, 6:, 2:] = 0  # two groups of channels that share no position: one has no part in the first component
        found = eigen_cam(h)
        assert (found >= 0).all()
        assert (found[0] == 0).sum() >= 8


def test_the_sum_is_not_negative_and_the_sign_of_the_activation_is_of_no_matter():
    h = random(20, 4, 3, 5)
    found = eigen_cam(h)
    assert (found.sum(dim=(1, 2)) > 0).all()
    assert (found < 0).any()
    assert torch.equal(eigen_cam(-h), found)


def test_rows_do_not_depend_on_each_other():
    h = random(3, 6, 3, 4)
    h[1] = 0
    found = eigen_cam(h)
    assert torch.equal(found[1], torch.zeros(3, 4, dtype=torch.float64))
    h[2, 0, 0, 0] = float("nan")
    again = eigen_cam(h)
    torch.testing.assert_close(again[:2], found[:2], rtol=0, atol=0)
    assert again[2].isnan().all()


@pytest.mark.parametrize("factor", BIG_AND_SMALL)
def test_the_map_scales_with_the_activation(factor):
    h = random(2, 3, 4, 5, dtype=torch.float32)
    torch.testing.assert_close(eigen_cam(factor * h) / factor, eigen_cam(h))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    h = random(2, 3, 4, 5).to(dtype)
    found = eigen_cam(h)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), eigen_cam(h.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 200, 2, 2), (1, 2, 20, 20)])
def test_no_tensor_is_larger_than_the_activation(shape):
    """The matrix that is decomposed is the smaller of (C,C) and (hw,hw)."""
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            sizes.append(made.numel())
            return made

    h = random(*shape)
    with Sizes():
        eigen_cam(h)
    assert max(sizes) == h.numel()


def test_every_class_has_the_same_map():
    found = Lens(nets.small()).classify(nets.images(2), [[1, 2], 3], method="eigen_cam")
    assert torch.equal(found.maps[0], found.maps[1])
    assert not torch.allclose(found.maps[0], found.maps[2], atol=0.01)


def test_a_broken_network_is_one_clear_error():
    net = nets.small()
    with torch.no_grad():
        net.layer3[0].weight[0] = float("nan")
    with pytest.raises(GamlensError, match="not finite"):
        Lens(net).classify(nets.images(2), method="eigen_cam")
