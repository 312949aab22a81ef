"""Attention rollout. Abnar and Zuidema, ACL 2020. It does not depend on the score: a baseline."""

import torch
from torch import Tensor


def attention_rollout(attention: Tensor, pooled: Tensor) -> Tensor:
    """How much the pooled tokens draw from every token through L layers: (L,B,H,N,N), (B,N) -> (B,N).

    Each layer mixes tokens by half of the attention, averaged over heads, and half of the residual connection:

        R <- (mean_h A_h / 2 + I / 2) R,  R = I before the first layer

    The result is the mean of the rows of R of the tokens that the score is read from: sum_i p_i R_ij.

    >>> A = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 1, 1, 2, 2)
    >>> attention_rollout(A, torch.tensor([[1.0, 0.0]]))
    tensor([[0.5000, 0.5000]])
    """
    rows = pooled
    for layer in reversed(attention.unbind()):  # rows of the product, from the last layer to the first
        rows = (torch.einsum("bi,bhij->bj", rows, layer) / layer.shape[1] + rows) / 2
    return rows
