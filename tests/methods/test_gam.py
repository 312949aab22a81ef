"""GAM, Eq. 1."""

import torch

from gamlens.fuse import min_max
from gamlens.methods import gam, grad_cam, layer_cam


def test_by_hand():
    h = torch.tensor([[[[1.0, -2.0], [3.0, 0.0]], [[4.0, 5.0], [-6.0, 7.0]]]])
    g = torch.tensor([[[[2.0, 9.0], [-1.0, 8.0]], [[-3.0, 0.5], [-2.0, 3.0]]]])
    # 1*2 + 0, 0 + 5*0.5, 0 + 0 (two negatives make no evidence), 0 + 7*3
    assert gam(h, g).tolist() == [[[2.0, 2.5], [0.0, 21.0]]]


def test_negative_gradients_on_one_channel_take_nothing_from_another():
    torch.manual_seed(2)
    h, g = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    masked = torch.cat([g, torch.full((2, 1, 4, 5), -1e6)], dim=1)
    more = torch.cat([h, torch.ones(2, 1, 4, 5)], dim=1)
    torch.testing.assert_close(gam(more, masked), gam(h, g), rtol=0, atol=1e-6)
    assert (grad_cam(more, masked) == 0).all()


def test_equals_layer_cam_where_activations_are_not_negative():
    torch.manual_seed(0)
    h, g = torch.randn(3, 5, 4, 7, dtype=torch.float64), torch.randn(3, 5, 4, 7, dtype=torch.float64)
    torch.testing.assert_close(gam(h.relu(), g), layer_cam(h.relu(), g), rtol=0, atol=0)
    assert (gam(h, g) - layer_cam(h, g)).abs().max() > 0.1


def test_at_a_pooled_linear_head_it_is_the_activations_weighed_by_the_positive_weights():
    torch.manual_seed(1)
    h = torch.rand(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    w = torch.tensor([0.7, -1.2, 0.3, 2.0], dtype=torch.float64)
    (g,) = torch.autograd.grad((h.mean(dim=(2, 3)) @ w).sum(), h)
    expected = 0.7 * h[:, 0] + 0.3 * h[:, 2] + 2.0 * h[:, 3]
    torch.testing.assert_close(gam(h, g), expected / 15, rtol=1e-13, atol=0)
    torch.testing.assert_close(min_max(gam(h, g))[0], min_max(expected)[0], rtol=0, atol=1e-13)
