"""PairMaps: the maps of many pairs, computed part by part and stored in the order of the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gamlens import scores
from gamlens.errors import warn
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.fuse import Fusion
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.select import score_gradients
from gamlens.trace import Provenance, Trace


@dataclass(frozen=True, eq=False)
class PairOptions:
    """How every pair is explained, how many pairs are worked on at a time, and what is recorded with the result."""

    score: str | scores.PairScore
    method: str
    n: int
    fuse: Fusion
    batch_size: int
    provenance: Provenance


class PairMaps:
    """Both maps of the P pairs `chosen` (P,2). Only one batch of activations and gradients is held at a time."""

    def __init__(self, chosen: Tensor, options: PairOptions, device: torch.device) -> None:
        self.chosen, self.options = chosen, options
        self.saturated = torch.zeros(len(chosen), dtype=torch.bool, device=device)
        self._sides: dict[int, Explanation] = {}

    def score(self, places: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The scores (R,) of the pairs `places` with embeddings x and y (R,D), and their gradients by x and y."""
        values, gradients, saturated = score_gradients(self.options.score, x, y, self.chosen[places])
        self.saturated[places.to(self.saturated.device)] = saturated.to(self.saturated.device)
        return values, gradients

    def add(
        self,
        side: int,
        places: Tensor,
        *,
        activations: dict[str, Tensor],
        gradients: dict[str, Tensor],
        values: Tensor,
        index: Sequence[int],
        size: tuple[int, int],
        given: Tensor | None = None,
    ) -> None:
        """Compute and store the maps of one side (0: x, 1: y) of the pairs `places` (R,).

        activations {block: (B,C,h,w)}, gradients {block: (R,C,h,w)}; `index` (R,) says which of the B images a row is
        of. `given` (R,h,w) are raw maps that are known already.
        """
        options = self.options
        trace = Trace(
            activations=activations,
            gradients=gradients,
            scores=values,
            targets=torch.full((len(values),), NO_CLASS, device=values.device),
            image_of_row=tuple(index),
            provenance=replace(options.provenance, size=size),
        )
        part = (
            trace.explain(options.method, options.n, options.fuse)
            if given is None
            else trace.explain_raw(options.method, given)
        )
        if side not in self._sides:
            self._sides[side] = _empty(part, len(self.chosen))
        whole = self._sides[side]
        at = places.to(part.maps.device)
        whole.scores[at], whole.maps[at] = part.scores, part.maps
        if len(part.blocks) > 1:
            for name, maps in part.blocks.items():
                whole.blocks[name][at] = maps

    def explanation(self, x: Iterable[tuple[Picture, Frame]], y: Iterable[tuple[Picture, Frame]]) -> PairExplanation:
        """All pairs, given every image of x and of y. Warns of pairs whose cosine is at its maximum."""
        if bool(self.saturated.any()):
            warn(scores.saturated_message(self.saturated))
        left, right = (
            replace(
                self._sides[side],
                index=self.chosen[:, side].to(self._sides[side].maps.device),
                pictures=tuple(picture for picture, _ in images),
                frames=tuple(frame for _, frame in images),
            )
            for side, images in enumerate((list(x), list(y)))
        )
        return PairExplanation(left, right, left.scores)


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
    )
