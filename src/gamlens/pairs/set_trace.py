"""SetTrace: the result of one forward of several images, of which scores between them are explained.

Each image of a set has a number of its own that is explained: how much would the score between the images change if
this image alone changed? A relation gives these numbers. Its first argument holds the embeddings that change, one per
image, and its second the same embeddings held fixed, so that one backward gives every image its own gradient.

    contrast of x, a and b     x: s(x,a) - s(x,b)     a: s(x,a)     b: -s(x,b)
    group of k images          image i: the mean of s(i,j) over the other images j
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gamlens import fuse, scores
from gamlens.capture.forward import BY_NETWORK, ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.nonblocking import Check, finite_score
from gamlens.errors import GamlensError, readable
from gamlens.explanation import ContrastExplanation, GroupExplanation
from gamlens.fuse import at_least_float32, without_autocast
from gamlens.refine import Refine
from gamlens.trace import Provenance, Trace

Relation = Callable[[Tensor, Tensor], Tensor]  # embeddings that change (K,D), the same held fixed (K,D) -> (K,)


class Turn(NamedTuple):
    """A relation, and the numbers of those images of the set whose rows are wanted."""

    relation: Relation
    images: list[int]


@dataclass(eq=False)
class SetTrace:
    """What one forward of K images gave. Made by `Lens.trace_set`.

    Example:
        >>> several = lens.trace_set([photo, other, photo.crop((0, 0, 99, 99))])
        >>> found = several.contrast(0, 1, 2, method="gam")  # why is 0 more like 1 than like 2?
        >>> found.x.maps.shape, round(float(found.scores[0] - found.score_a[0] + found.score_b[0]), 5)
        (torch.Size([1, 224, 224]), 0.0)
        >>> several.group(method="gam").pair_scores.shape
        torch.Size([3, 3])

    Attributes:
        record: The forward of all images.
        provenance: The images, their transform, and the model, for the Explanations.
    """

    record: ForwardRecord
    provenance: Provenance
    _traces: dict[Any, Trace] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.record.required_embedding())

    @property
    def embeddings(self) -> Tensor:
        """The embeddings (K,D), outside of the graph."""
        return at_least_float32(self.record.required_embedding().detach())

    def __repr__(self) -> str:
        return f"<SetTrace of {len(self)} images: {', '.join(self.record.blocks)}>"

    def contrast(
        self,
        x: int | Sequence[int] = 0,
        a: int | Sequence[int] = 1,
        b: int | Sequence[int] = 2,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: fuse.Fusion = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sign: str | None = "both",
    ) -> ContrastExplanation:
        """Why is x more like a than like b? Explains s(x,a) - s(x,b) on all three images. No forward is run.

        Args:
            x, a, b: The numbers of the images in the set, from 0; three lists of P numbers make P contrasts.
            score: A name of PAIR_SCORES, or a callable from two sets of embeddings (P,D) to numbers (P,).
            method, n, fuse, lattice, refine, sign: As `Trace.explain` takes them. With sign="both", positive pixels
                speak for a and negative ones for b.
        """
        places = tuple(self._numbers(own) for own in (x, a, b))
        if len({len(own) for own in places}) > 1:
            raise GamlensError(f"x, a and b name {', '.join(str(len(own)) for own in places)} images: give as many.")
        entry = scores.find_pair_score(score)
        key = ("contrast", score, *places)
        first, second, third = map(list, places)
        e = self.embeddings
        flat = torch.zeros(len(self), len(self), dtype=torch.bool, device=e.device)
        with torch.no_grad(), without_autocast(e):
            score_a, score_b = entry.fn(e[first], e[second]), entry.fn(e[first], e[third])
            for value, other in ((score_a, second), (score_b, third)):
                flat[first, other] |= entry.saturated_pairs(value, e[first], e[other])
        name = f"{scores.score_name(score)} difference"
        trace = self._trace(key, _contrasts(entry, first, second, third), name, self._saturated(entry, flat))
        made = trace.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)
        sides = [made[list(range(role, len(made), 3))] for role in range(3)]
        return ContrastExplanation(
            x=sides[0],
            a=sides[1],
            b=sides[2],
            scores=score_a - score_b,
            score_a=score_a,
            score_b=score_b,
        )

    def group(
        self,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: fuse.Fusion = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sign: str | None = None,
    ) -> GroupExplanation:
        """Why are these images alike? Explains on every image its mean similarity to the others. No forward is run.

        Args:
            score: As `contrast` takes it.
            method, n, fuse, lattice, refine, sign: As `Trace.explain` takes them.
        """
        if len(self) < 2:
            raise GamlensError(f"A group has two images or more; found {len(self)}.")
        entry = scores.find_pair_score(score)
        e = self.embeddings
        with torch.no_grad(), without_autocast(e):
            pair_scores = torch.stack([entry.fn(own.expand_as(e), e) for own in e])
            rows = zip(pair_scores, e, strict=True)
            flat = torch.stack([entry.saturated_pairs(row, own.expand_as(e), e) for row, own in rows])
            flat.fill_diagonal_(False)
        name = f"mean {scores.score_name(score)}"
        everyone = Turn(partial(_group, entry), list(range(len(self))))
        trace = self._trace(("group", score), [everyone], name, self._saturated(entry, flat))
        made = trace.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)
        return GroupExplanation(images=made, pair_scores=pair_scores)

    def _numbers(self, given: int | Sequence[int]) -> tuple[int, ...]:
        try:
            several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
            found = tuple(map(operator.index, given if several else (given,)))  # type: ignore[arg-type]
        except TypeError as error:
            raise GamlensError(f"Images of a set are named by their numbers, from 0; found {given!r:.80}.") from error
        if not found:
            raise GamlensError(f"No image is named: there are {len(self)}, numbered 0 to {len(self) - 1}.")
        if bad := [number for number in found if not 0 <= number < len(self)]:
            raise GamlensError(f"There is no image {bad[0]}: there are {len(self)}, numbered 0 to {len(self) - 1}.")
        return found

    def _saturated(self, entry: scores.PairScore, mask: Tensor) -> Check:
        """The warning that some of the scores, those of a mask (K,K), have no gradient, and so no part in the maps."""
        names = [readable(picture.name) for picture in self.provenance.pictures]
        return Check(mask.any, partial(entry.saturated_in_set, names, mask), fatal=False)

    def _trace(self, key: Any, turns: Sequence[Turn], name: str, check: Check) -> Trace:
        """The Trace of some relations: one short backward each, which is kept for later calls.

        Args:
            key: What tells these relations from others.
            turns: The relations, and the images of each that get a row.
            name: What the numbers that are explained are called.
            check: A warning about these numbers.
        """
        with self._lock:
            if key not in self._traces:
                provenance = self.provenance.scored_by(name)
                # Each turn gives gradients of all images; only the wanted rows are kept until the next one.
                made = (_rows_of(self._whole_trace(turn.relation, provenance), turn.images) for turn in turns)
                joined = _joined(list(made), self.record)
                self._traces[key] = replace(joined, checks=joined.checks.with_check(check, joined.scores.device))
            return self._traces[key]

    def _whole_trace(self, relation: Relation, provenance: Provenance) -> Trace:
        """The Trace of a relation with one row per image of the set."""
        record, own = self.record, None
        with without_autocast(record.required_embedding()), outside_inference_mode():
            with torch.set_grad_enabled(record.has_graph):
                e = at_least_float32(record.required_embedding())
                value = relation(e, e.detach())
                if record.attention is not None and record.attention.own_record is not None:
                    own = self._own_values(relation, e.detach())
            return Trace.from_score(record, value, len(self), provenance, own_value=own, keep_graph=True)

    def _own_values(self, relation: Relation, fixed: Tensor) -> Tensor:
        """The numbers of every attention layer's own tokens, each with the other images as they are: (L*K,)."""
        attention = self.record.attention
        assert attention is not None
        own = at_least_float32(attention.own_record.required_embedding())
        return torch.cat([relation(part, fixed) for part in own.view(len(attention.layers), len(fixed), -1)])


