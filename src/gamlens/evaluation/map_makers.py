"""Make the maps of every method and explainer of a protocol for a batch of items.

Our own methods that read blocks share one trace: one forward per image serves all of them, every n, and the maps with
and without views and refinement. Every other explainer is a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gamlens import methods, scores
from gamlens.data import Sample
from gamlens.errors import GamlensError
from gamlens.evaluation.explainer_cost import peak_bytes, timed
from gamlens.evaluation.explainers.explainer import BoundExplainer, Explainer
from gamlens.evaluation.map_rows import MapRow
from gamlens.evaluation.masked import as_model_takes
from gamlens.evaluation.protocol import Protocol
from gamlens.fuse import Fusion
from gamlens.inputs.batch import PLAIN_VIEW, ModelInput, normalise_on, part
from gamlens.lens import Lens
from gamlens.refine import SHARP_VIEWS, Refinement
from gamlens.trace import Trace

MapKey = tuple[str, int, str]  # the name, n, and how the blocks are joined; controls have n = 0
OWN_LAYERS = 1  # what an explainer that chooses its layers itself has in place of n


@dataclass
class MadeMaps:
    """The maps of N items, and what came with them.

    Attributes:
        maps: For each key the maps of every image of the items: one (N,H,W), or two for pairs.
        outputs: What the model says about every whole image: class scores (N,K), or embeddings (N,D).
        traces: The traces of every image, which refine the controls; () without methods of ours.
        seconds: The time of each key per item; none if it was not measured.
        peak_bytes: The memory of each key, (N,): NaN for items for which it was not measured.
    """

    maps: dict[MapKey, tuple[Tensor, ...]]
    outputs: tuple[Tensor, ...]
    traces: tuple[Trace, ...] = ()
    seconds: dict[MapKey, float] = field(default_factory=dict)
    peak_bytes: dict[MapKey, Tensor] = field(default_factory=dict)


class RowMaker:
    """Makes the maps of a protocol with one lens."""

    def __init__(self, lens: Lens, protocol: Protocol) -> None:
        self.lens, self.protocol = lens, protocol
        self.scorer = lens.compiled() if protocol.compiled else lens  # runs masked images
        self.rows = {row.name: row for row in (MapRow.parse(method).resolved() for method in protocol.methods)}
        for row in self.rows.values():
            row.check(protocol.task)
        self._bound: dict[str, BoundExplainer] = {}
        for name, row in self.rows.items():
            if isinstance(row.explainer, Explainer):
                self._bound[name] = row.explainer.bind(lens)

    @property
    def of_pairs(self) -> bool:
        return self.protocol.task != "classification"

    @property
    def refines(self) -> Refinement | None:
        """How the maps of some method are refined; None if none is."""
        own = any("refine" in row.variant for row in self.rows.values())
        return Refinement() if own else self.protocol.refinement

    def keys(self) -> Iterator[tuple[MapKey, MapRow, Fusion]]:
        """Every set of maps that is made, with the fusion that it takes."""
        fusions = self.protocol.fusions or ("mean",)
        for row in self.rows.values():
            if not row.reads_blocks:
                yield (row.name, OWN_LAYERS, fusions[0]), row, "mean"  # there is one map, and nothing to fuse
                continue
            own = (self.protocol.variant_n,) if row.variant and self.protocol.variant_n else self.protocol.n
            for n in own:
                for how in fusions:
                    yield (row.name, n, how), row, self.protocol.fusion(how, n)

    def make(
        self, sides: Sequence[ModelInput], labels: Sequence[int], samples: Sequence[Sequence[Sample]], *, costed: bool
    ) -> MadeMaps:
        """Make the maps of a batch.

        Args:
            sides: The prepared images: one batch, or x and y of pairs.
            labels: The class of each item; not used for pairs.
            samples: The images of each side in the data set.
            costed: Whether time and memory are measured of methods that otherwise share a trace.
        """
        made = self._traced(sides, labels)
        for key, row, how in self.keys():
            if isinstance(row.explainer, Explainer) and row.explainer.by_name is not None:
                made.maps[key] = self._given(row.explainer, sides, samples)
                continue
            if costed:  # before the time is taken, so that what a package does only once is not timed
                made.peak_bytes[key] = self._peak(row, key, how, sides, labels)
            if not row.reads_blocks:
                made.maps[key], taken = timed(self._call(row, key, how, sides, labels), self.lens.device)
                if self.protocol.cost:
                    made.seconds[key] = taken / len(labels)
            elif costed:
                call = self._call(row, key, how, sides, labels)
                made.seconds[key] = timed(call, self.lens.device)[1] / len(labels)
        order = [key for key, _, _ in self.keys()]
        made.maps = {key: made.maps[key] for key in order}
        return made

    def again(self, inputs: Sequence[Tensor], labels: Sequence[int], keys: Sequence[MapKey]) -> dict[MapKey, Any]:
        """The maps of other inputs (N,C,H,W) for some of the keys, those that can be made anew: {key: maps}.

        Maps that another program wrote cannot.
        """
        found: dict[MapKey, Any] = {}
        for key, row, how in self.keys():
            if key in keys and not self._is_given(row):
                found[key] = self._call(row, key, how, inputs, labels)()
        return found

    def all_again(self, sides: Sequence[ModelInput], labels: Sequence[int]) -> dict[MapKey, Any]:
        """The maps of other prepared images for all keys that can be made anew; those of blocks share a trace."""
        traced = any(row.reads_blocks for row in self.rows.values())
        found: dict[MapKey, Any] = dict(self._traced(sides, labels).maps) if traced else {}
        for key, row, how in self.keys():
            if not row.reads_blocks and not self._is_given(row):
                found[key] = self._call(row, key, how, sides, labels)()
        return found

    def _given(
        self, explainer: Explainer, sides: Sequence[ModelInput], samples: Sequence[Sequence[Sample]]
    ) -> tuple[Tensor, ...]:
        """The maps that another program wrote, one per image, which is why an image must have one class."""
        assert explainer.by_name is not None
        several = [one.name for own in samples for one in own if len(one.labels) > 1]
        if several and not self.of_pairs:
            raise GamlensError(
                f"{several[0]} has several classes, and {explainer.name!r} has one map per image: measure maps from "
                "files on data with one class per image."
            )
        both = zip(sides, samples, strict=True)
        return tuple(explainer.by_name(self.lens, own, side.frames) for side, own in both)

    @staticmethod
    def _is_given(row: MapRow) -> bool:
        return isinstance(row.explainer, Explainer) and row.explainer.by_name is not None

    def _traced(self, sides: Sequence[ModelInput], labels: Sequence[int]) -> MadeMaps:
        """The maps of all methods that read blocks, from one trace; without such methods, the model's outputs alone."""
        names = list(dict.fromkeys(row.method for row in self.rows.values() if row.reads_blocks))
        if not names:
            whole = self.lens.embed if self.of_pairs else self.lens.outputs
            return MadeMaps({}, tuple(whole(plain(side)) for side in sides))
        options: dict[str, Any] = {"n": max(self.protocol.n), "method": names, "refine": self.refines}
        pair, traces = None, tuple[Trace, ...]()
        if self.of_pairs:
            pair = self.lens.trace_pair(*sides, **options)
            traces = pair.sides(self.protocol.task, keep=False)
            pair.release()
            outputs: tuple[Tensor, ...] = tuple(embedding.detach() for embedding in pair.embeddings)
        else:
            trace = self.lens.trace(sides[0], list(labels), keep_graph=False, **options)
            assert trace.output is not None
            traces, outputs = (trace,), (trace.output,)
        made = MadeMaps({}, outputs, tuple(replace(trace, views=()) for trace in traces))
        for key, row, how in self.keys():
            if not row.reads_blocks:
                continue
            first = (row.name, 1, (self.protocol.fusions or ("mean",))[0])
            if key[1] == 1 and first in made.maps:  # at n = 1 all fusions are the same
                made.maps[key] = made.maps[first]
                continue
            refine = self._refinement(row)
            if pair is not None and methods.find(row.method).kind == "pair":
                both = pair.explain(
                    row.method, key[1], how, score=self.protocol.task, lattice=self.protocol.lattice, refine=refine
                )
                made.maps[key] = (both.x.maps, both.y.maps)
                continue
            several = "views" in row.variant or bool(self.protocol.views)
            used = traces if several else made.traces
            made.maps[key] = tuple(
                trace.explain(row.method, key[1], how, lattice=self.protocol.lattice, refine=refine).maps
                for trace in used
            )
        return made

    def _refinement(self, row: MapRow) -> Refinement | None:
        return Refinement() if "refine" in row.variant else self.protocol.refinement

    def _call(
        self, row: MapRow, key: MapKey, how: Fusion, inputs: Sequence[ModelInput | Tensor], labels: Sequence[int]
    ) -> Callable[[], tuple[Tensor, ...]]:
        """A function that makes the maps of one key alone, as a user would call it."""
        if row.name in self._bound:
            batches = [as_model_takes(self.lens, one if isinstance(one, Tensor) else one.batches[0]) for one in inputs]
            bound = self._bound[row.name]
            if self.of_pairs:
                assert bound.compare is not None
                rule, compare = scores.find_pair_score(self.protocol.task).fn, bound.compare
                return lambda: compare(batches[0], batches[1], rule)
            assert bound.classify is not None
            targets, classify = torch.tensor(labels, device=self.lens.device), bound.classify
            return lambda: (classify(batches[0], targets),)
        views = SHARP_VIEWS if "views" in row.variant else self.protocol.views
        seen = [one if isinstance(one, Tensor) or views else plain(one) for one in inputs]
        # On the device already, as the batches of other explainers are: the copy is not a part of what a map takes.
        seen = [one if isinstance(one, Tensor) else normalise_on(one, self.lens.device) for one in seen]
        several = views if all(isinstance(one, Tensor) for one in seen) else ()
        options: dict[str, Any] = {
            "method": row.method, "n": key[1], "fuse": how, "refine": self._refinement(row), "views": several,
            "lattice": self.protocol.lattice,
        }  # fmt: skip
        if not row.reads_blocks:
            options |= {"n": OWN_LAYERS, "refine": False}
        if not self.of_pairs:
            return lambda: (self.lens.classify(seen[0], list(labels), **options).maps,)

        def compare_both() -> tuple[Tensor, ...]:
            found = self.lens.compare(seen[0], seen[1], score=self.protocol.task, **options)
            return found.x.maps, found.y.maps

        return compare_both

    def _peak(
        self, row: MapRow, key: MapKey, how: Fusion, sides: Sequence[ModelInput], labels: Sequence[int]
    ) -> Tensor:
        """The memory of one key per item, (N,). On a CPU it is measured for the first item alone."""
        found = torch.full((len(labels),), torch.nan, dtype=torch.float64)
        if self.lens.device.type == "cuda":
            call = self._call(row, key, how, sides, labels)
            found[:] = peak_bytes(call, self.lens.device) / len(labels)
        else:
            first = self._call(row, key, how, [part(side, 0) for side in sides], labels[:1])
            found[0] = peak_bytes(first, self.lens.device)
        return found


def plain(side: ModelInput) -> ModelInput:
    """The same images in their plain view alone."""
    return replace(side, batches=side.batches[:1], mirrored=side.mirrored[:1], views=PLAIN_VIEW)
