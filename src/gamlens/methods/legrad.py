"""LeGrad: layer-wise gradients of attention. Bousselham et al., 2024."""

from torch import Tensor


def legrad(gradient: Tensor) -> Tensor:
    """The mean of relu(G) over L layers, heads and queries, at every token: (L,B,H,N,N) -> (B,N).

    G of layer l is the gradient of s_l with respect to the attention of layer l. s_l is the score of that layer's own
    tokens: what the network's last norm, its pooling and its head make of them, as if no layer followed. The attention
    itself is not read.

    >>> import torch
    >>> legrad(torch.tensor([[1.0, -3.0], [3.0, 2.0]]).expand(2, 1, 1, 2, 2))
    tensor([[2., 1.]])
    """
    return gradient.relu().mean(dim=(0, 2, 3))
