"""VDSN: visualizing deep similarity networks. Stylianou et al., WACV 2019."""

import torch
from torch import Tensor


def vdsn(activation: Tensor, other: Tensor) -> Tensor:
    """sum_k h_k * mean(h'_k): what each position adds to the dot product of the average-pooled features.

    (B,C,h,w), (B,C,h',w') -> (B,h,w). No gradient is read, so the map does not depend on the score.

    >>> x = torch.tensor([[[[1.0, 2.0]], [[3.0, 0.0]]]])
    >>> y = torch.tensor([[[[2.0, 4.0]], [[1.0, 1.0]]]])
    >>> vdsn(x, y)  # the means of y are 3 and 1
    tensor([[[6., 6.]]])
    """
    return torch.einsum("bkhw,bk->bhw", activation, other.mean(dim=(2, 3)))


def vdsn_max(activation: Tensor, other: Tensor) -> Tensor:
    """sum_k max(h_k) * max(h'_k) where h_k is max(h_k): what each position adds to the dot product of the max-pooled
    features.

    (B,C,h,w), (B,C,h',w') -> (B,h,w). A channel adds nothing where it is below its maximum. If several positions share
    the maximum, each has an equal part, so that the map always adds up to the dot product.

    >>> x = torch.tensor([[[[1.0, 2.0]], [[3.0, 0.0]]]])
    >>> y = torch.tensor([[[[2.0, 4.0]], [[1.0, 1.0]]]])
    >>> vdsn_max(x, y)  # the maxima of y are 4 and 1
    tensor([[[3., 8.]]])
    """
    most = activation.amax(dim=(2, 3), keepdim=True)
    at_most = (activation == most).to(activation.dtype)
    share = most / at_most.sum(dim=(2, 3), keepdim=True)
    return torch.einsum("bkhw,bk->bhw", at_most * share, other.amax(dim=(2, 3)))
