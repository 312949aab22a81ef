"""What one forward and one short backward gave, from which every map is made without another forward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gamlens import fuse, methods, scores, targets
from gamlens.capture import checks
from gamlens.capture import device as host
from gamlens.capture import forward as capture
from gamlens.capture.checks import Check, indices_on
from gamlens.capture.forward import ForwardRecord
from gamlens.errors import GamlensError
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.maps import at_least_float32
from gamlens.pairs import correspondence as matches
from gamlens.rows import Evidence, Provenance, Rows, Sums, View, check_score, without_grad_or_autocast


@dataclass(frozen=True)
class Guess:
    """One of a model's best classes for an image."""

    index: int
    name: str
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward of B images and the gradients of R class scores.

    `explain` makes a map by any method from any of the captured blocks; `retarget` asks for other classes at the
    price of the tail's backward. `output` is the model's output (B,K).
    """

    rows: Rows
    output: Tensor | None
    score: str
    multi_label: bool
    aim: Aim | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        images = len(next(iter(self.rows.activations.values())))
        return f"<Trace of {images} images, {len(self.rows.index)} {self.score} scores: {', '.join(self.blocks)}>"

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.rows.gradients)

    @property
    def scores(self) -> Tensor:
        return self.rows.scores

    @property
    def targets(self) -> Tensor:
        return self.rows.targets

    @property
    def index(self) -> Tensor:
        return torch.tensor(self.rows.index)

    def explain(self, method: str = "gam", n: int = 2, fuse: fuse.Fusion = "mean") -> Explanation:
        """The maps of `method` over the last n blocks. No forward, no backward."""
        return self.rows.explain(method, n, fuse)

    def raw(self, method: str = "gam", block: str | None = None) -> Tensor:
        """The method's unnormalised map at a block's own size: (R,h,w). The last block by default."""
        return self.rows.raw(method, block)

    def sums(self, block: str | None = None) -> Sums:
        """Channel sums of activations and of positive and negative gradients at a block."""
        return self.rows.sums(block)

    def evidence(self, block: str | None = None) -> Evidence:
        """Grad-CAM's sum split by sign, and the pixels it hides (Eq. 4)."""
        return self.rows.evidence(block)

    def top(self, k: int = 5) -> list[list[Guess]]:
        """The k best classes of each image, best first."""
        return self.rank(k)()

    def rank(self, k: int = 5, pool: Executor | None = None) -> Callable[[], list[list[Guess]]]:
        """Start to rank; the call it gives back waits, in a thread of `pool` if there is one, for `top`."""
        if self.output is None:
            raise GamlensError("There are no classes to rank: the score of this trace is not a class score.")
        output = self.output.detach().float()
        best = output.topk(min(k, output.shape[1]), dim=1)
        chance = scores.probabilities(output, multi_label=self.multi_label).gather(1, best.indices)
        labels = self.rows.origin.labels
        arrival = host.leave([best.indices, best.values, chance], pool)

        def guesses() -> list[list[Guess]]:
            return [
                [
                    Guess(index, labels[index] if index < len(labels) else f"class {index}", score, probability)
                    for index, score, probability in zip(*image, strict=True)
                ]
                for image in zip(*(tensor.tolist() for tensor in arrival()), strict=True)
            ]

        return guesses

    def retarget(self, target: Any) -> Trace:
        """The same forward, other classes: only the tail's backward runs."""
        if self.aim is None:
            raise GamlensError("This trace was released, or its score is not a class score: trace the images again.")
        return self.aim.at(target)

    def release(self) -> Trace:
        """The same without its graph: less memory, no `retarget`."""
        return replace(self, aim=None)


@dataclass(frozen=True, eq=False)
class Aim:
    """A forward that is waiting for targets: its tail, the model's output (B,K) and the class scores (B,K) from it."""

    tail: ForwardRecord
    output: Tensor
    values: Tensor
    size: tuple[int, int]
    origin: Provenance
    score: str
    multi_label: bool
    views: tuple[tuple[Aim, bool], ...] = ()

    def at(self, target: Any, *, keep: bool = True) -> Trace:
        """A Trace of these targets in every view; without `keep` the graph is gone afterwards."""
        wanted = targets.resolve(target, self.output, self.origin.labels, self.origin.aliases)
        values = self.values.detach()
        if wanted.index != tuple(range(len(values))):
            values = values[indices_on(wanted.index, values.device)]
        chosen = values.gather(1, wanted.targets[:, None])[:, 0]
        waiting = self.tail.checks + check_score(chosen, len(wanted.index))
        gradients = targets.gradients(self.values, wanted, self.tail, keep_graph=keep)
        own = _per_image(wanted, len(self.output)) if self.views else []
        views = tuple(View(aim.at(own, keep=keep).rows, mirrored) for aim, mirrored in self.views)
        rows = Rows(
            self.tail.activations(),
            gradients,
            chosen,
            wanted.targets,
            wanted.index,
            self.size,
            self.origin,
            views,
            waiting,
            self.tail.compiled,
        )
        return Trace(rows, self.output, self.score, self.multi_label, self if keep else None)


