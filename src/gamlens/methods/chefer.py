"""Generic attention-model explainability, for encoders with self-attention. Chefer, Gur and Wolf, ICCV 2021."""

import torch
from torch import Tensor


def chefer(attention: Tensor, gradient: Tensor, pooled: Tensor) -> Tensor:
    """Relevance of every token for the pooled tokens, through L layers: (L,B,H,N,N), (L,B,H,N,N), (B,N) -> (B,N).

    With A the attention of a layer and G the gradient of the score with respect to it (Eqs. 5 and 6 of the paper):

        R <- R + mean_h relu(G_h * A_h) R,  R = I before the first layer

    The result is the mean of the rows of R of the tokens that the score is read from: sum_i p_i R_ij. The paper reads
    the row of the class token.

    >>> A = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).expand(1, 1, 1, 2, 2)
    >>> chefer(A, torch.tensor([[4.0, 2.0], [9.0, -1.0]]).expand(1, 1, 1, 2, 2), torch.tensor([[1.0, 0.0]]))
    tensor([[3., 1.]])
    """
    rows = pooled
    for layer, slope in zip(reversed(attention.unbind()), reversed(gradient.unbind()), strict=True):
        rows = rows + torch.einsum("bi,bij->bj", rows, (layer * slope).relu().mean(dim=1))
    return rows
