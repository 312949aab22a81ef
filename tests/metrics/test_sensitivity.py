"""Max-sensitivity: by hand. tests/metrics/test_other_libraries.py compares with captum."""

import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import max_sensitivity


def test_by_hand():
    maps = torch.tensor([[[0.6, 0.8]], [[0.0, 0.0]], [[0.3, 0.4]]])
    noisy = torch.stack([maps + torch.tensor([0.1, 0.0]), maps + torch.tensor([0.0, -0.3]), maps])
    # lengths 1, 0 (not divided) and 1/2
    assert max_sensitivity(maps, noisy).tolist() == pytest.approx([0.3, 0.3, 0.6], abs=1e-7)


def test_a_map_that_does_not_look_at_the_image_has_zero():
    maps = torch.rand(2, 5, 5)
    assert max_sensitivity(maps, maps.expand(3, 2, 5, 5)).tolist() == [0, 0]


def test_bad_input_is_an_error():
    with pytest.raises(GamlensError, match=r"\(K,N,H,W\) for maps \(N,H,W\)"):
        max_sensitivity(torch.rand(2, 3, 3), torch.rand(2, 3, 3))
    with pytest.raises(GamlensError, match="NaN"):
        max_sensitivity(torch.rand(2, 3, 3), torch.full((1, 2, 3, 3), torch.nan))
