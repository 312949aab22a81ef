"""Pairs by the thousand: every image is run once, however many pairs it is in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gamlens import methods, scores
from gamlens.errors import GamlensError
from gamlens.explanation import PairExplanation
from gamlens.fuse import Fusion
from gamlens.inputs.images import Picture, pictures
from gamlens.retrieval import by_backward, by_formula
from gamlens.retrieval.embedding_form import OTHER_FORM
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.pair_maps import PairOptions
from gamlens.retrieval.remember import EmbeddedBatch, embed_batches, gather
from gamlens.retrieval.select import select_pairs
from gamlens.trace import Provenance

if TYPE_CHECKING:
    from gamlens.lens import Lens


@torch.inference_mode(False)
@torch.no_grad()
def compare_many(
    lens: Lens,
    queries: Any,
    gallery: Any,
    *,
    score: str | scores.PairScore,
    method: str,
    n: int,
    fuse: Fusion,
    top: int | None,
    pairs: Sequence[tuple[int, int]] | None,
    batch_size: int,
) -> PairExplanation:
    """Both maps of every chosen pair: by formula where the gradients can be written down, else through the network.

    The formula needs the last block only (n = 1) and an embedding of a known form on both sides. Methods of kind "pair"
    need no gradient, so they never go through the network.
    """
    kind = methods.find(method).kind
    if batch_size < 1:
        raise GamlensError(f"batch_size={batch_size}: give at least 1.")
    if top is not None and pairs is not None:
        raise GamlensError("Give top= or pairs=, not both.")
    about = {**lens.about, "score": scores.score_name(score)}
    provenance = Provenance(pictures=(), frames=(), size=(0, 0), labels=lens.labels, aliases=lens.aliases, about=about)
    options = PairOptions(score, method, n if kind == "block" else 1, fuse, batch_size, provenance)
    x, y = _images(lens, queries, gallery)
    forwards = partial(embed_batches, lens, batch_size=batch_size)
    held: list[EmbeddedBatch] = []
    if options.n == 1 and kind != "input":
        if not isinstance(x, Gallery):
            held = list(forwards(x))
            x = gather(held, lens.device)
        if not isinstance(y, Gallery) and (kind == "pair" or x.law != OTHER_FORM):
            y = gather(forwards(y), lens.device)
        if isinstance(y, Gallery) and (kind == "pair" or OTHER_FORM not in (x.law, y.law)):
            ends = (x.embeddings.to(lens.device), y.embeddings.to(lens.device))
            chosen = select_pairs((len(x), len(y)), ends, score, top, pairs)
            return by_formula.explain(x, y, chosen, options, lens.device)
    if top is not None and not isinstance(y, Gallery):
        y = gather(forwards(y), lens.device)
    return by_backward.explain(lens, x, y, options, held=held, top=top, pairs=pairs)


def _images(lens: Lens, *sides: Any) -> list[Gallery | list[Picture]]:
    """Each side as a Gallery that this lens made, or as a list of pictures. Galleries made alike are checked once."""
    checked: list[Any] = []
    found: list[Gallery | list[Picture]] = []
    for side in sides:
        if isinstance(side, Gallery) and side.about not in checked:
            side.check(lens)
            checked.append(side.about)
        found.append(side if isinstance(side, Gallery) else list(pictures(side)))
    return found
