"""HiResCAM. Draelos and Carin, 2020."""

from torch import Tensor


def hires_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k g_k * h_k), with the gradient neither pooled nor clipped: (B,C,h,w), (B,C,h,w) -> (B,h,w)."""
    return (activation * gradient).sum(dim=1).relu()
