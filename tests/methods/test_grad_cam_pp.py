"""Grad-CAM++, Eq. 6: the stable form and the literal one."""

import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensWarning
from gamlens.fuse import min_max, normalize
from gamlens.methods import grad_cam_pp, grad_cam_pp_literal

H = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]], dtype=torch.float64)
G = torch.tensor([[[[0.5, -1.0]], [[1.0, 2.0]]]], dtype=torch.float64)
# S = 4 and 2. Channel 0: 0.5/(2 + 4*0.5) = 1/8. Channel 1: 1/(2 + 2) + 2/(2 + 4) = 7/12.
# Map: 1/8 + 2*7/12 = 31/24 and 3/8 + 0.
MAP = [[[31 / 24, 3 / 8]]]


def positive(seed=0, shape=(2, 4, 3, 5), scale=1.0):
    """Activations that are not negative and signed gradients."""
    make = torch.Generator().manual_seed(seed)
    h, g = (torch.randn(shape, generator=make, dtype=torch.float64) for _ in range(2))
    return h.relu(), scale * g


def test_by_hand():
    torch.testing.assert_close(grad_cam_pp(H, G), torch.tensor(MAP, dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("gradient", "weight"),
    [
        (0.25, 0.25),  # 2 - 4*0.25 = 1
        (0.5, 0.0),  # the denominator is 0
        (1.0, 0.0),  # the denominator is -2
        (0.0, 0.0),
        (-1.0, 0.0),  # beta is 1/6, relu(g) is 0
    ],
)
def test_beta_counts_only_where_its_denominator_is_positive(gradient, weight):
    h = torch.tensor([[[[-5.0, 1.0]]]])
    g = torch.tensor([[[[gradient, 0.0]]]])
    assert grad_cam_pp(h, g).tolist() == [[[0.0, weight]]]


def test_pooled_linear_head_has_the_closed_form():
    torch.manual_seed(2)
    h = torch.rand(3, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(5, 2).double()
    (g,) = torch.autograd.grad(head(h.mean(dim=(2, 3)))[:, 1].sum(), h)
    w, total = head.weight[1], h.sum(dim=(2, 3))
    assert (w < 0).any()
    assert (w > 0).any()
    weights = w.relu() / (2 + total * w / 12)
    expected = (weights[:, :, None, None] * h).sum(dim=1)
    torch.testing.assert_close(grad_cam_pp(h, g), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("score", [-20.0, -1.0, 0.0, 3.0, 40.0])
def test_literal_equals_stable_after_min_max_at_a_moderate_score(score):
    h, g = positive()
    literal = grad_cam_pp_literal(h, g, torch.full((2,), score))
    torch.testing.assert_close(min_max(literal)[0].double(), min_max(grad_cam_pp(h, g))[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("score", "factor"), [(0.0, 1.0), (math.log(2), 2.0), (-math.log(8), 0.125)])
def test_literal_by_hand_is_exp_s_times_the_stable_map(score, factor):
    found = grad_cam_pp_literal(H, G, torch.tensor([score]))
    torch.testing.assert_close(found, factor * torch.tensor(MAP), rtol=1e-6, atol=0)


@pytest.mark.parametrize("score", [-3.0, 0.5, 12.0])
def test_literal_equals_its_twin(score):
    h, g = positive(3, (3, 4, 5, 3))
    found = grad_cam_pp_literal(h, g, torch.full((3,), score))
    expected = [naive.grad_cam_pp_literal(*item, score) for item in zip(h.numpy(), g.numpy(), strict=True)]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("score", [120.0, 500.0, -500.0])
def test_literal_is_lost_where_exp_s_leaves_float32_and_stable_is_not(score):
    h, g = positive(4)
    lost = grad_cam_pp_literal(h, g, torch.full((2,), score, dtype=torch.float64))
    assert all(not plane.isfinite().all() or (plane == 0).all() for plane in lost)
    with pytest.warns(GamlensWarning, match="row 0, 1"):
        assert (normalize(lost) == 0).all()
    assert (normalize(grad_cam_pp(h, g)).amax(dim=(1, 2)) == 1).all()


def test_literal_loses_only_the_row_whose_score_is_large():
    h, g = positive(5)
    found = grad_cam_pp_literal(h, g, torch.tensor([1.0, 500.0]))
    torch.testing.assert_close(found[:1], grad_cam_pp_literal(h[:1], g[:1], torch.tensor([1.0])), rtol=1e-6, atol=0)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    scale=st.sampled_from([1e-8, 1e-3, 1.0, 30.0, 1e4]),
    spread=st.sampled_from([1e-4, 1.0, 1e3]),
)
def test_stable_is_finite_for_signed_tensors_of_any_scale(seed, shape, dtype, scale, spread):
    make = torch.Generator().manual_seed(seed)
    h, g = (torch.randn(shape, generator=make, dtype=dtype) for _ in range(2))
    found = grad_cam_pp(spread * h, scale * g)
    assert found.isfinite().all()
    assert (found >= 0).all()
