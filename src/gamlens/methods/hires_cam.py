"""HiResCAM. Draelos and Carin, 2020."""

from torch import Tensor


def hires_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k g_k * h_k), with the gradient neither pooled nor clipped: (B,C,h,w), (B,C,h,w) -> (B,h,w).

    >>> h = torch.tensor([[[[1.0, 2.0]], [[3.0, 0.5]]]])
    >>> g = torch.tensor([[[[0.5, -3.0]], [[1.0, 4.0]]]])
    >>> hires_cam(h, g)
    tensor([[[3.5000, 0.0000]]])
    """
    return (activation * gradient).sum(dim=1).relu()
