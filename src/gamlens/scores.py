"""The number that is explained: a class's logit or probability, or the similarity of two embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gamlens.capture import checks
from gamlens.errors import GamlensError, near

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
        if checks.at_once(norm) and bool((norm == 0).any()):
            row = int((norm == 0).nonzero()[0, 0])
            raise GamlensError(
                f"The embedding of {name}[{row}] is all zeros, so its cosine is undefined: "
                "use score='dot', or choose another embedding= layer."
            )
    return (x * y).sum(dim=1) / (norms[0] * norms[1])


CLASS_SCORES: dict[str, ClassScore] = {
    "logit": logit,
    "probability": softmax,
    "softmax": softmax,
    "sigmoid": sigmoid,
}
PAIR_SCORES: dict[str, PairScore] = {"cosine": cosine, "dot": dot}


def find_class_score(name: str, *, multi_label: bool = False) -> ClassScore:
    """The class score of that name; "probability" is the sigmoid for a multi-label model."""
    if name not in CLASS_SCORES:
        raise GamlensError(f"There is no class score {name!r}: {near(str(name), CLASS_SCORES)} Or give a callable.")
    return sigmoid if multi_label and name == "probability" else CLASS_SCORES[name]


def find_pair_score(name: str) -> PairScore:
    """The pair score of that name."""
    if name not in PAIR_SCORES:
        raise GamlensError(f"There is no pair score {name!r}: {near(str(name), PAIR_SCORES)} Or give a callable.")
    return PAIR_SCORES[name]


def probabilities(outputs: Tensor, *, multi_label: bool = False) -> Tensor:
    """(B,K) -> (B,K) in float32, for people to read."""
    return sigmoid(outputs.float()) if multi_label else torch.softmax(outputs.float(), dim=1)
