"""Choose which of many pairs are explained, and compute their scores and the gradients of these.

The gradients here are those with respect to the embeddings; `many_pairs` takes them on to the blocks.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.nonblocking import Checks, finite_score
from gamlens.errors import GamlensError
from gamlens.fuse import Fusion, at_least_float32, without_autocast
from gamlens.refine import Refine

SIDE_NAMES = ("queries", "gallery")


@dataclass(frozen=True, eq=False)
class PairOptions:
    """Which pairs are explained (those of `pairs`, the `top` images of each query, or all), how, and in which batches.

    The fields are the options of `Lens.compare_many`.
    """

    score: str | scores.PairScoreFunction
    method: str
    n: int
    fuse: Fusion
    lattice: str
    refine: Refine
    top: int | None
    pairs: Sequence[tuple[int, int]] | None
    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise GamlensError(f"batch_size={self.batch_size}: give at least 1.")
        if self.top is not None and self.pairs is not None:
            raise GamlensError("Give top= or pairs=, not both.")

    @property
    def blocks(self) -> int:
        """How many of the last blocks are read: n, or 1 if the method is not of kind "block" and makes a single map."""
        return self.n if methods.find(self.method).kind == "block" else 1


def select_pairs(options: PairOptions, x: Sized, y: Sized, known: tuple[Tensor, Tensor] | None) -> Tensor:
    """The chosen pairs (P,2) of numbers in x and y. `top` needs the embeddings (Q,D) and (N,D) of both."""
    if options.pairs is not None:
        return _given(options.pairs, (len(x), len(y)))
    if options.top is not None and known is not None:
        return most_similar(options.score, *known, options.top)
    return torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(y))).reshape(-1, 2)


def most_similar(score: str | scores.PairScoreFunction, queries: Tensor, images: Tensor, top: int) -> Tensor:
    """The `top` images (N,D) of highest score for each query (Q,D), best first: pairs (P,2), query by query."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise GamlensError(f"top={top!r}: give the number of images wanted for each query, at least 1.")
    ex, ey = at_least_float32(queries), at_least_float32(images)
    entry = scores.find_pair_score(score)
    for side, embeddings in zip(SIDE_NAMES, (ex, ey), strict=True):
        entry.require_defined(embeddings, side, range(len(embeddings)))
    best = []
    with torch.no_grad(), without_autocast(ex):
        for query, own in enumerate(ex):
            value = entry.fn(own.expand_as(ey), ey)
            Checks().with_check(finite_score(value, len(ey)), value.device)
            near = value.topk(min(top, len(ey))).indices.cpu()
            best.append(torch.stack([torch.full_like(near, query), near], dim=1))
    return torch.cat(best)


def pair_scores(score: str | scores.PairScoreFunction, x: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    """The scores (P,) of embeddings x and y (P,D), in their graph if there is one.

    `chosen` (P,2) holds the numbers of the images in both lists, for error messages.
    """
    entry = scores.find_pair_score(score)
    for side, embeddings, numbers in zip(SIDE_NAMES, (x, y), chosen.T, strict=True):
        entry.require_defined(at_least_float32(embeddings), side, numbers)
    with without_autocast(x):
        value = entry.fn(at_least_float32(x), at_least_float32(y))
        Checks().with_check(finite_score(value, len(x)), value.device)
    return value


def score_gradients(
    score: str | scores.PairScoreFunction, x: Tensor, y: Tensor, chosen: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Compute the scores of embeddings x and y, (P,D) each, and their gradients with respect to both.

    Only the score itself is differentiated here, without the network: the embeddings are the leaves of the graph.
    Where a score is saturated (`PairScore.saturated`) both gradients are set to zero. `chosen` (P,2) holds the numbers
    of the images in both lists, for error messages.

    Returns:
        The scores (P,); the gradients with respect to x and to y, (P,D) each; and which scores are saturated, (P,).
    """
    entry = scores.find_pair_score(score)
    with without_autocast(x), outside_inference_mode(), torch.enable_grad():
        own, other = (at_least_float32(side.detach()).clone().requires_grad_() for side in (x, y))
        value = pair_scores(score, own, other, chosen)
        gx, gy = torch.autograd.grad(value.sum(), (own, other))
    value = value.detach()
    saturated = entry.saturated_pairs(value, own.detach(), other.detach())
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
