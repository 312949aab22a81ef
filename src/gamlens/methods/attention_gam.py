"""Attention GAM: GAM's product of activation and positive gradient, read from the attention of a transformer.

In a convolutional network a block's activation says what is where, and GAM (Barkan et al., CIKM 2021, Eq. 1) multiplies
it by its positive gradient. In a transformer, places are mixed by attention alone. So here the attention is the
activation: it is never negative, its last axis runs over places, and its channels are the pairs of a head and a query.
"""

from torch import Tensor


def attention_gam(attention: Tensor, gradient: Tensor) -> Tensor:
    """The root of sum_h sum_i A_hij * relu(G_hij) at every token j: (B,H,N,N), (B,H,N,N) -> (B,N).

    A_hij is how much query i of head h attends to token j. With G the gradient of a score, A_hij G_hij is the part of
    the score that token j adds through this attention, if the attention pattern is held fixed. The root makes
    differences between strong and weak places smaller and changes no order; it matters when layers are averaged.

    >>> import torch
    >>> A = torch.tensor([[[[0.25, 0.75], [1.0, 0.0]]]])
    >>> G = torch.tensor([[[[4.0, -1.0], [3.0, 5.0]]]])
    >>> attention_gam(A, G)
    tensor([[2., 0.]])
    """
    return (attention * gradient.relu()).sum(dim=(1, 2)).sqrt()
