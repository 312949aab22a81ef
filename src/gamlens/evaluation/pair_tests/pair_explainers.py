"""The maps of every explainer for one pair of images, and the time that each takes.

One trace per pair serves all methods that read blocks, and the interactions. The time of such a method is that of the
traced forward, of the backward where the method reads gradients, and of its own maps: what it would take alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gamlens import fuse, metrics, scores
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.evaluation.explainer_cost import timed
from gamlens.evaluation.explainers.explainer import BoundExplainer, Explainer
from gamlens.evaluation.map_rows import MapRow
from gamlens.evaluation.masked import IMAGES_AT_ONCE_ON_GPU, as_model_takes
from gamlens.evaluation.pair_tests.occlusion import drop_map, occluded, windows
from gamlens.evaluation.pair_tests.pair_plan import PairPlan
from gamlens.evaluation.row_titles import method_title, row_title
from gamlens.fuse import at_least_float32
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.methods import BLOCK_DEFAULT, METHODS
from gamlens.pairs.embedding_parts import AUTO_BASELINE, AVERAGE
from gamlens.pairs.interactions import Interactions, PairSide
from gamlens.pairs.pair_trace import PairTrace
from gamlens.refine import Refinement

OCCLUSION, INTERACTIONS, SPECIAL_INTERACTIONS = "occlusion", "interactions", "interactions_average"
OWN_TITLES = {
    OCCLUSION: "Occlusion", INTERACTIONS: "Interactions", SPECIAL_INTERACTIONS: "Interactions (average)",
}  # fmt: skip
BASELINE_OF_ROW = {INTERACTIONS: AUTO_BASELINE, SPECIAL_INTERACTIONS: AVERAGE}
IMAGES_AT_ONCE_ON_CPU = 4  # images per forward on a CPU: larger batches do not fit its caches and take longer per image
PAIR_CONTROLS = ("ones", "centre", "random")  # of CONTROLS; a blank map has no mass to compare
PAIR_SIDES: tuple[PairSide, PairSide] = ("x", "y")
T = TypeVar("T")
MapPair = tuple[Tensor, Tensor]  # of x and of y, (H,W) each on the CPU


@dataclass(frozen=True)
class PairRow:
    """One row of a table: an explainer.

    Attributes:
        name: What it is called on the command line.
        n: The number of blocks; 0 for explainers that do not choose one.
        control: Whether it is a map without a model.
        maps: How its maps are made; None for occlusion, interactions and controls.
    """

    name: str
    n: int = 0
    control: bool = False
    maps: MapRow | None = None

    @property
    def key(self) -> str:
        """Its name in the rows of a run."""
        return f"{self.name}@{self.n}" if self.n else self.name

    @property
    def needs_gradient(self) -> bool:
        return self.maps is not None and bool(self.maps.method) and METHODS[self.maps.method].needs_gradient


def title_of_row(row: PairRow, *, several: bool) -> str:
    """The name that people read; with its n if there are `several` numbers of blocks."""
    if row.name in OWN_TITLES:
        return OWN_TITLES[row.name]
    return row_title(row.name, row.n) if several and row.n else method_title(row.name)


def pair_rows(plan: PairPlan) -> list[PairRow]:
    """The rows of a plan: explainers in their order, each for every n that it has, and then the controls."""
    found: list[PairRow] = []
    for name in plan.methods:
        if name in OWN_TITLES:
            found.append(PairRow(name))
            continue
        row = MapRow.parse(name)
        row.check(plan.task)
        if "views" in row.variant:
            raise GamlensError(f"{name!r}: the tests of pairs show images in their plain view alone: leave +views out.")
        counted = row.reads_blocks and METHODS[row.method].kind != "pair"
        found += [PairRow(row.name, n if counted else 0, maps=row) for n in (plan.n if counted else plan.n[:1])]
    return [*found, *(PairRow(name, control=True) for name in PAIR_CONTROLS)]


@dataclass(eq=False)
class ExplainedPair:
    """The maps of one pair, and what came with them.

    Attributes:
        maps: The maps of x and y by the row's key, in [0,1].
        embeddings: The embeddings of x and of y, (1,D) each.
        seconds: The time of each row that has a model.
        forward: The time of a plain forward of both images.
        interactions: The interactions of the pair by the row's key, where they are explained.
        hidden: The embeddings of x and of y behind every window of the occlusion, (M,D) each.
    """

    embeddings: MapPair
    maps: dict[str, MapPair] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    forward: float = 0.0
    interactions: dict[str, Interactions] = field(default_factory=dict)
    hidden: tuple[Tensor, ...] = ()


class PairExplainers:
    """Explains pairs by every row of a plan, with one lens."""

    def __init__(self, lens: Lens, plan: PairPlan) -> None:
        if not isinstance(lens.transform, Transform):
            raise GamlensError(
                "The tests of pairs cut and mask images: they must know the model's size, mean and std. Give the Lens "
                "a gamlens.Transform."
            )
        self.lens, self.plan, self.rows = lens, plan, pair_rows(plan)
        self.transform: Transform = lens.transform
        self.score = scores.find_pair_score(plan.task).fn
        self.at_once = IMAGES_AT_ONCE_ON_GPU if lens.device.type == "cuda" else IMAGES_AT_ONCE_ON_CPU
        self.windows = windows(self.transform.size, window=plan.window, stride=plan.stride)
        mean, std = (torch.tensor(values) for values in (self.transform.mean, self.transform.std))
        self.fill = torch.zeros_like(mean) if plan.fill == "mean" else -mean / std
        self.bound: dict[str, BoundExplainer] = {}
        self.sources: dict[str, str] = {}  # what makes the maps of explainers that are not ours
        for row in self.rows:
            explainer = row.maps.resolved().explainer if row.maps is not None else None
            if isinstance(explainer, Explainer):
                if not explainer.pairs or explainer.by_name is not None:
                    raise GamlensError(f"The explainer {row.name!r} does not explain new pairs: leave it out.")
                self.bound[row.name], self.sources[row.name] = explainer.bind(lens), explainer.source

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """The explained score of embeddings (P,D), (P,D) -> (P,), on the CPU."""
        return self.score(at_least_float32(x).cpu(), at_least_float32(y).cpu())

    def embed(self, images: Tensor) -> Tensor:
        """The embeddings (M,D) of images (M,C,H,W), in batches."""
        parts = [self.run(part) for part in torch.split(images, self.at_once)]
        return torch.cat([at_least_float32(part).cpu() for part in parts])

    def run(self, batch: Tensor) -> Tensor:
        """The embeddings of one batch, on the device."""
        # On CPUs convolutions are up to twice as fast where the channels of a pixel lie together.
        return self.lens.embed(batch.contiguous(memory_format=torch.channels_last))

    def explain(self, x: Tensor, y: Tensor, names: tuple[str, str]) -> ExplainedPair:
        """Make the maps of images x and y, (C,H,W) each, by all rows; `names` seed the random control."""
        both = torch.stack([x, y])
        whole, seconds = self._timed(lambda: self.embed(both))
        found = ExplainedPair((whole[:1], whole[1:]), forward=seconds)
        self._explain_blocks(found, x, y)
        for row in self.rows:
            if row.name == OCCLUSION:
                found.hidden, taken = self._timed(lambda: tuple(self._behind_windows(image) for image in (x, y)))
                sides = [self._drop_map(found, side, found.embeddings[1 - side]) for side in (0, 1)]
                found.maps[row.key], found.seconds[row.key] = (sides[0], sides[1]), seconds + taken
            elif row.control:
                found.maps[row.key] = self._control(row.name, names)
            elif row.maps is not None and not row.maps.reads_blocks:
                found.maps[row.key], found.seconds[row.key] = self._explain_alone(row, x, y)
        found.maps = {row.key: found.maps[row.key] for row in self.rows}
        return found

    def with_partner(self, first: ExplainedPair, x: Tensor, z: Tensor, names: tuple[str, str]) -> dict[str, Tensor]:
        """The maps of x by all rows, (H,W) each, when its partner is z; `first` explains x with another partner."""
        found = ExplainedPair(first.embeddings)
        self._explain_blocks(found, x, z)
        for row in self.rows:
            if row.name == OCCLUSION:
                other = self.embed(z[None])
                found.embeddings, found.hidden = (first.embeddings[0], other), first.hidden
                found.maps[row.key] = (self._drop_map(found, 0, other),) * 2
            elif row.control:
                found.maps[row.key] = self._control(row.name, names)
            elif row.maps is not None and not row.maps.reads_blocks:
                found.maps[row.key], _ = self._explain_alone(row, x, z)
        return {row.key: found.maps[row.key][0] for row in self.rows}

    def _explain_blocks(self, found: ExplainedPair, x: Tensor, y: Tensor) -> None:
        """Add the maps of all methods that read blocks, and the interactions, from one trace."""
        rows = [row for row in self.rows if row.maps is not None and row.maps.reads_blocks]
        linked = [row for row in self.rows if row.name in BASELINE_OF_ROW]
        if not rows and not linked:
            return
        with warnings.catch_warnings(action="ignore", category=GamlensWarning):  # a flat map is a result here
            self._explain_traced(found, rows, linked, x, y)

    def _explain_traced(
        self, found: ExplainedPair, rows: Sequence[PairRow], linked: Sequence[PairRow], x: Tensor, y: Tensor
    ) -> None:
        names = list(dict.fromkeys([row.maps.method for row in rows if row.maps] + [BLOCK_DEFAULT] * bool(linked)))
        refined = any("refine" in row.maps.variant for row in rows if row.maps)
        trace, forward = self._timed(
            lambda: self.lens.trace_pair(
                x[None], y[None], n=max(self.plan.n), method=names, refine=Refinement() if refined else False
            )
        )
        backward = 0.0
        if any(row.needs_gradient for row in rows):
            _, backward = self._timed(lambda: trace.sides(self.plan.task))
        for row in rows:
            found.maps[row.key], own = self._timed(partial(self._maps_of, trace, row))
            found.seconds[row.key] = forward + own + (backward if row.needs_gradient else 0.0)
        for row in linked:
            linking, own = self._timed(partial(self._interactions, trace, BASELINE_OF_ROW[row.name]))
            found.maps[row.key], found.interactions[row.key] = self._interaction_maps(linking), linking
            found.seconds[row.key] = forward + own
        trace.release()

    def _maps_of(self, trace: PairTrace, row: PairRow) -> MapPair:
        assert row.maps is not None
        refine = Refinement() if "refine" in row.maps.variant else False
        made = trace.explain(row.maps.method, row.n or 1, score=self.plan.task, refine=refine)
        return made.x.maps[0].cpu(), made.y.maps[0].cpu()

    def _interactions(self, trace: PairTrace, baseline: str) -> Interactions:
        """The interactions of the pair, of every position by itself where that costs nothing.

        Cells of several positions may lie across the border of two objects.
        """
        found = trace.interactions(score=self.plan.task, baseline=baseline)
        return trace.interactions(score=self.plan.task, baseline=baseline, cells=None) if found.exact else found

    def _interaction_maps(self, interactions: Interactions) -> MapPair:
        """What each position adds to the score where it raises it, at the input's size."""
        raw = [interactions.map(side, positive=True)[None].float().cpu() for side in PAIR_SIDES]
        x, y = (fuse.min_max(fuse.resize(values, self.transform.size))[0][0] for values in raw)
        return x, y

    def _explain_alone(self, row: PairRow, x: Tensor, y: Tensor) -> tuple[MapPair, float]:
        """The maps of an explainer that shares no trace, and their time."""
        batches = [as_model_takes(self.lens, image[None]) for image in (x, y)]
        if row.name in self.bound:
            compare = self.bound[row.name].compare
            assert compare is not None
            made, taken = self._timed(lambda: compare(batches[0], batches[1], self.score))
            return (made[0][0].cpu(), made[1][0].cpu()), taken
        assert row.maps is not None
        method = row.maps.method
        pair, taken = self._timed(
            lambda: self.lens.compare(batches[0], batches[1], method=method, n=1, score=self.plan.task)
        )
        return (pair.x.maps[0].cpu(), pair.y.maps[0].cpu()), taken

    def _behind_windows(self, image: Tensor) -> Tensor:
        parts = torch.split(self.windows, self.at_once)
        return torch.cat([self.embed(occluded(image, part, self.fill)) for part in parts])

    def _drop_map(self, found: ExplainedPair, side: int, other: Tensor) -> Tensor:
        """The occlusion map of x (0) or y (1) with the other image whole."""
        before = self._similarity_of(side, found.embeddings[side], other)
        after = self._similarity_of(side, found.hidden[side], other.expand(len(found.hidden[side]), -1))
        return drop_map((before - after).float(), self.windows)

    def _similarity_of(self, side: int, own: Tensor, other: Tensor) -> Tensor:
        return self.similarity(own, other) if side == 0 else self.similarity(other, own)

    def _control(self, name: str, names: Sequence[str]) -> MapPair:
        made = metrics.CONTROLS[name](list(names), *self.transform.size)
        return made[0], made[1]

    def _timed(self, call: Callable[[], T]) -> tuple[T, float]:
        return timed(call, self.lens.device)
