"""PairMaps: the maps of many pairs, computed part by part and stored in the order of the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.capture.nonblocking import Checks, finite_score
from gamlens.errors import warn
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.retrieval.gallery import FramedPicture
from gamlens.retrieval.select import PairOptions, pair_scores, score_gradients
from gamlens.trace import Provenance, Trace

if TYPE_CHECKING:
    from gamlens.lens import Lens


class PairMaps:
    """Both maps of the P pairs `chosen` (P,2). Only one batch of activations and gradients is held at a time."""

    def __init__(self, lens: Lens, chosen: Tensor, options: PairOptions) -> None:
        self.chosen, self.options = chosen, options
        about = {**lens.about, "score": scores.score_name(options.score)}
        self._provenance = Provenance((), (), (0, 0), labels=lens.labels, aliases=lens.aliases, about=about)
        self._saturated = torch.zeros(len(chosen), dtype=torch.bool, device=lens.device)
        self._sides: dict[int, Explanation] = {}

    def score(self, places: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The scores (R,) of the pairs `places` with embeddings x and y (R,D), and their gradients by x and y.

        A method that needs no gradient gets none.
        """
        score, chosen = self.options.score, self.chosen[places]
        if not methods.find(self.options.method).needs_gradient:
            return pair_scores(score, x, y, chosen), None
        values, gradients, saturated = score_gradients(score, x, y, chosen)
        self._saturated[places.to(self._saturated.device)] = saturated.to(self._saturated.device)
        return values, gradients

    def add(
        self,
        side: int,
        places: Tensor,
        index: Sequence[int],
        size: tuple[int, int],
        values: Tensor,
        activations: dict[str, Tensor],
        gradients: dict[str, Tensor],
        given: Tensor | None = None,
    ) -> None:
        """Compute and store the maps of one side (0: x, 1: y) of the pairs `places` (R,).

        Args:
            index: Which of the B images each row is of, (R,).
            size: The model's input (H,W).
            values: The scores (R,).
            activations: {block: (B,C,h,w)}.
            gradients: {block: (R,C,h,w)}; {} where the method needs none.
            given: Raw maps (R,h,w) that take the place of the method's.
        """
        trace = Trace(
            activations=activations,
            gradients=gradients,
            scores=values,
            targets=torch.full((len(values),), NO_CLASS, device=values.device),
            image_of_row=tuple(index),
            provenance=replace(self._provenance, size=size),
        )
        if given is None:
            part = trace.explain(self.options.method, self.options.blocks, self.options.fuse)
        else:
            part = trace.explain_raw(self.options.method, given)
        whole = self._sides.get(side) or _empty(part, len(self.chosen))
        self._sides[side] = replace(whole, checks=whole.checks + part.checks)
        at = places.to(part.maps.device)
        whole.scores[at], whole.maps[at] = part.scores, part.maps
        if len(part.blocks) > 1:
            for name, maps in part.blocks.items():
                whole.blocks[name][at] = maps

    def explanation(self, x: Iterable[FramedPicture], y: Iterable[FramedPicture]) -> PairExplanation:
        """All pairs, given every image of x and of y. Warns of pairs whose score has no gradient."""
        if bool(self._saturated.any()):
            warn(scores.find_pair_score(self.options.score).saturated_message(self._saturated))
        scored = self._sides[0].scores
        waiting = Checks().with_check(finite_score(scored, len(self.chosen)), scored.device)
        sides = []
        for side, images in enumerate((x, y)):
            pictures, frames = zip(*images, strict=True)
            index = self.chosen[:, side].to(self._sides[side].maps.device)
            checks = self._sides[side].checks + (Checks() if side else waiting)
            sides.append(replace(self._sides[side], index=index, pictures=pictures, frames=frames, checks=checks))
        return PairExplanation(sides[0], sides[1], sides[0].scores)


def _empty(part: Explanation, count: int) -> Explanation:
    """Room for `count` rows like those of `part`; the map of a single block is the fused map, and is kept once."""
    maps = part.maps.new_empty(count, *part.maps.shape[1:])
    alone = len(part.blocks) == 1
    return replace(
        part,
        maps=maps,
        blocks={name: maps if alone else torch.empty_like(maps) for name in part.blocks},
        scores=part.scores.new_empty(count),
        targets=part.targets.new_full((count,), NO_CLASS),
        checks=Checks(),
    )
