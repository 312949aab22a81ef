"""Grad-CAM++. Chattopadhay et al., WACV 2018 (GAM paper, Eq. 6): the stable form and the literal one."""

import torch
from torch import Tensor


def grad_cam_pp(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k w_k h_k), w_k = sum_ij beta relu(g), beta = 1 / (2 + S_k g), S_k = sum_ij h_k.

    (B,C,h,w), (B,C,h,w) -> (B,h,w). The factor exp(s) of Eq. 6 cancels in beta. In w_k it is one factor per image,
    which the normalisation removes, so it is left out. beta is 0 where g = 0 or the denominator is not positive.
    """
    total = activation.sum(dim=(2, 3), keepdim=True)
    denominator = 2 + total * gradient
    usable = (gradient != 0) & (denominator > 0)
    beta = torch.where(usable, 1 / torch.where(usable, denominator, 1), 0)
    weight = (beta * gradient.relu()).sum(dim=(2, 3))
    return torch.einsum("bk,bkhw->bhw", weight, activation).relu()


def grad_cam_pp_literal(activation: Tensor, gradient: Tensor, score: Tensor) -> Tensor:
    """Eq. 6 as it is printed, with exp(s) in float32: (B,C,h,w), (B,C,h,w), (B,) -> (B,h,w).

    A dot product s is in the hundreds: exp(s) overflows and the map is lost: the failure that the paper reports.
    """
    h, g = activation.float(), gradient.float()
    exp = score.float().exp()[:, None, None, None]
    second, third = exp * g**2, exp * g**3
    denominator = 2 * second + h.sum(dim=(2, 3), keepdim=True) * third
    beta = second / torch.where(denominator != 0, denominator, 1)
    weight = (beta * (exp * g).relu()).sum(dim=(2, 3))
    return torch.einsum("bk,bkhw->bhw", weight, h).relu()
