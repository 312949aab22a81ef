"""Which pairs are explained, their scores, and the gradients of these scores with respect to the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens import scores
from gamlens.capture.device import Checks, finite_score
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32, without_grad_or_autocast


def select_pairs(
    counts: tuple[int, int],
    embeddings: tuple[Tensor, Tensor] | None,
    score: str | scores.PairScore,
    top: int | None,
    pairs: Sequence[tuple[int, int]] | None,
) -> Tensor:
    """The pairs (P,2) of query and image numbers: those given, the `top` most similar ones of each query, or all."""
    if pairs is not None:
        return _given(pairs, counts)
    if top is not None and embeddings is not None:
        return most_similar(score, *embeddings, top)
    return torch.cartesian_prod(torch.arange(counts[0]), torch.arange(counts[1])).reshape(-1, 2)


def most_similar(score: str | scores.PairScore, queries: Tensor, images: Tensor, top: int) -> Tensor:
    """The `top` images (N,D) of highest score for each query (Q,D), best first: pairs (P,2), query by query."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise GamlensError(f"top={top!r}: give the number of images wanted for each query, at least 1.")
    ex, ey = at_least_float32(queries), at_least_float32(images)
    for side, embeddings in enumerate((ex, ey)):
        _check_lengths(score, side, embeddings, torch.arange(len(embeddings)))
    fn = scores.find_pair_score(score)
    best = []
    with without_grad_or_autocast(ex):
        for query, own in enumerate(ex):
            value = fn(own.expand_as(ey), ey)
            Checks().ask(finite_score(value, len(ey)), value.device)
            near = value.topk(min(top, len(ey))).indices.cpu()
            best.append(torch.stack([torch.full_like(near, query), near], dim=1))
    return torch.cat(best)


def score_gradients(
    score: str | scores.PairScore, x: Tensor, y: Tensor, chosen: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """The scores (P,) of embeddings x and y (P,D), their gradients (P,D) by x and by y, and which are saturated (P,).

    A saturated score is at its maximum, and its gradients are zero. `chosen` (P,2) numbers the images, for errors.
    """
    for side, embeddings in enumerate((x, y)):
        _check_lengths(score, side, embeddings, chosen[:, side])
    fn = scores.find_pair_score(score)
    with without_grad_or_autocast(x), torch.inference_mode(False), torch.enable_grad():
        own, other = (at_least_float32(side.detach()).clone().requires_grad_() for side in (x, y))
        value = fn(own, other)
        Checks().ask(finite_score(value, len(x)), value.device)
        gx, gy = torch.autograd.grad(value.sum(), (own, other))
    value = value.detach()
    saturated = scores.saturated(score, value)
    return value, (scores.without_saturated(gx, saturated), scores.without_saturated(gy, saturated)), saturated


def _given(pairs: Sequence[tuple[int, int]], counts: tuple[int, int]) -> Tensor:
    wrong = GamlensError(f"pairs= is a list of (query, image) numbers; found {pairs!r:.80}.")
    try:
        found = torch.as_tensor(pairs).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong from error
    if found.ndim != 2 or found.shape[1] != 2 or found.is_floating_point() or not len(found):
        raise wrong
    if bool((found < 0).any() | (found >= torch.tensor(counts)).any()):
        raise GamlensError(f"pairs= names an image that is not there: {counts[0]} queries and {counts[1]} images.")
    return found.long()


def _check_lengths(score: str | scores.PairScore, side: int, embeddings: Tensor, numbers: Tensor) -> None:
    """The cosine of an embedding of length zero is an error that names the image by its number."""
    empty = (embeddings == 0).all(dim=1)
    if score == "cosine" and bool(empty.any()):
        number = int(numbers[int(empty.nonzero()[0, 0])])
        raise GamlensError(
            f"The embedding of {('queries', 'gallery')[side]}[{number}] is all zeros, so its cosine is undefined: use "
            "score='dot', or choose another embedding= layer."
        )
