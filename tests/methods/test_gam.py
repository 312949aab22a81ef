"""GAM, Eq. 1."""

import nets
import pytest
import torch

from gamlens import Lens
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


@pytest.mark.parametrize("make", [nets.small, nets.dense])
def test_under_average_pooling_one_block_is_the_positive_part_of_grad_cam(make):
    """docs/methods.md: at n=1 GAM is P of Eq. 4 of the activations after a ReLU; gradients say where from n=2 on."""
    lens = Lens(make().double())
    x, y = nets.images(2), nets.images(2, seed=3)
    traces = [lens.trace(x, [1, 2], n=2), *lens.trace_pair(x, y, n=2).sides("cosine")]
    for trace in traces:
        first, last = (trace.gradients[name] for name in trace.blocks)
        assert float(last.abs().max()) > 0
        same = last.mean(dim=(2, 3), keepdim=True).expand_as(last)
        torch.testing.assert_close(last, same, rtol=1e-12, atol=1e-18)
        positive = trace.evidence().positive
        torch.testing.assert_close(trace.raw("gam"), positive.relu(), rtol=1e-12, atol=1e-18)
        spread = first.std(dim=(2, 3)).amax() / first.abs().amax()
        assert spread > 0.05
        earlier = trace.evidence(trace.blocks[0]).positive.relu()
        assert (trace.raw("gam", trace.blocks[0]) - earlier).abs().max() > 0.05 * earlier.max()


def test_signed_activations_are_cut_before_they_are_summed():
    """h = -2 and 3 with weights of 1: P of h is 1, P of relu(h) is 3, and GAM is the latter."""
    h, g = torch.tensor([[[[-2.0]], [[3.0]]]]), torch.ones(1, 2, 1, 1)
    assert gam(h, g).item() == 3
    assert (h * g).sum().item() == 1