def _contrasts(entry: scores.PairScore, x: list[int], a: list[int], b: list[int]) -> list[Turn]:
    """The turns of P contrasts, with a row for x, a and b of each: one turn for all, unless an image serves twice."""
    triples = list(zip(x, a, b, strict=True))
    rows = [number for triple in triples for number in triple]
    if len(set(rows)) == len(rows):
        return [Turn(partial(_contrast, entry, x, a, b), rows)]
    found = []
    for triple in triples:
        for roles in ("xab",) if len(set(triple)) == 3 else ("x", "a", "b"):
            relation = partial(_contrast, entry, [triple[0]], [triple[1]], [triple[2]], roles=roles)
            found.append(Turn(relation, [triple["xab".index(role)] for role in roles]))
    return found


def _contrast(
    entry: scores.PairScore,
    x: list[int],
    a: list[int],
    b: list[int],
    own: Tensor,
    fixed: Tensor,
    *,
    roles: str = "xab",
) -> Tensor:
    """The relation of P contrasts: (K,D), (K,D) -> (K,), zero for images that have none of the `roles`.

    Where a and b are the same for the score, the contrast is zero, and x has no gradient rather than that of rounding
    errors.
    """
    values = own.new_zeros(len(own))
    if "x" in roles:
        difference = _steady(entry, own[x], fixed[a]) - _steady(entry, own[x], fixed[b])
        same = entry.same_embeddings(fixed[a], fixed[b])
        values = values.index_add(0, _places(x, own), torch.where(same, difference.detach() * 0, difference))
    if "a" in roles:
        values = values.index_add(0, _places(a, own), _steady(entry, fixed[x], own[a]))
    if "b" in roles:
        values = values.index_add(0, _places(b, own), -_steady(entry, fixed[x], own[b]))
    return values


