"""Several backwards through one tail: as many as fit go through it together, as one batched backward."""

from __future__ import annotations

import torch
from torch import Tensor

from gamlens.capture import forward as capture
from gamlens.capture.forward import ForwardRecord, as_map
from gamlens.capture.guard import model_guard

MOST = 64


def gradients(
    output: Tensor, vectors: Tensor, tail: ForwardRecord, *, keep_graph: bool, most: int = MOST
) -> dict[str, Tensor]:
    """d <vectors[t], output> / d block: output (B,D), vectors (T,B,D) -> {block: (T,B,C,h,w)}.

    Up to `most` images (T x B) go back at a time; where a layer has no batched backward, one t after another.
    """
    turns, images = vectors.shape[:2]
    step = max(1, most // images)
    half = any(block.dtype == torch.float16 for block in tail.blocks.values())
    together = output.requires_grad and turns > 1 and step > 1 and not half
    parts: list[dict[str, Tensor]] = []
    done = 0
    while together and done < turns:
        found = _together(output, vectors[done : done + step], tail)
        if found is None:
            break
        parts.append(found)
        done += step
    for turn in range(done, turns):
        with torch.inference_mode(False), torch.enable_grad():
            score = (output * vectors[turn]).sum(dim=1)
        (found,) = capture.gradients(score, [tail], keep_graph=keep_graph or turn + 1 < turns)
        parts.append({name: gradient[None] for name, gradient in found.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in tail.blocks} if len(parts) > 1 else parts[0]


def _together(output: Tensor, vectors: Tensor, tail: ForwardRecord) -> dict[str, Tensor] | None:
    """All turns in one backward; None where the tail cannot do that, so that a plain one says what is wrong."""
    try:
        with model_guard(tail.model), tail.around(), torch.enable_grad():
            found = torch.autograd.grad(
                output,
                list(tail.blocks.values()),
                vectors.to(output.dtype),
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
            )
    except RuntimeError:
        return None
    result = {}
    for name, gradient in zip(tail.blocks, found, strict=True):
        if gradient is None:
            return None
        flat = as_map(name, gradient.flatten(0, 1), tail.grids)
        result[name] = flat.reshape(*gradient.shape[:2], *flat.shape[1:])
    return result
