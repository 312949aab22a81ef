"""From one batch to what waits for its question: classes, captions, a score of the user's own, a pair."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gamlens import scores
from gamlens.capture import forward as capture
from gamlens.capture.forward import ForwardRecord
from gamlens.explanation import NO_CLASS
from gamlens.maps import at_least_float32
from gamlens.models import pick
from gamlens.models.hooked import HookedModel, Reach
from gamlens.pairs import text as captions
from gamlens.rows import Provenance, Rows, check_score
from gamlens.trace import Aim, PairTrace

WHOLE = slice(None)


def at_classes(
    sight: HookedModel, batch: Tensor, n: Reach, score: str, origin: Provenance, *, multi_label: bool
) -> Aim:
    """One forward, ready to be asked for classes."""
    rule = scores.find_class_score(score, multi_label=multi_label)
    tail = sight.forward(batch, n)
    output = sight.class_scores(tail, len(batch))
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(output.device.type, enabled=False):
        values = rule(at_least_float32(output))
    return Aim(tail, output.detach(), values, size_of(batch), origin, score, multi_label)


def at_texts(sight: HookedModel, batch: Tensor, n: Reach, texts: Tensor, origin: Provenance) -> Aim:
    """One forward, ready to be asked for captions, whose embeddings are `texts` (T,D)."""
    tail = sight.forward(batch, n, embedding=True)
    images, _ = sight.embeddings((tail,), (WHOLE, WHOLE), len(batch))
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        values = captions.cosines(at_least_float32(images), texts, sight.embedding)
    return Aim(tail, values.detach(), values, size_of(batch), origin, "cosine", False)


def at_score(sight: HookedModel, batch: Tensor, n: Reach, score: scores.OutputScore, origin: Provenance) -> Rows:
    """One forward and backward of a score that is a function of the model's output."""
    tail = sight.forward(batch, n)
    with torch.inference_mode(False), torch.enable_grad():
        value = score(tail.output if sight.output is None else pick(tail.output, sight.output))
    waiting = tail.checks + check_score(value, len(batch))
    (gradients,) = capture.gradients(value, [tail], keep_graph=False)
    none = torch.full((len(batch),), NO_CLASS, device=value.device)
    return Rows(
        tail.activations(),
        gradients,
        value.detach(),
        none,
        tuple(range(len(batch))),
        size_of(batch),
        origin,
        checks=waiting,
        compiled=tail.compiled,
    )


def at_pairs(
    sight: HookedModel, x: Tensor, y: Tensor, pairs: int, n: Reach, origins: tuple[Provenance, Provenance]
) -> PairTrace:
    """One look at both sides: one forward, or two where their sizes differ."""
    batches = [side if len(side) == pairs else side.repeat(pairs, 1, 1, 1) for side in (x, y)]
    if batches[0].shape == batches[1].shape:
        tails: tuple[ForwardRecord, ...] = (sight.forward(torch.cat(batches), n, embedding=True),)
        embeddings = sight.embeddings(tails, (slice(pairs), slice(pairs, None)), 2 * pairs)
    else:
        tails = tuple(sight.forward(batch, n, embedding=True) for batch in batches)
        embeddings = sight.embeddings(tails, (WHOLE, WHOLE), pairs)
    return PairTrace(tails, embeddings, origins, (size_of(batches[0]), size_of(batches[1])))


def named(origin: Provenance, score: str) -> Provenance:
    """The same, made by this score."""
    return replace(origin, about={**origin.about, "score": score})


def size_of(batch: Tensor) -> tuple[int, int]:
    return int(batch.shape[2]), int(batch.shape[3])
