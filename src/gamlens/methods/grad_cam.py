"""Grad-CAM. Selvaraju et al., ICCV 2017 (GAM paper, Eq. 3).

`evidence` shows where it hides positive evidence (GAM paper, Eq. 4).
"""

import torch
from torch import Tensor


def grad_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k a_k h_k), where a_k is the mean of g_k over positions: (B,C,h,w), (B,C,h,w) -> (B,h,w).

    >>> h = torch.tensor([[[[1.0, 2.0]], [[3.0, 1.0]]]])
    >>> g = torch.tensor([[[[1.0, 3.0]], [[-2.0, 0.0]]]])
    >>> grad_cam(h, g)
    tensor([[[0., 3.]]])
    """
    weight = gradient.mean(dim=(2, 3))
    return torch.einsum("bk,bkhw->bhw", weight, activation).relu()


def evidence(activation: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 4: Grad-CAM's sum before its ReLU, split into P, the channels with a_k >= 0, and N, those with a_k < 0.

    (B,C,h,w), (B,C,h,w) -> (B,h,w), (B,h,w). Grad-CAM hides a pixel where |N| >= P.
    """
    weight = gradient.mean(dim=(2, 3))
    positive = torch.einsum("bk,bkhw->bhw", weight.clamp(min=0), activation)
    negative = torch.einsum("bk,bkhw->bhw", weight.clamp(max=0), activation)
    return positive, negative
