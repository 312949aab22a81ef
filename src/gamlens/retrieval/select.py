"""Which pairs are explained, their scores, and the gradients of these by the embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens import scores
from gamlens.capture.device import finite_score as check_score
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.fuse import at_least_float32, without_grad_or_autocast

Score = str | scores.PairScore


def choose(
    counts: tuple[int, int],
    embeddings: tuple[Tensor, Tensor] | None,
    score: Score,
    top: int | None,
    pairs: Sequence[tuple[int, int]] | None,
) -> Tensor:
    """The pairs (P,2), query and image: all, the ones asked for, or the `top` best of each query, best first."""
    if top is not None and pairs is not None:
        raise GamlensError("Give top= or pairs=, not both.")
    if pairs is not None:
        return _asked(pairs, counts)
    if top is None:
        return torch.cartesian_prod(torch.arange(counts[0]), torch.arange(counts[1])).reshape(-1, 2)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1 or embeddings is None:
        raise GamlensError(f"top={top!r}: give the number of images wanted for each query, at least 1.")
    ex, ey = at_least_float32(embeddings[0]), at_least_float32(embeddings[1])
    check_lengths(score, (ex, ey))
    fn = scores.find_pair_score(score) if isinstance(score, str) else score
    best = []
    with without_grad_or_autocast(ex):
        for query, own in enumerate(ex):
            value = fn(own.expand_as(ey), ey)
            check_score(value, len(ey))
            near = value.topk(min(top, len(ey))).indices.cpu()
            best.append(torch.stack([torch.full_like(near, query), near], dim=1))
    return torch.cat(best)


def _asked(pairs: Sequence[tuple[int, int]], counts: tuple[int, int]) -> Tensor:
    try:
        found = torch.as_tensor(pairs).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise GamlensError(f"pairs= is a list of (query, image) numbers; found {pairs!r:.80}.") from error
    if found.ndim != 2 or found.shape[1] != 2 or found.is_floating_point() or not len(found):
        raise GamlensError(f"pairs= is a list of (query, image) numbers; found {pairs!r:.80}.")
    if bool((found < 0).any() | (found >= torch.tensor(counts)).any()):
        raise GamlensError(f"pairs= names an image that is not there: {counts[0]} queries and {counts[1]} images.")
    return found.long()


def check_lengths(score: Score, embeddings: tuple[Tensor, Tensor]) -> None:
    """The cosine of an embedding of length zero is an error that names the image."""
    for name, side in zip(("queries", "gallery"), embeddings, strict=True):
        empty = (side == 0).all(dim=1)
        if score == "cosine" and bool(empty.any()):
            raise GamlensError(
                f"The embedding of {name}[{int(empty.nonzero()[0, 0])}] is all zeros, so its cosine is undefined: use "
                "score='dot', or choose another embedding= layer."
            )


def slopes(score: Score, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Scores (P,), their gradients by x and y (P,D), and where a cosine is at its maximum, which has none (Eq. 5)."""
    fn = scores.find_pair_score(score) if isinstance(score, str) else score
    with without_grad_or_autocast(x), torch.inference_mode(False), torch.enable_grad():
        own, other = (at_least_float32(side.detach()).clone().requires_grad_() for side in (x, y))
        value = fn(own, other)
        check_score(value, len(x))
        gx, gy = torch.autograd.grad(value.sum(), (own, other))
    value = value.detach()
    same = value >= 1 - 16 * torch.finfo(value.dtype).eps if score == "cosine" else torch.zeros_like(value).bool()
    gx, gy = (torch.where(same[:, None], 0, gradient) for gradient in (gx, gy))
    return value, (gx, gy), same


def warn_same(same: Tensor) -> None:
    if bool(same.any()):
        rows = same.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, rows[:12])) + (f" and {len(rows) - 12} more" if len(rows) > 12 else "")
        warnings.warn(
            f"Pair {shown}: both embeddings point the same way, so the cosine is at its maximum and has no gradient; "
            "the maps are empty. Use score='dot' to see what the images share.",
            GamlensWarning,
            stacklevel=6,
        )
