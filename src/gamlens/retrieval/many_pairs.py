"""Pairs by the thousand: every image is looked at once, however many pairs it is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gamlens import methods
from gamlens.errors import GamlensError
from gamlens.explanation import PairExplanation
from gamlens.inputs.images import Picture, pictures
from gamlens.retrieval import by_backward as through
from gamlens.retrieval import by_formula as remembered
from gamlens.retrieval.collect import Ask
from gamlens.retrieval.embedding_form import OTHER
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.remember import Eye, Glance, gathered, glances, plainly, remember
from gamlens.retrieval.select import choose


@plainly
def compare_many(
    eye: Eye, queries: Any, gallery: Any, ask: Ask, *, top: int | None, pairs: Sequence[tuple[int, int]] | None
) -> PairExplanation:
    """Both maps of every chosen pair, written down where that is possible, else through the network."""
    if ask.batch < 1:
        raise GamlensError(f"batch_size={ask.batch}: give at least 1.")
    if top is not None and pairs is not None:
        raise GamlensError("Give top= or pairs=, not both.")
    x, y = _images(eye, queries), _images(eye, gallery)
    held: list[Glance] = []
    if ask.depth == 1:
        alone = methods.find(ask.method).kind == "pair"
        if not isinstance(x, Gallery):
            held = list(glances(eye, x, 1, ask.batch))
            x = gathered(eye, held)
        if not isinstance(y, Gallery) and (alone or x.law != OTHER):
            y = remember(eye, y, batch_size=ask.batch)
        if isinstance(y, Gallery) and (alone or OTHER not in (x.law, y.law)):
            ends = (x.embeddings.to(eye.device), y.embeddings.to(eye.device))
            chosen = choose((len(x), len(y)), ends, ask.score, top, pairs)
            return remembered.explain(x, y, chosen, ask, eye.device)
    if top is not None and not isinstance(y, Gallery):
        y = remember(eye, y, batch_size=ask.batch)
    return through.explain(eye, x, y, ask, held=held, top=top, pairs=pairs)


def _images(eye: Eye, images: Any) -> Gallery | list[Picture]:
    if not isinstance(images, Gallery):
        return list(pictures(images))
    images.check(eye.key())
    return images
