"""How an embedding follows from the last block, where its gradient can be written down."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.capture import forward as capture
from gamlens.capture.forward import ForwardRecord
from gamlens.fuse import at_least_float32, without_grad_or_autocast

LINEAR, UNIT, OTHER = "linear", "unit", "other"
LOOSEST = 0.02


def find_law(tail: ForwardRecord, embeddings: Tensor) -> tuple[str, Tensor]:
    """The law of embeddings (B,D), by their gradient along one vector v an image, and the law's factors (B,).

    linear: J'v = c v. unit: J'v = c (v - <v,e> e), |e| = 1. Both the same at every position of the block. v leans
    towards e, where the two differ most, and is random otherwise, so that no other J passes but by chance.
    """
    e = at_least_float32(embeddings.detach())
    noise = torch.randn(e.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(e)
    v = F.normalize(noise) + F.normalize(e)
    with without_grad_or_autocast(e), torch.inference_mode(False), torch.enable_grad():
        along = (at_least_float32(embeddings) * v).sum(dim=1)
    (found,) = capture.gradients(along, [tail], keep_graph=True)
    name, gradient = list(found.items())[-1]
    coarse = max(torch.finfo(t.dtype).eps for t in (tail.blocks[name], embeddings))
    if gradient.shape[1] == e.shape[1]:
        with without_grad_or_autocast(e):
            g = at_least_float32(gradient)
            length = g.flatten(1).norm(dim=1).clamp(min=torch.finfo(g.dtype).tiny)
            for law in (LINEAR, UNIT):
                by_law = pull(law, v, e)
                scale = (g.mean(dim=(2, 3)) * by_law).sum(dim=1) / by_law.square().sum(dim=1)
                off = (g - (scale[:, None] * by_law)[:, :, None, None]).flatten(1).norm(dim=1) / length
                if bool((off <= min(100 * coarse, LOOSEST)).all()):
                    return law, scale
    return OTHER, e.new_zeros(len(e))


def pull(law: str, v: Tensor, e: Tensor) -> Tensor:
    """J'v at every position, up to the law's factor: (P,D), (P,D) -> (P,D)."""
    return v - (v * e).sum(dim=1, keepdim=True) * e if law == UNIT else v
