"""Abs product: the size of activation times gradient at each position. It has no paper."""

from torch import Tensor


def abs_product(activation: Tensor, gradient: Tensor) -> Tensor:
    """sum_k |h_k * g_k|: (B,C,h,w), (B,C,h,w) -> (B,h,w)."""
    return (activation * gradient).abs().sum(dim=1)
