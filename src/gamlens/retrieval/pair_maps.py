"""PairMaps: the maps of many pairs, computed part by part and stored in the order of the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.capture.nonblocking import Checks, finite_score
from gamlens.errors import warn
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.lattice import Lattice
from gamlens.retrieval.gallery import FramedPicture
from gamlens.retrieval.select import PairOptions, pair_scores, score_gradients
from gamlens.trace import Provenance, Trace

if TYPE_CHECKING:
    from gamlens.lens import Lens


class PairMaps:
    """Both maps of the P pairs `chosen` (P,2), each given by the numbers of its images in x and in y.

    Maps are added batch by batch, so that only one batch of activations and gradients is in memory at a time. Methods
    take `places` (R,), which says which pairs a batch holds: indices into `chosen`.
    """

    def __init__(self, lens: Lens, chosen: Tensor, options: PairOptions) -> None:
        self.chosen, self.options = chosen, options
        about = {**lens.about, "score": scores.score_name(options.score)}
        self._provenance = Provenance((), (), (0, 0), labels=lens.labels, aliases=lens.aliases, about=about)
        self._saturated = torch.zeros(len(chosen), dtype=torch.bool, device=lens.device)
        self._sides: dict[int, Explanation] = {}
        self._network_blocks = lens.blocks if lens.knows_blocks else ()

    def score(self, places: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Compute the scores of the pairs `places`, whose embeddings are x and y, (R,D) each.

        Returns:
            The scores (R,), and their gradients with respect to x and to y, (R,D) each; None in place of the gradients
            if the method needs none.
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
        lattices: Mapping[str, Lattice] | None = None,
        earlier: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Compute and store the maps of one side of the pairs `places`.

        Args:
            side: 0 for x, 1 for y.
            places: The pairs, (R,): indices into `chosen`.
            index: Which of the B images in `activations` each row belongs to, R numbers.
            size: The size of the model's input, (H,W).
            values: The scores (R,).
            activations: {block: (B,C,h,w)}.
            gradients: {block: (R,C,h,w)}; {} where the method needs none.
            given: Raw maps (R,h,w), if the method has computed them already, as one of kind "pair" does.
            lattices: For blocks of which only some rows and columns are read, which ones.
            earlier: {block: (B,C,h,w)}: earlier blocks, by which maps are refined.
        """
        trace = Trace(
            activations=activations,
            gradients=gradients,
            scores=values,
            targets=torch.full((len(values),), NO_CLASS, device=values.device),
            image_of_row=tuple(index),
            provenance=replace(self._provenance, size=size),
            lattices=lattices or {},
            earlier=earlier or {},
            network_blocks=self._network_blocks,
        )
        options = self.options
        if given is None:
            part = trace.explain(
                options.method, options.blocks, options.fuse, lattice=options.lattice, refine=options.refine
            )
        else:
            part = trace.explain_raw(options.method, given, refine=options.refine)
        whole = self._sides.get(side) or _empty(part, len(self.chosen))
        self._sides[side] = replace(whole, checks=whole.checks + part.checks)
        at = places.to(part.maps.device)
        whole.scores[at], whole.maps[at] = part.scores, part.maps
        for name, maps in part.blocks.items():
            if whole.blocks[name] is not whole.maps:
                whole.blocks[name][at] = maps

    def explanation(self, x: Iterable[FramedPicture], y: Iterable[FramedPicture]) -> PairExplanation:
        """Return the result, after maps of all pairs were added on both sides, and warn of saturated pairs.

        Args:
            x, y: All images of each side with their frames. The numbers in `chosen` count in these.
        """
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
    """Allocate an Explanation of `count` rows like those of `part`.

    If there is a single block, and maps are not refined, its map is the fused map, and both share one tensor.
    """
    maps = part.maps.new_empty(count, *part.maps.shape[1:])
    alone = len(part.blocks) == 1 and "refine" not in part.about
    return replace(
        part,
        maps=maps,
        blocks={name: maps if alone else torch.empty_like(maps) for name in part.blocks},
        scores=part.scores.new_empty(count),
        targets=part.targets.new_full((count,), NO_CLASS),
        checks=Checks(),
    )
