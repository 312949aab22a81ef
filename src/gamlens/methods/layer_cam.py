"""LayerCAM. Jiang et al., IEEE TIP 2021."""

from torch import Tensor


def layer_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k relu(g_k) * h_k): (B,C,h,w), (B,C,h,w) -> (B,h,w). Equals GAM wherever h >= 0."""
    return (activation * gradient.relu()).sum(dim=1).relu()
