"""Where the maps of many pairs are gathered, in the order of the pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.explanation import NO_CLASS, Explanation
from gamlens.fuse import Fusion
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.remember import Depth
from gamlens.trace import Provenance, Trace


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked of every pair, and how many are worked on at a time."""

    score: str | scores.PairScore
    method: str
    n: int
    fuse: Fusion
    batch: int
    origin: Provenance

    @property
    def depth(self) -> Depth:
        entry = methods.find(self.method)
        return entry if entry.kind == "input" else 1 if entry.kind == "pair" else self.n

    @property
    def about(self) -> Provenance:
        name = self.score if isinstance(self.score, str) else getattr(self.score, "__name__", "score")
        return replace(self.origin, about={**self.origin.about, "score": name})


@dataclass(eq=False)
class Sink:
    """One side of `count` pairs. Maps are made a part at a time and put in their places."""

    count: int
    ask: Ask
    whole: Explanation | None = None
    same: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)

    def put(self, places: Tensor, rows: Trace, *, given: Tensor | None = None) -> None:
        """Explain rows that belong to the pairs `places`."""
        part = rows.explain(self.ask.method, 1 if given is not None else self.ask.n, self.ask.fuse, given=given)
        if self.whole is None:
            self.whole = self._empty(part)
        whole = self.whole
        self.places.append(places)
        at = places.to(part.maps.device)
        whole.scores[at], whole.maps[at] = part.scores, part.maps
        if len(part.blocks) > 1:
            for name, maps in part.blocks.items():
                whole.blocks[name][at] = maps

    def _empty(self, part: Explanation) -> Explanation:
        """Room for all pairs; the map of a single block is the map itself, and is kept once."""
        maps = part.maps.new_empty(self.count, *part.maps.shape[1:])
        alone = len(part.blocks) == 1
        return replace(
            part,
            maps=maps,
            blocks={name: maps if alone else torch.empty_like(maps) for name in part.blocks},
            scores=part.scores.new_empty(self.count),
            targets=part.targets.new_full((self.count,), NO_CLASS),
        )

    def explanation(self, index: Tensor, pictures: Iterable[Picture], frames: Iterable[Frame]) -> Explanation:
        """All of it; index (P,) says which picture a row is of."""
        assert self.whole is not None
        index = index.to(self.whole.maps.device)
        return replace(self.whole, index=index, pictures=tuple(pictures), frames=tuple(frames))
