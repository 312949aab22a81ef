"""The plain gradient of the score with respect to the pixels. Simonyan et al., ICLR workshop 2014."""

from torch import Tensor


def input_gradient(pixels: Tensor, gradient: Tensor) -> Tensor:
    """max_c |g_c| at each pixel, where g is the gradient with respect to the pixels: (B,C,H,W), (B,C,H,W) -> (B,H,W).

    >>> import torch
    >>> g = torch.tensor([[[[1.0, -4.0]], [[-3.0, 2.0]]]])
    >>> input_gradient(torch.zeros_like(g), g)
    tensor([[[3., 4.]]])
    """
    return gradient.abs().amax(dim=1)
