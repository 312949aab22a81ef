"""The number that is explained: a class's logit or probability, or the similarity of two embeddings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens.capture.nonblocking import HOST, Check, Checks
from gamlens.errors import GamlensError, Registry

ClassScore = Callable[[Tensor], Tensor]
PairScoreFunction = Callable[[Tensor, Tensor], Tensor]
OutputScore = Callable[[Any], Tensor]


@dataclass(frozen=True)
class PairScore:
    """An entry of PAIR_SCORES: a similarity of embeddings x and y, (P,D) each for P pairs, and its properties.

    Attributes:
        fn: x, y -> the scores (P,). The higher the score, the more alike the images.
        title: Its name in menus.
        positive: Whether images that are alike have a score above zero. Only then can a metric such as ADP say which
            share of the score is lost.
        up_to_one: Whether the score is at most 1. Only then can a metric such as average gain say which share of what
            is missing to 1 is gained.
        dot_divisor: For a score <x, y> / d(x, y), a multiple of the dot product: x, y -> d (P,). If the embeddings are
            averages over positions, such a score is a sum over pairs of positions, one of each image. None for a score
            of any other form.
        saturated: scores (P,), x, y -> for which pairs the gradient of the score is zero or does not exist, (P,) of
            bool. A backward would give rounding errors there, and a normalised map would show them as if they meant
            something. None if this cannot happen.
        saturated_because: Why these pairs have no gradient, in words: "both embeddings are ..., so ...".
        by_direction: Whether the score depends on the directions of the embeddings alone, not on their lengths.
        undefined: embeddings (P,D) -> which of them (P,) the score has no value for. None if it always has a value.
        undefined_because: Why such an embedding has no score, in words: "is ..., so ...".
        instead: The name of a score that has a gradient, or a value, in these cases.
    """

    fn: PairScoreFunction
    title: str
    positive: bool = False
    up_to_one: bool = False
    dot_divisor: Callable[[Tensor, Tensor], Tensor] | None = None
    saturated: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    saturated_because: str = ""
    by_direction: bool = False
    undefined: Callable[[Tensor], Tensor] | None = None
    undefined_because: str = ""
    instead: str = ""

    @property
    def sums_over_positions(self) -> bool:
        """Whether the score of averages over positions is a sum over pairs of positions."""
        return self.dot_divisor is not None

    def saturated_pairs(self, values: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Which of the scores (P,) of x and y have no gradient: (P,) of bool."""
        if self.saturated is None:
            return torch.zeros_like(values, dtype=torch.bool)
        return self.saturated(values, x, y)

    def same_embeddings(self, x: Tensor, y: Tensor) -> Tensor:
        """Which embeddings of x and y, (P,D) each, are the same for this score, up to rounding: (P,) of bool."""
        if self.by_direction:
            x, y = (side / torch.linalg.vector_norm(side, dim=1, keepdim=True) for side in (x, y))
        return _same_embeddings(euclidean(x, y), x, y)

    def saturated_message(self, mask: Tensor, *, most: int = 12) -> str:
        """The warning that names the pairs of a mask (P,), at most the first few of them."""
        rows = mask.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, rows[:most])) + (f" and {len(rows) - most} more" if len(rows) > most else "")
        return f"Pair {shown}: {self.saturated_because}; the maps are empty.{self._instead_of_saturated()}"

    def saturated_in_set(self, names: Sequence[str], mask: Tensor, *, most: int = 4) -> str:
        """The warning that names the pairs of images of a set whose scores have no gradient.

        Args:
            names: The names of the images, (K,).
            mask: Which pairs they are, (K,K) of bool.
            most: How many of them are named.
        """
        pairs = (mask | mask.T).triu().nonzero().tolist()
        shown = ", ".join(f"{names[one]} and {names[other]}" for one, other in pairs[:most])
        shown += f" (and {len(pairs) - most} more pairs)" if len(pairs) > most else ""
        return f"{shown}: {self.saturated_because}; the maps leave this out.{self._instead_of_saturated()}"

    def _instead_of_saturated(self) -> str:
        return f" The score {self.instead!r} shows what the images share." if self.instead else ""

    def defined(self, x: Tensor, y: Tensor) -> Check:
        """A check that every embedding of x and y (P,D) has a score. It does not wait for the device."""
        assert self.undefined is not None
        masks = tuple(self.undefined(side.detach()) for side in (x, y))
        return Check(torch.cat(masks).any, partial(self._say_undefined, masks))

    def require_defined(self, embeddings: Tensor, side: str, numbers: Sequence[int] | Tensor) -> None:
        """Raise an error if the score has no value for one of the embeddings (N,D).

        Args:
            embeddings: The embeddings, (N,D).
            side: The name of the argument that the images came from, such as "x", for the error.
            numbers: The number of each image in that argument, (N,), for the error.
        """
        if self.undefined is not None and bool((mask := self.undefined(embeddings)).any()):
            raise GamlensError(self._undefined_message(f"{side}[{int(numbers[int(mask.nonzero()[0, 0])])}]"))

    def _say_undefined(self, masks: tuple[Tensor, ...]) -> str:
        side, mask = next((side, mask) for side, mask in zip("xy", masks, strict=True) if bool(mask.any()))
        return self._undefined_message(f"{side}[{int(mask.nonzero()[0, 0])}]")

    def _undefined_message(self, image: str) -> str:
        instead = f"use score={self.instead!r}, or " if self.instead else ""
        return f"The embedding of {image} {self.undefined_because}: {instead}choose another embedding= layer."


