"""The number that is explained: a class's logit or probability, or the similarity of two embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gamlens.capture.device import HOST
from gamlens.errors import GamlensError, Registry

ClassScore = Callable[[Tensor], Tensor]
PairScore = Callable[[Tensor, Tensor], Tensor]
OutputScore = Callable[[Any], Tensor]


def logit(outputs: Tensor) -> Tensor:
    """The class scores as the model gives them: (B,K) -> (B,K)."""
    return outputs


def softmax(outputs: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Probability of one class among all: (B,K) -> (B,K)."""
    return (outputs / temperature).softmax(dim=1)


def sigmoid(outputs: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Probability of each class by itself, for multi-label heads: (B,K) -> (B,K)."""
    return (outputs / temperature).sigmoid()


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The dot product of two embeddings: (B,D), (B,D) -> (B,)."""
    return (x * y).sum(dim=1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of two embeddings: (B,D), (B,D) -> (B,). An embedding of length zero has none: an error."""
    norms: list[Tensor] = [torch.linalg.vector_norm(side, dim=1) for side in (x, y)]
    for name, norm in zip("xy", norms, strict=True):
        if norm.device.type == HOST and bool((norm == 0).any()):
            row = int((norm == 0).nonzero()[0, 0])
            raise GamlensError(
                f"The embedding of {name}[{row}] is all zeros, so its cosine is undefined: "
                "use score='dot', or choose another embedding= layer."
            )
    return (x * y).sum(dim=1) / (norms[0] * norms[1])


CLASS_SCORES: dict[str, ClassScore] = Registry(
    "class score",
    {"logit": logit, "probability": softmax, "softmax": softmax, "sigmoid": sigmoid},
    hint=" Or give a callable.",
)
PAIR_SCORES: dict[str, PairScore] = Registry("pair score", {"cosine": cosine, "dot": dot}, hint=" Or give a callable.")


def find_class_score(name: str, *, multi_label: bool = False) -> ClassScore:
    """The class score of that name; "probability" is the sigmoid for a multi-label model."""
    return sigmoid if multi_label and name == "probability" else CLASS_SCORES[name]


def name_of(score: str | Callable[..., Tensor]) -> str:
    """What a score is called in a result: a callable by its own name."""
    return score if isinstance(score, str) else getattr(score, "__name__", "score")


def find_pair_score(score: str | PairScore) -> PairScore:
    """The pair score of that name; a callable is itself."""
    return PAIR_SCORES[score] if isinstance(score, str) else score


def saturated(score: str | PairScore, values: Tensor) -> Tensor | None:
    """Which pairs (P,) have a cosine at its maximum; None for another score.

    By Eq. 5 the cosine has no gradient there. What is computed as one is rounding, and must be set to zero.
    """
    return values >= 1 - 16 * torch.finfo(values.dtype).eps if score == "cosine" else None


def say_saturated(same: Tensor) -> str:
    """The warning for saturated pairs, (P,) of bool."""
    rows = same.nonzero()[:, 0].tolist()
    shown = ", ".join(map(str, rows[:12])) + (f" and {len(rows) - 12} more" if len(rows) > 12 else "")
    return (
        f"Pair {shown}: both embeddings point the same way, so the cosine is at its maximum and has no gradient; the "
        "maps are empty. Use score='dot' to see what the images share."
    )


def probabilities(outputs: Tensor, *, multi_label: bool = False) -> Tensor:
    """(B,K) -> (B,K) in float32, for people to read."""
    return sigmoid(outputs.float()) if multi_label else torch.softmax(outputs.float(), dim=1)
