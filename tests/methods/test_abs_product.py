"""Abs product."""

import torch

from gamlens.methods import abs_product


def test_by_hand():
    h = torch.tensor([[[[1.0, -2.0, 4.0]], [[3.0, 5.0, -1.0]]]])
    g = torch.tensor([[[[2.0, 3.0, 1.0]], [[-1.0, 0.5, 0.0]]]])
    # 2 + 3, 6 + 2.5, 4 + 0
    assert abs_product(h, g).tolist() == [[[5.0, 8.5, 4.0]]]