@dataclass(eq=False)
class PairTrace:
    """One forward of P pairs (one for each side where their sizes differ): both sides' activations and embeddings.

    The score is chosen when explaining: its gradients run through the tail once and are kept.
    """

    tails: tuple[ForwardRecord, ...]
    embeddings: tuple[Tensor, Tensor]
    origins: tuple[Provenance, Provenance]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    done: dict[Any, tuple[Rows, Rows]] = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    released: bool = False
    views: tuple[tuple[PairTrace, bool], ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.tails[0].blocks)

    def __len__(self) -> int:
        return len(self.embeddings[0])

    def __repr__(self) -> str:
        return f"<PairTrace of {len(self)} pairs: {', '.join(self.blocks)}>"

    def explain(
        self, method: str = "gam", n: int = 2, fuse: fuse.Fusion = "mean", *, score: str | scores.PairScore = "cosine"
    ) -> PairExplanation:
        """Both maps of every pair by `method` over the last n blocks. No forward."""
        x, y = self.sides(score)
        if methods.find(method).kind == "pair":
            fn, last = methods.find(method).fn, self.blocks[-1]
            with without_grad_or_autocast(x.scores):
                h = [at_least_float32(side.activations[last]) for side in (x, y)]
                maps = (fn(h[0], h[1]), fn(h[1], h[0]))
            results = [side.explain(method, 1, "mean", given=raw) for side, raw in zip((x, y), maps, strict=True)]
        else:
            results = [side.explain(method, n, fuse) for side in (x, y)]
        return PairExplanation(results[0], results[1], results[0].scores)

    def sides(self, score: str | scores.PairScore = "cosine", *, keep: bool = True) -> tuple[Rows, Rows]:
        """Activations and gradients of x and of y under a score: `.raw()`, `.sums()`, `.evidence()` of either."""
        with self.lock:
            if score not in self.done:
                if self.released:
                    raise GamlensError("This trace was released: trace the pair again for another score.")
                x, y = self._backward(score, keep)
                seen = [(view.sides(score, keep=keep), mirrored) for view, mirrored in self.views]
                self.done[score] = (
                    replace(x, views=tuple(View(sides[0], mirrored) for sides, mirrored in seen)),
                    replace(y, views=tuple(View(sides[1], mirrored) for sides, mirrored in seen)),
                )
            return self.done[score]

    def matches(
        self, point: tuple[float, float], *, side: matches.PairSide = "x", score: str = "cosine", pair: int = 0
    ) -> matches.Matches:
        """What matches a point of one image in the other: the score's own parts at the last block. No forward.

        `point`: (x, y) in original pixels of the image `side`. An error where the embedding is not the pooled block.
        """
        if side not in ("x", "y"):
            raise GamlensError(f"side= is 'x' or 'y', not {side!r}.")
        here, there = (0, 1) if side == "x" else (1, 0)
        with without_grad_or_autocast(self.embeddings[0]):
            h = [at_least_float32(self._activations(number)[self.blocks[-1]][pair]) for number in (here, there)]
            e = [at_least_float32(self.embeddings[number][pair].detach()) for number in (here, there)]
            eps = torch.finfo(self.embeddings[0].dtype).eps
            share = matches.factor((h[0], h[1]), (e[0], e[1]), score, eps=eps)
            cells = (h[0].shape[1], h[0].shape[2])
            cell = matches.cell_of(point, self.origins[here].frames[pair], cells)
            value = float(scores.find_pair_score(score)(e[0][None], e[1][None])[0])
            other = self.origins[there]
            return matches.Matches(
                *(matches.parts(h[0], h[1], cell, share), value, side, cell, cells),
                *(self.sizes[there], other.pictures[pair], other.frames[pair]),
            )

    def release(self) -> PairTrace:
        """Let the graph go: scores explained so far stay, others need a new trace."""
        with self.lock:
            self.released = True
            self.tails = tuple(
                replace(tail, output=None, blocks={name: h.detach() for name, h in tail.blocks.items()}, embedding=None)
                for tail in self.tails
            )
            self.embeddings = (self.embeddings[0].detach(), self.embeddings[1].detach())
        for view, _ in self.views:
            view.release()
        return self

    def _backward(self, score: str | scores.PairScore, keep: bool) -> tuple[Rows, Rows]:
        name, fn = scores.score_name(score), scores.find_pair_score(score)
        pairs = len(self)
        with without_grad_or_autocast(self.embeddings[0]), torch.inference_mode(False), torch.enable_grad():
            value = fn(*(at_least_float32(side) for side in self.embeddings))
        waiting = sum((tail.checks for tail in self.tails), ()) + check_score(value, pairs)
        found = capture.gradients(value, self.tails, keep_graph=keep)
        if score == "cosine":
            same = scores.saturated(score, value.detach())
            found = [{name: scores.without_saturated(g, same) for name, g in part.items()} for part in found]
            say = partial(scores.saturated_message, same)
            waiting += checks.make([Check(same.any, same, say, fatal=False)], stacklevel=5)
        sides = []
        for side, (origin, size) in enumerate(zip(self.origins, self.sizes, strict=True)):
            number, part = self._place(side)
            sides.append(
                Rows(
                    self._activations(side),
                    {block: gradient[part] for block, gradient in found[number].items()},
                    value.detach(),
                    torch.full((pairs,), NO_CLASS, device=value.device),
                    tuple(range(pairs)),
                    size,
                    replace(origin, about={**origin.about, "score": name}),
                    checks=() if side else waiting,
                    compiled=self.tails[number].compiled,
                )
            )
        return sides[0], sides[1]

    def _place(self, side: int) -> tuple[int, slice]:
        """Which tail holds x (0) or y (1), and which rows of it."""
        pairs = len(self)
        return (side, slice(None)) if len(self.tails) == 2 else (0, slice(side * pairs, (side + 1) * pairs))

    def _activations(self, side: int) -> dict[str, Tensor]:
        number, part = self._place(side)
        return {block: h[part] for block, h in self.tails[number].activations().items()}


def _per_image(wanted: targets.Wanted, images: int) -> list[list[int]]:
    """Resolved targets as they are given: a list of classes an image."""
    chosen: list[list[int]] = [[] for _ in range(images)]
    for image, target in zip(wanted.index, wanted.targets.tolist(), strict=True):
        chosen[image].append(target)
    return chosen
