"""VDSN."""

import torch

from gamlens.methods import METHODS, grad_cam, vdsn, vdsn_max


def test_by_hand():
    h = torch.tensor([[[[1.0, 2.0]], [[3.0, -1.0]]]])
    other = torch.tensor([[[[4.0, 0.0], [2.0, 2.0]], [[1.0, 1.0], [-1.0, 3.0]]]])
    # means 2 and 1: 2 + 3, 4 - 1
    assert vdsn(h, other).tolist() == [[[5.0, 3.0]]]
    assert METHODS["vdsn"].kind == "pair"


def test_both_maps_add_up_to_the_dot_product_of_pooled_features():
    torch.manual_seed(0)
    x, y = torch.randn(3, 5, 4, 7, dtype=torch.float64), torch.randn(3, 5, 2, 3, dtype=torch.float64)
    score = (x.mean(dim=(2, 3)) * y.mean(dim=(2, 3))).sum(dim=1)
    torch.testing.assert_close(vdsn(x, y).mean(dim=(1, 2)), score, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(vdsn(y, x).mean(dim=(1, 2)), score, rtol=1e-12, atol=1e-13)


def test_is_grad_cam_of_the_dot_product_but_for_the_relu_and_the_scale():
    torch.manual_seed(1)
    x = torch.rand(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    y = torch.rand(2, 4, 3, 5, dtype=torch.float64)
    (g,) = torch.autograd.grad((x.mean(dim=(2, 3)) * y.mean(dim=(2, 3))).sum(), x)
    torch.testing.assert_close(vdsn(x, y), 15 * grad_cam(x, g), rtol=1e-12, atol=0)


def test_max_pooling_by_hand():
    """Channel 1 has its maximum 3 twice, so each place gets half of 3 x 4; channel 2 has -1 at its only maximum."""
    h = torch.tensor([[[[3.0, 1.0, 3.0]], [[-2.0, -1.0, -5.0]]]])
    other = torch.tensor([[[[4.0, 0.0]], [[-3.0, 2.0]]]])
    assert vdsn_max(h, other).tolist() == [[[6.0, -2.0, 6.0]]]
    assert METHODS["vdsn_max"].kind == "pair"


def test_both_maps_of_max_pooling_add_up_to_the_dot_product():
    torch.manual_seed(2)
    x, y = torch.randn(3, 5, 4, 7, dtype=torch.float64), torch.randn(3, 5, 2, 3, dtype=torch.float64)
    x[0, 1], y[1, 2] = 0.5, 0.0  # the same value everywhere
    score = (x.amax(dim=(2, 3)) * y.amax(dim=(2, 3))).sum(dim=1)
    torch.testing.assert_close(vdsn_max(x, y).sum(dim=(1, 2)), score, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(vdsn_max(y, x).sum(dim=(1, 2)), score, rtol=1e-12, atol=1e-13)


def test_max_pooling_is_activation_times_gradient_of_the_dot_product():
    torch.manual_seed(3)
    x = torch.rand(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    y = torch.rand(2, 4, 3, 5, dtype=torch.float64)
    (g,) = torch.autograd.grad((x.amax(dim=(2, 3)) * y.amax(dim=(2, 3))).sum(), x)
    torch.testing.assert_close(vdsn_max(x, y), (x * g).sum(dim=1).detach(), rtol=1e-12, atol=0)


def test_a_position_that_is_not_a_number_makes_the_whole_map_so():
    x = torch.rand(1, 2, 2, 2)
    x[0, 0, 0, 0] = torch.nan
    assert vdsn_max(x, torch.rand(1, 2, 2, 2)).isnan().all()
