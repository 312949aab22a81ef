"""Pairs of remembered images at n = 1: their gradients are written down, with neither forward nor backward."""

from __future__ import annotations

import torch
from torch import Tensor

from gamlens import methods
from gamlens.explanation import NO_CLASS, PairExplanation
from gamlens.fuse import at_least_float32, without_grad_or_autocast
from gamlens.retrieval.collect import Ask, Sink
from gamlens.retrieval.embedding_form import pull
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.select import check_lengths, slopes, warn_same
from gamlens.trace import Trace


def explain(x: Gallery, y: Gallery, chosen: Tensor, ask: Ask, device: torch.device) -> PairExplanation:
    """`batch` pairs at a time: ds/dh = c J'(ds/de) at every position (for the cosine, Eq. 5)."""
    sinks, same = (Sink(len(chosen), ask), Sink(len(chosen), ask)), []
    entry = methods.find(ask.method)
    for places in torch.split(torch.arange(len(chosen)), ask.batch):
        sides = [_part(side, numbers, device) for side, numbers in zip((x, y), chosen[places].T, strict=True)]
        e = [at_least_float32(side.embeddings)[at] for side, at in sides]
        check_lengths(ask.score, (e[0], e[1]))
        value, vectors, most = slopes(ask.score, e[0], e[1])
        same.append(most)
        given: tuple[Tensor | None, ...] = (None, None)
        if entry.kind == "pair":
            with without_grad_or_autocast(value):
                h = [at_least_float32(side.activations)[at] for side, at in sides]
                given = (entry.fn(h[0], h[1]), entry.fn(h[1], h[0]))
        for sink, (side, at), own, v, raw in zip(sinks, sides, e, vectors, given, strict=True):
            sink.put(places, _rows(side, at, value, v, own, ask), given=raw)
    warn_same(torch.cat(same))
    left, right = (
        sink.explanation(chosen[:, number], side.pictures, side.frames)
        for number, (sink, side) in enumerate(zip(sinks, (x, y), strict=True))
    )
    return PairExplanation(left, right, left.scores)


def _part(side: Gallery, numbers: Tensor, device: torch.device) -> tuple[Gallery, list[int]]:
    """The images among `numbers`, each once, on the model's device; and which of them each number is."""
    own, at = torch.unique(numbers, return_inverse=True)
    return side[own].to(device), at.tolist()


def _rows(side: Gallery, at: list[int], value: Tensor, v: Tensor, e: Tensor, ask: Ask) -> Trace:
    block = str(side.about["block"])
    with without_grad_or_autocast(value):
        g = at_least_float32(side.scales)[at][:, None] * pull(side.law, v, e)
    gradient = g[:, :, None, None].expand(-1, -1, *side.activations.shape[2:])
    none = torch.full((len(value),), NO_CLASS, device=value.device)
    return Trace({block: side.activations}, {block: gradient}, value, none, tuple(at), side.size, ask.about)