def logit(outputs: Tensor) -> Tensor:
    """The class scores as the model gives them: (B,K) -> (B,K)."""
    return outputs


def softmax(outputs: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Probability of one class among all, softmax(outputs / temperature): (B,K) -> (B,K)."""
    return (outputs / temperature).softmax(dim=1)


def sigmoid(outputs: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Probability of each class by itself, sigmoid(outputs / temperature), for multi-label heads: (B,K) -> (B,K)."""
    return (outputs / temperature).sigmoid()


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The dot product of two embeddings: (P,D), (P,D) -> (P,)."""
    return (x * y).sum(dim=1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of two embeddings: (P,D), (P,D) -> (P,).

    An embedding of length zero has no cosine. On the CPU it is an error; on other devices the cosine is NaN, so that
    nothing waits for the device, and a PairTrace reports it later.
    """
    lengths = _product_of_lengths(x, y)
    if lengths.device.type == HOST and not bool(lengths.all()):
        Checks().with_check(PAIR_SCORES["cosine"].defined(x, y), lengths.device)
    return dot(x, y) / lengths


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """The negative Euclidean distance of two embeddings, -|x - y|: (P,D), (P,D) -> (P,).

    It is never positive. Its gradient with respect to x is (y - x) / |x - y|, a vector of length 1. Where x = y there
    is none, and the backward of vector_norm gives zeros (that of a square root would give NaN).
    """
    distance: Tensor = torch.linalg.vector_norm(x - y, dim=1)
    return 0 - distance  # not -distance, which prints a distance of zero as -0.0


def _product_of_lengths(x: Tensor, y: Tensor) -> Tensor:
    lengths: list[Tensor] = [torch.linalg.vector_norm(side, dim=1) for side in (x, y)]
    return lengths[0] * lengths[1]


def _no_length(embeddings: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(embeddings, dim=1)
    return lengths == 0


def _cosine_at_its_limits(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which cosines are 1 or -1, up to rounding: (P,) of bool.

    By Eq. 5 of the GAM paper, the gradient of the cosine s with respect to the embedding f_x is
    f_y / (|f_x| |f_y|) - s f_x / |f_x|^2. If s is 1 or -1, then f_y / |f_y| = s f_x / |f_x|, and the gradient is zero.
    """
    return values.abs() >= 1 - 16 * torch.finfo(values.dtype).eps


def _same_embeddings(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which Euclidean distances are zero, up to rounding: |x - y| <= sqrt(32 eps) max(|x|, |y|).

    For embeddings of the same length |x - y|^2 = 2 |x|^2 (1 - cosine), so this is the limit of the cosine, 1 - 16 eps.
    In float32 it is 0.2 % of the length. The same photo in two batches differs by up to 4e-6 of the length in float32,
    and by 1e-3 and more where convolutions run in TF32, PyTorch's default on a GPU. The gradient has length 1 however
    small the distance is, so the map of that rounding would look like any other.
    """
    lengths: list[Tensor] = [torch.linalg.vector_norm(side, dim=1) for side in (x, y)]
    return values.abs() <= math.sqrt(32 * torch.finfo(values.dtype).eps) * torch.maximum(*lengths)


def _one(x: Tensor, y: Tensor) -> Tensor:
    return x.new_ones(len(x))


CLASS_SCORES: dict[str, ClassScore] = Registry(
    "class score",
    {"logit": logit, "probability": softmax, "softmax": softmax, "sigmoid": sigmoid},
    hint=" In Python a function may be given, too.",
)
PROBABILITIES = (softmax, sigmoid)  # the class scores that take a temperature
PAIR_SCORES: dict[str, PairScore] = Registry(
    "pair score",
    {
        "cosine": PairScore(
            cosine,
            "Cosine",
            positive=True,
            up_to_one=True,
            dot_divisor=_product_of_lengths,
            by_direction=True,
            saturated=_cosine_at_its_limits,
            saturated_because="both embeddings point the same way or opposite ways, so the cosine is 1 or -1 and has "
            "no gradient",
            undefined=_no_length,
            undefined_because="is all zeros, so its cosine is undefined",
            instead="dot",
        ),
        "dot": PairScore(dot, "Dot", positive=True, dot_divisor=_one),
        "euclidean": PairScore(
            euclidean,
            "Euclidean",
            saturated=_same_embeddings,
            saturated_because="both embeddings are the same up to rounding, so the Euclidean distance is zero and has "
            "no gradient",
            instead="dot",
        ),
    },
    hint=" In Python a function may be given, too.",
)


def find_class_score(name: str, *, multi_label: bool = False, temperature: float = 1.0) -> ClassScore:
    """The class score of that name; "probability" is the sigmoid for a multi-label model.

    A temperature T other than 1 divides the class scores before a softmax or sigmoid; other scores do not take one.
    """
    rule = sigmoid if multi_label and name == "probability" else CLASS_SCORES[name]
    if temperature == 1:
        return rule
    check_temperature(temperature)
    if rule not in PROBABILITIES:
        known = ", ".join(key for key, value in CLASS_SCORES.items() if value in PROBABILITIES)
        raise GamlensError(
            f"temperature={temperature} changes probabilities only, and the score is {name!r}: use score {known}, or "
            "leave temperature out."
        )
    return partial(rule, temperature=temperature)


def check_temperature(temperature: float) -> None:
    """Raise a GamlensError if class scores cannot be divided by this temperature."""
    known = isinstance(temperature, int | float) and math.isfinite(temperature)
    if not known or temperature <= 0:
        raise GamlensError(
            f"temperature={temperature!r}: give a number above 0. 1 changes nothing, 2 makes probabilities less "
            "certain, 0.5 makes them more certain."
        )


def find_pair_score(score: str | PairScoreFunction) -> PairScore:
    """The PairScore of a name in PAIR_SCORES, or of a function.

    If the function belongs to an entry of PAIR_SCORES, that entry is returned. The user's own function gets a
    PairScore with default properties, since nothing is known about it.
    """
    if isinstance(score, str):
        return PAIR_SCORES[score]
    if not callable(score):
        raise GamlensError(
            f"score= is a name ({', '.join(PAIR_SCORES)}) or a function of two tensors (P,D); found {score!r:.80}."
        )
    known = (entry for entry in PAIR_SCORES.values() if entry.fn is score)
    return next(known, None) or PairScore(score, score_name(score))


def score_name(score: str | Callable[..., Tensor]) -> str:
    """The name that is recorded with a result: that of the score, or of the user's function."""
    return score if isinstance(score, str) else getattr(score, "__name__", "score")


def without_saturated(gradient: Tensor, mask: Tensor) -> Tensor:
    """Set the gradients of the scores in `mask` (P,) to zero.

    `gradient` is (P,...), or (2P,...) if one batch holds both images of each pair, x before y.
    """
    rows = mask.repeat(len(gradient) // len(mask))
    return torch.where(rows.view(-1, *[1] * (gradient.ndim - 1)), 0, gradient)


def probabilities(outputs: Tensor, *, multi_label: bool = False, temperature: float = 1.0) -> Tensor:
    """The probabilities that are shown to users: class scores (B,K) -> (B,K) in float32."""
    return (sigmoid if multi_label else softmax)(outputs.float(), temperature=temperature)
