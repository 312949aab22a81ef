"""Pairs whose gradients need the network: every image is run once, and gone through backwards once a pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens.capture import backward as turns
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.fuse import at_least_float32
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.collect import Ask, Sink
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.remember import Eye, Glance, glances
from gamlens.retrieval.select import check_lengths, choose, slopes, warn_same
from gamlens.trace import Trace

Images = Gallery | list[Picture]
Shown = dict[int, tuple[Picture, Frame]]


def explain(
    eye: Eye,
    x: Images,
    y: Images,
    ask: Ask,
    *,
    held: Sequence[Glance],
    top: int | None,
    pairs: Sequence[tuple[int, int]] | None,
) -> PairExplanation:
    """The queries are held with their graphs while the gallery goes by, `batch` images at a time."""
    own, others = (list(side.pictures) if isinstance(side, Gallery) else side for side in (x, y))
    held = held or list(glances(eye, own, ask.depth, ask.batch))
    ex = torch.cat([at_least_float32(glance.embeddings.detach()) for glance in held])
    known = (ex, y.embeddings.to(ex.device)) if isinstance(y, Gallery) else None
    chosen = choose((len(own), len(others)), known, ask.score, top, pairs)
    ey, wanted = ex.new_zeros(len(others), ex.shape[1]), torch.unique(chosen[:, 1])
    passing = glances(eye, [others[number] for number in wanted.tolist()], ask.depth, ask.batch)
    sinks = (Sink(len(chosen), ask), Sink(len(chosen), ask))
    shown: tuple[Shown, Shown] = ({}, {})
    for numbers, glance in zip(torch.split(wanted, ask.batch), passing, strict=True):
        ey[numbers.to(ey.device)] = at_least_float32(glance.embeddings.detach())
        _backward(sinks[1], glance, numbers, chosen, 1, (ex, ey))
        shown[1].update(_shown(glance, numbers))
    for numbers, glance in zip(torch.split(torch.arange(len(own)), ask.batch), held, strict=True):
        _backward(sinks[0], glance, numbers, chosen, 0, (ex, ey))
        shown[0].update(_shown(glance, numbers))
    warn_same(torch.cat(sinks[0].same)[torch.cat(sinks[0].places).argsort().to(ex.device)])
    left, right = (
        _explanation(sinks[side], chosen[:, side], items, shown[side]) for side, items in enumerate((own, others))
    )
    return PairExplanation(left, right, left.scores)


def _backward(
    sink: Sink, glance: Glance, numbers: Tensor, chosen: Tensor, side: int, embeddings: tuple[Tensor, Tensor]
) -> None:
    """Every chosen pair of the images `numbers`, which `glance` holds: as many at a time as make a batch."""
    local = {number: place for place, number in enumerate(numbers.tolist())}
    times = [0] * len(local)
    rows: list[tuple[int, int, int]] = []
    for pair, number in enumerate(chosen[:, side].tolist()):
        if number in local:
            rows.append((pair, local[number], times[local[number]]))
            times[local[number]] += 1
    step = max(1, sink.ask.batch // len(local))
    for first in range(0, max(times), step):
        part = torch.tensor([row for row in rows if first <= row[2] < first + step])
        places, images, turn = part[:, 0], part[:, 1], part[:, 2] - first
        ends = [e[chosen[places, number].to(e.device)] for number, e in enumerate(embeddings)]
        check_lengths(sink.ask.score, (ends[0], ends[1]))
        value, vectors, same = slopes(sink.ask.score, ends[0], ends[1])
        sink.same.append(same)
        v = vectors[side].new_zeros(int(turn.max()) + 1, len(local), vectors[side].shape[1])
        at = (turn.to(v.device), images.to(v.device))
        v[at] = vectors[side]
        found = turns.batched_gradients(glance.embeddings, v, glance.tail, keep_graph=True, most=sink.ask.batch)
        gradients = {name: gradient[at] for name, gradient in found.items()}
        none = torch.full((len(places),), NO_CLASS, device=v.device)
        activations, index = glance.tail.activations(), tuple(images.tolist())
        sink.put(places, Trace(activations, gradients, value, none, index, glance.size, sink.ask.about))


def _shown(glance: Glance, numbers: Tensor) -> Shown:
    return dict(zip(numbers.tolist(), zip(glance.pictures, glance.frames, strict=True), strict=True))


def _explanation(sink: Sink, index: Tensor, items: Sequence[Picture], shown: Shown) -> Explanation:
    """An image that is in no pair was not looked at: it keeps its place, in any frame."""
    any_frame = next(iter(shown.values()))[1]
    seen = [shown.get(number, (picture, any_frame)) for number, picture in enumerate(items)]
    return sink.explanation(index, [picture for picture, _ in seen], [frame for _, frame in seen])
