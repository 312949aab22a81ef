"""LayerCAM."""

import torch

from gamlens.methods import gam, layer_cam


def test_by_hand():
    h = torch.tensor([[[[1.0, -2.0, 4.0]], [[3.0, 5.0, -1.0]]]])
    g = torch.tensor([[[[2.0, 3.0, 1.0]], [[-1.0, 0.5, 6.0]]]])
    # 2 + 0, -6 + 2.5 = -3.5 -> 0, 4 - 6 = -2 -> 0; GAM keeps 2.5 and 4
    assert layer_cam(h, g).tolist() == [[[2.0, 0.0, 0.0]]]
    assert gam(h, g).tolist() == [[[2.0, 2.5, 4.0]]]


def test_is_never_above_gam():
    torch.manual_seed(0)
    h, g = torch.randn(3, 6, 5, 4), torch.randn(3, 6, 5, 4)
    difference = gam(h, g) - layer_cam(h, g)
    assert difference.min() >= -1e-6
    assert difference.max() > 0.1
