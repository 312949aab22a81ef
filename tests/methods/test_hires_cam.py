"""HiResCAM."""

import torch

from gamlens.methods import grad_cam, hires_cam


def test_by_hand():
    h = torch.tensor([[[[1.0, -2.0, 4.0]], [[3.0, 5.0, -1.0]]]])
    g = torch.tensor([[[[2.0, -3.0, 1.0]], [[-1.0, 0.5, 6.0]]]])
    # 2 - 3 = -1 -> 0, 6 + 2.5, 4 - 6 = -2 -> 0: both negative counts as evidence here
    assert hires_cam(h, g).tolist() == [[[0.0, 8.5, 0.0]]]


def test_equals_grad_cam_where_the_gradient_has_no_positions():
    torch.manual_seed(0)
    h = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    g = torch.randn(2, 4, 1, 1, dtype=torch.float64).expand_as(h)
    torch.testing.assert_close(hires_cam(h, g), grad_cam(h, g), rtol=0, atol=1e-13)
    assert hires_cam(h, g).max() > 0.1


def test_adds_up_to_the_score_of_a_linear_tail():
    torch.manual_seed(1)
    h = torch.rand(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(3, 4, 5, dtype=torch.float64)
    score = (h * weight).sum(dim=(1, 2, 3))
    (g,) = torch.autograd.grad(score.sum(), h)
    torch.testing.assert_close(hires_cam(h, g).sum(dim=(1, 2)), score, rtol=1e-13, atol=0)
