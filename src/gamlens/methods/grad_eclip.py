"""Grad-ECLIP: gradient-based explanation of CLIP. Zhao et al., ICML 2024."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def grad_eclip(
    query: Tensor, key: Tensor, value: Tensor, output_gradient: Tensor, pooled: Tensor, image: Tensor
) -> Tensor:
    """relu(sum_i p_i a_ij <w_i, v_j>) at every token j: four tensors (B,H,N,d), (B,N) and (N,) -> (B,N).

    - w_i is the gradient of the score with respect to the attention's output at token i, and v_j the value of token j,
      both with all heads side by side: w_i weights the channels.
    - a_ij is the "loosened" attention: the cosine of the query of i and the key of j, scaled to [0,1] over the tokens
      of the image.
    - p_i says from which tokens the score is read. The paper has the class token alone: p is 1 there.

    Args:
        query, key, value: Of one attention layer.
        output_gradient: The gradient with respect to what the heads give, before they are projected.
        pooled: p, the share of each token in what the score is read from.
        image: Whether each token is one of the image.
    """
    q, k, v, w = (tensor.transpose(1, 2).flatten(2) for tensor in (query, key, value, output_gradient))
    cosine = F.normalize(q, dim=2) @ F.normalize(k, dim=2).transpose(1, 2)
    low = cosine.masked_fill(~image, math.inf).amin(dim=2, keepdim=True)
    span = cosine.masked_fill(~image, -math.inf).amax(dim=2, keepdim=True) - low
    loosened = (cosine - low) / span.masked_fill(span <= 0, math.inf)
    return torch.einsum("bi,bij->bj", pooled, loosened * (w @ v.transpose(1, 2))).relu()
