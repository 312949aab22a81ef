"""LayerCAM. Jiang et al., IEEE TIP 2021."""

from torch import Tensor


def layer_cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """relu(sum_k relu(g_k) * h_k): (B,C,h,w), (B,C,h,w) -> (B,h,w). Equals GAM wherever h >= 0.

    >>> h = torch.tensor([[[[1.0, 2.0]], [[3.0, 0.5]]]])
    >>> g = torch.tensor([[[[0.5, -1.0]], [[1.0, 4.0]]]])
    >>> layer_cam(h, g)
    tensor([[[3.5000, 2.0000]]])
    """
    return (activation * gradient.relu()).sum(dim=1).relu()