def _group(entry: scores.PairScore, own: Tensor, fixed: Tensor) -> Tensor:
    """The relation of a group: the mean score of each image with all others, (K,D), (K,D) -> (K,)."""
    found = []
    for number in range(len(own)):
        others = torch.cat([fixed[:number], fixed[number + 1 :]])
        found.append(_steady(entry, own[number].expand_as(others), others).mean())
    return torch.stack(found)


def _steady(entry: scores.PairScore, x: Tensor, y: Tensor) -> Tensor:
    """The scores (P,) of x and y, without a gradient where it would consist of rounding errors."""
    values = entry.fn(x, y)
    return torch.where(entry.saturated_pairs(values.detach(), x.detach(), y.detach()), values.detach(), values)


def _places(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)


def _rows_of(trace: Trace, images: list[int]) -> Trace:
    """The Trace of the named rows."""
    if images == list(trace.image_of_row):
        return trace
    return _with_rows(trace, images, lambda own: own[0][_places(images, own[0])], [trace])


def _joined(traces: Sequence[Trace], record: ForwardRecord) -> Trace:
    """One Trace with the rows of several Traces of the same forward, one after the other."""
    first = traces[0]
    if len(traces) == 1:
        return _checked(first, record)
    images = [number for trace in traces for number in trace.image_of_row]
    return _checked(_with_rows(first, images, torch.cat, traces), record)


def _with_rows(
    like: Trace, images: Sequence[int], made_of: Callable[[list[Tensor]], Tensor], traces: Sequence[Trace]
) -> Trace:
    """A Trace like another one whose rows belong to `images`; its tensors are made of those of some traces."""
    attention = like.attention
    if attention is not None:
        parts = [trace.attention.gradients for trace in traces if trace.attention is not None]
        attention = replace(
            attention,
            gradients={
                layer: {what: made_of([part[layer][what] for part in parts]) for what in tensors}
                for layer, tensors in attention.gradients.items()
            },
        )
    return replace(
        like,
        gradients={name: made_of([trace.gradients[name] for trace in traces]) for name in like.gradients},
        scores=made_of([trace.scores for trace in traces]),
        targets=made_of([trace.targets for trace in traces]),
        image_of_row=tuple(images),
        attention=attention,
    )


def _checked(trace: Trace, record: ForwardRecord) -> Trace:
    """The Trace with the checks of its forward and of its own scores."""
    values = trace.scores
    return replace(trace, checks=record.checks.with_check(finite_score(values, len(values)), values.device))
