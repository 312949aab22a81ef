"""VDSN: visualizing deep similarity networks. Stylianou et al., WACV 2019."""

import torch
from torch import Tensor


def vdsn(activation: Tensor, other: Tensor) -> Tensor:
    """sum_k h_k * mean(h'_k): what each position adds to the dot product of the average-pooled features.

    (B,C,h,w), (B,C,h',w') -> (B,h,w). No gradient is read, so the map does not depend on the score.
    """
    return torch.einsum("bkhw,bk->bhw", activation, other.mean(dim=(2, 3)))
