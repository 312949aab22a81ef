"""Insertion and deletion."""

import math

import numpy as np
import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import auc, order, steps


def test_order_by_hand():
    # 0.9 at 1; 0.5 at 0 and 3, in reading order; 0.1 at 2
    assert order(torch.tensor([[[0.5, 0.9], [0.1, 0.5]]])).tolist() == [[1, 0, 3, 2]]


def test_steps_by_hand():
    masks = list(steps(torch.tensor([[[0.5, 0.9], [0.1, 0.5], [0.2, 0.3]]]), 4))
    # six pixels in four steps: floor of 0, 1.5, 3, 4.5, 6
    assert [int(mask.sum()) for mask in masks] == [0, 1, 3, 4, 6]
    assert masks[1].tolist() == [[[False, True], [False, False], [False, False]]]
    assert masks[2].tolist() == [[[True, True], [False, True], [False, False]]]


@pytest.mark.parametrize("count", [1, 7, 35])
def test_steps_equal_a_loop(count):
    maps = torch.randint(0, 6, (3, 5, 7), generator=torch.Generator().manual_seed(0)) / 5
    copy = maps.clone()
    masks = torch.stack(list(steps(maps, count)))
    assert masks.shape == (count + 1, 3, 5, 7)
    for s in range(count + 1):
        for item in range(3):
            ranked = sorted(range(35), key=lambda i, item=item: (-maps[item].flatten()[i].item(), i))
            expected = torch.zeros(35, dtype=torch.bool)
            expected[ranked[: s * 35 // count]] = True
            assert torch.equal(masks[s, item].flatten(), expected)
    assert torch.equal(maps, copy)


def test_a_flat_map_goes_in_reading_order():
    masks = list(steps(torch.zeros(1, 2, 2), 4))
    assert [mask.flatten().int().tolist() for mask in masks[1:3]] == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_auc_by_hand():
    # (0 + 1)/2 * 1/2 + (1 + 1)/2 * 1/2 = 3/4; a constant is its own area; a line from 1 to 0 has 1/2
    curves = torch.tensor([[0.0, 0.3, 1.0], [1.0, 0.3, 0.5], [1.0, 0.3, 0.0]])
    torch.testing.assert_close(auc(curves), torch.tensor([0.75, 0.3, 0.5]))


def test_auc_equals_numpy():
    curves = torch.randn(11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    trapezoid = getattr(np, "trapezoid", None) or np.trapz  # its name before NumPy 2
    expected = trapezoid(curves.numpy(), np.linspace(0, 1, 11), axis=0)
    np.testing.assert_allclose(auc(curves).numpy(), expected, rtol=1e-12)


def test_no_item():
    assert order(torch.empty(0, 3, 4)).shape == (0, 12)
    assert [mask.shape for mask in steps(torch.empty(0, 3, 4), 2)] == [(0, 3, 4)] * 3
    assert auc(torch.empty(4, 0)).shape == (0,)


@pytest.mark.parametrize("count", [0, -1, 5])
def test_the_number_of_steps_fits_the_map_before_the_first_is_drawn(count):
    with pytest.raises(GamlensError, match=f"4 pixels of a map, found {count}"):
        steps(torch.ones(1, 2, 2), count)


@pytest.mark.parametrize("scores", [torch.ones(3), torch.ones(1, 3), torch.tensor([[1.0], [math.nan]])])
def test_bad_curves_are_an_error(scores):
    with pytest.raises(GamlensError):
        auc(scores)


def test_bad_maps_are_an_error():
    with pytest.raises(GamlensError, match="NaN"):
        order(torch.full((1, 2, 2), math.nan))
