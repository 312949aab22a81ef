"""XGrad-CAM."""

import torch

from gamlens.methods import grad_cam, xgrad_cam


def test_by_hand():
    h = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]])
    g = torch.tensor([[[[2.0, 4.0]], [[-1.0, 7.0]]]])
    # a = (1*2 + 3*4)/4 = 3.5 and (2*-1 + 0)/2 = -1: 3.5 - 2, 3.5*3
    assert xgrad_cam(h, g).tolist() == [[[1.5, 10.5]]]


def test_a_channel_that_sums_to_zero_has_no_weight():
    h = torch.tensor([[[[2.0, -2.0]], [[1.0, 3.0]], [[0.0, 0.0]]]])
    g = torch.tensor([[[[5.0, 1.0]], [[1.0, 1.0]], [[9.0, 9.0]]]])
    assert xgrad_cam(h, g).tolist() == [[[1.0, 3.0]]]


def test_equals_grad_cam_where_the_activation_or_the_gradient_has_no_positions():
    torch.manual_seed(0)
    flat = torch.randn(2, 4, 1, 1, dtype=torch.float64).expand(2, 4, 3, 5)
    free = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(xgrad_cam(flat, free), grad_cam(flat, free), rtol=0, atol=1e-13)
    torch.testing.assert_close(xgrad_cam(free, flat), grad_cam(free, flat), rtol=0, atol=1e-13)
    assert xgrad_cam(free, flat).max() > 0.1
