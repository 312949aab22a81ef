"""Where the maps of many pairs are gathered, in the order of the pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.explanation import NO_CLASS, Explanation
from gamlens.fuse import Fusion
from gamlens.gallery.look import Depth
from gamlens.geometry import Frame
from gamlens.images import Picture
from gamlens.rows import Origin, Rows


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked of every pair, and how many are worked on at a time."""

    score: str | scores.PairScore
    method: str
    n: int
    fuse: Fusion
    batch: int
    origin: Origin

    @property
    def depth(self) -> Depth:
        entry = methods.find(self.method)
        return entry if entry.kind == "input" else 1 if entry.kind == "pair" else self.n

    @property
    def about(self) -> Origin:
        name = self.score if isinstance(self.score, str) else getattr(self.score, "__name__", "score")
        return replace(self.origin, about={**self.origin.about, "score": name})


@dataclass(eq=False)
class Sink:
    """One side of `count` pairs. Maps are made a part at a time and put in their places."""

    count: int
    ask: Ask
    parts: list[Explanation] = field(default_factory=list)
    maps: dict[str, Tensor] = field(default_factory=dict)
    scores: Tensor | None = None
    same: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)

    def put(self, places: Tensor, rows: Rows, *, given: Tensor | None = None) -> None:
        """Explain rows that belong to the pairs `places`."""
        part = rows.explain(self.ask.method, 1 if given is not None else self.ask.n, self.ask.fuse, given=given)
        at = places.to(part.maps.device)
        if self.scores is None:
            self.scores = part.scores.new_empty(self.count)
            alone = len(part.blocks) == 1
            self.maps = {name: part.maps.new_empty(self.count, *part.maps.shape[1:]) for name in ("", *part.blocks)}
            self.maps |= dict.fromkeys(part.blocks, self.maps[""]) if alone else {}
            self.parts.append(part)
        self.places.append(places)
        self.scores[at] = part.scores
        self.maps[""][at] = part.maps
        for name, maps in part.blocks.items() if len(part.blocks) > 1 else ():
            self.maps[name][at] = maps

    def explanation(self, index: Tensor, pictures: Iterable[Picture], frames: Iterable[Frame]) -> Explanation:
        """All of it; index (P,) says which picture a row is of."""
        assert self.scores is not None
        device = self.scores.device
        return replace(
            self.parts[0],
            maps=self.maps[""],
            blocks={name: maps for name, maps in self.maps.items() if name},
            scores=self.scores,
            targets=torch.full((self.count,), NO_CLASS, device=device),
            index=index.to(device),
            pictures=tuple(pictures),
            frames=tuple(frames),
        )
