"""Infidelity: by hand, and where it has no map to read. tests/metrics/test_other_libraries.py compares with captum."""

import numpy as np
import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import infidelity


def test_by_hand():
    maps = torch.tensor([[[1.0, 2.0]]])
    hidden = torch.tensor([[[[True, False]]], [[[False, True]]], [[[True, True]]]])
    # a = 1, 2, 3; b = 2, 4, 6: beta = 2, and nothing is left
    assert infidelity(maps, hidden, torch.tensor([[2.0], [4.0], [6.0]])).item() == pytest.approx(0, abs=1e-12)
    # b = 1, 0, 0: beta = 1/14, (1/14 - 1)^2 + (2/14)^2 + (3/14)^2 = (169 + 4 + 9) / 196, over 3
    assert infidelity(maps, hidden, torch.tensor([[1.0], [0.0], [0.0]])).item() == pytest.approx(182 / 196 / 3)


def test_equals_a_loop_and_does_not_depend_on_the_scale():
    make = torch.Generator().manual_seed(0)
    maps, hidden = torch.rand(3, 6, 5, generator=make), torch.rand(8, 3, 6, 5, generator=make) > 0.4
    change = torch.randn(8, 3, generator=make)
    found = infidelity(maps, hidden, change)
    for i in range(3):
        a = np.array([maps[i][own[i]].double().sum().item() for own in hidden])
        b = change[:, i].double().numpy()
        beta = (a * b).sum() / (a * a).sum()
        assert found[i].item() == pytest.approx(((beta * a - b) ** 2).mean(), abs=1e-12)
    torch.testing.assert_close(infidelity(maps / 7, hidden, change), found)


def test_a_map_of_zeros_explains_nothing():
    change = torch.tensor([[1.0], [3.0]])
    assert infidelity(torch.zeros(1, 2, 2), torch.ones(2, 1, 2, 2, dtype=torch.bool), change).item() == 5


def test_bad_input_is_an_error():
    maps, hidden = torch.rand(2, 3, 3), torch.ones(4, 2, 3, 3, dtype=torch.bool)
    with pytest.raises(GamlensError, match=r"bool \(K,N,H,W\)"):
        infidelity(maps, hidden.float(), torch.rand(4, 2))
    with pytest.raises(GamlensError, match=r"shape \(K,N\) = \(4, 2\).*found \(2, 4\)"):
        infidelity(maps, hidden, torch.rand(2, 4))
    with pytest.raises(GamlensError, match="finite"):
        infidelity(maps, hidden, torch.full((4, 2), torch.nan))
