"""GAM: Gradient Activation Maps. Barkan et al., CIKM 2021, Eq. 1."""

from torch import Tensor


def gam(activation: Tensor, gradient: Tensor) -> Tensor:
    """sum_k relu(h_k) * relu(g_k), pixel by pixel: (B,C,h,w), (B,C,h,w) -> (B,h,w).

    >>> import torch
    >>> h = torch.tensor([[[[1.0, 2.0]], [[3.0, -1.0]]]])
    >>> g = torch.tensor([[[[0.5, -1.0]], [[1.0, 4.0]]]])
    >>> gam(h, g)
    tensor([[[3.5000, 0.0000]]])
    """
    return (activation.relu() * gradient.relu()).sum(dim=1)
