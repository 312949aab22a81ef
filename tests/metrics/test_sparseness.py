"""Sparseness, the Gini index of a map."""

import pytest
import torch

from gamlens.metrics import CONTROLS, sparseness


def test_by_hand():
    # 1, 2, 3, 4: (-3 - 2 + 3 + 12) / (4 x 10)
    assert sparseness(torch.tensor([[[0.2, 0.1], [0.4, 0.3]]])).item() == pytest.approx(0.25)
    single = torch.zeros(1, 10, 10)
    single[0, 3, 4] = 0.7
    assert sparseness(single).item() == pytest.approx(0.99)


def test_equals_the_mean_difference_of_pairs():
    """Half of the mean difference of two pixels, over the mean."""
    maps = torch.rand(3, 6, 7, dtype=torch.float64)
    for plane, found in zip(maps.flatten(1), sparseness(maps).tolist(), strict=True):
        assert found == pytest.approx(((plane[:, None] - plane).abs().mean() / 2 / plane.mean()).item(), abs=1e-12)


def test_a_flat_map_has_zero():
    flat = torch.stack([torch.full((9, 11), value) for value in (0.0, 0.1, 1.0)])
    assert sparseness(flat).tolist() == [0, 0, 0]
    assert sparseness(torch.empty(0, 3, 3)).shape == (0,)


def test_controls():
    """A spot in the middle beats chance without a model."""
    blank, ones, centre, chance = (sparseness(make(["a"], 56, 56)).item() for make in CONTROLS.values())
    assert blank == ones == 0
    assert centre > chance > 0.1
