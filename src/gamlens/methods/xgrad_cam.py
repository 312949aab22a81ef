"""XGrad-CAM. Fu et al., BMVC 2020."""

import torch
from torch import Tensor


def xgrad_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k a_k h_k), a_k = sum_ij (h_k / sum h_k) g_k: (B,C,h,w), (B,C,h,w) -> (B,h,w).

    A channel whose activation sums to zero has no weight.

    >>> h = torch.tensor([[[[1.0, 3.0]]]])
    >>> g = torch.tensor([[[[2.0, 4.0]]]])
    >>> xgrad_cam(h, g)  # a = (1 * 2 + 3 * 4) / (1 + 3)
    tensor([[[ 3.5000, 10.5000]]])
    """
    total = activation.sum(dim=(2, 3))
    weight = (activation * gradient).sum(dim=(2, 3)) / torch.where(total != 0, total, 1)
    weight = torch.where(total != 0, weight, 0)
    return torch.einsum("bk,bkhw->bhw", weight, activation).relu()
