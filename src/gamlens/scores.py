"""The number that is explained: a class's logit or probability, or the similarity of two embeddings."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gamlens.capture.nonblocking import HOST
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


def find_pair_score(score: str | PairScore) -> PairScore:
    """The pair score of that name; a callable is itself."""
    return PAIR_SCORES[score] if isinstance(score, str) else score


def score_name(score: str | Callable[..., Tensor]) -> str:
    """The name that is recorded with a result: that of the score, or of the user's function."""
    return score if isinstance(score, str) else getattr(score, "__name__", "score")


def saturated(score: str | PairScore, values: Tensor) -> Tensor:
    """Which pair scores (P,) are at their maximum, so that they have no gradient: (P,) of bool.

    Only the cosine has a maximum. At s = 1 both embeddings point the same way, f_y / |f_y| = f_x / |f_x|, and Eq. 5,
    f_y / (|f_x| |f_y|) - s f_x / |f_x|^2, is zero. What a backward computes there is rounding, which a normalised map
    would show as if it meant something.
    """
    if score != "cosine":
        return torch.zeros_like(values, dtype=torch.bool)
    return values >= 1 - 16 * torch.finfo(values.dtype).eps


def without_saturated(gradient: Tensor, mask: Tensor) -> Tensor:
    """Gradients (kP, ...) of P scores, zero where the mask (P,) is set. k = 2 where both images are in one batch."""
    rows = mask.repeat(len(gradient) // len(mask))
    return torch.where(rows.view(-1, *[1] * (gradient.ndim - 1)), 0, gradient)


def saturated_message(mask: Tensor, *, most: int = 12) -> str:
    """The warning that names the pairs of a mask (P,), the first few of them."""
    rows = mask.nonzero()[:, 0].tolist()
    shown = ", ".join(map(str, rows[:most])) + (f" and {len(rows) - most} more" if len(rows) > most else "")
    return (
        f"Pair {shown}: both embeddings point the same way, so the cosine is at its maximum and has no gradient; the "
        "maps are empty. Use score='dot' to see what the images share."
    )


def probabilities(outputs: Tensor, *, multi_label: bool = False) -> Tensor:
    """(B,K) -> (B,K) in float32, for people to read."""
    return sigmoid(outputs.float()) if multi_label else torch.softmax(outputs.float(), dim=1)
