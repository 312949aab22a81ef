"""Pairs of remembered images at n = 1: their gradients are written down, with neither forward nor backward."""

from __future__ import annotations

import torch
from torch import Tensor

from gamlens import methods
from gamlens.explanation import PairExplanation
from gamlens.fuse import at_least_float32, without_grad_or_autocast
from gamlens.retrieval.embedding_form import block_gradient
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.pair_maps import PairMaps, PairOptions


def explain(x: Gallery, y: Gallery, chosen: Tensor, options: PairOptions, device: torch.device) -> PairExplanation:
    """Both maps of the pairs `chosen` (P,2), `batch_size` pairs at a time on `device`.

    ds/dh = c J' v is the same vector at every position, with v = ds/de by autograd on the embeddings alone: see
    `embedding_form` for c and J' v. A method of kind "pair" (VDSN) reads both activations and no gradient.
    """
    maps = PairMaps(chosen, options, device)
    entry = methods.find(options.method)
    for places in torch.split(torch.arange(len(chosen)), options.batch_size):
        sides = [_part(side, numbers, device) for side, numbers in zip((x, y), chosen[places].T, strict=True)]
        e = [at_least_float32(side.embeddings)[at] for side, at in sides]
        values, vectors = maps.score(places, e[0], e[1])
        given: tuple[Tensor | None, Tensor | None] = (None, None)
        if entry.kind == "pair":
            with without_grad_or_autocast(values):
                h = [at_least_float32(side.activations)[at] for side, at in sides]
                given = (entry.fn(h[0], h[1]), entry.fn(h[1], h[0]))
        for number, (side, at) in enumerate(sides):
            block = side.about["block"]
            maps.add(
                number,
                places,
                activations={block: side.activations},
                gradients={block: gradient_of(side, at, vectors[number])},
                values=values,
                index=at,
                size=side.size,
                given=given[number],
            )
    return maps.explanation(zip(x.pictures, x.frames, strict=True), zip(y.pictures, y.frames, strict=True))


def gradient_of(side: Gallery, at: list[int], v: Tensor) -> Tensor:
    """The gradients (R,C,h,w) of R scores by the block of images `at`, from those by their embeddings, v (R,D)."""
    with without_grad_or_autocast(v):
        e = at_least_float32(side.embeddings)[at]
        gradient = at_least_float32(side.scales)[at][:, None] * block_gradient(side.law, v, e)
    return gradient[:, :, None, None].expand(-1, -1, *side.activations.shape[2:])


def _part(side: Gallery, numbers: Tensor, device: torch.device) -> tuple[Gallery, list[int]]:
    """The images among `numbers` (R,), each once, on `device`; and which of them each number is."""
    own, at = torch.unique(numbers, return_inverse=True)
    return side[own].to(device), at.tolist()
