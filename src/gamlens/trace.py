"""`Trace`: the activations and gradients of one forward and one short backward, from which every map is made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gamlens import fuse, methods, scores, targets
from gamlens.capture import attention_backward, backward
from gamlens.capture.attention_backward import AttentionTrace
from gamlens.capture.forward import BY_NETWORK, ForwardRecord, last_layers
from gamlens.capture.layer_points import PIXELS
from gamlens.capture.nonblocking import Check, Checks, finite_score, indices_on, to_host
from gamlens.errors import GamlensError
from gamlens.explanation import NO_CLASS, Explanation
from gamlens.fuse import BlockMaps, at_least_float32, without_autocast
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.lattice import Lattice, check_reading
from gamlens.methods import METHODS, Method, Reads
from gamlens.methods import names as methods_of
from gamlens.refine import Refine, Refinement, carry_on, finished, on_grid
from gamlens.targets import ResolvedTargets

LARGER_N = ", or trace with a larger n"
SHARED = ("pooled", "image")  # what is the same for every attention layer
HIDDEN_SHARE = 0.5  # a result warns if more than this share of the positive evidence is hidden


class Sums(NamedTuple):
    """Sums over the channels of a block, (R,h,w) each: of relu(h), of relu(g) and of relu(-g)."""

    activation: Tensor
    positive: Tensor
    negative: Tensor


class Evidence(NamedTuple):
    """What Grad-CAM adds up at each position of a block, split by sign (Eq. 4 of the GAM paper).

    Where h >= 0, as after a ReLU, Grad-CAM is zero at exactly the hidden positions.

    Attributes:
        positive: P, the sum over channels of positive weight, (R,h,w).
        negative: N, the sum over channels of negative weight, (R,h,w).
        hidden: Whether |N| >= P, (R,h,w) of bool.
    """

    positive: Tensor
    negative: Tensor
    hidden: Tensor

    @property
    def hidden_share(self) -> Tensor:
        """Which share of the positive evidence lies at hidden positions: (R,) in [0,1]."""
        positive = self.positive.clamp(min=0)
        return (positive * self.hidden).sum(dim=(1, 2)) / positive.sum(dim=(1, 2)).clamp(min=1e-30)


@dataclass(frozen=True)
class Guess:
    """One of a model's best classes for an image: its number, its name, its class score and its probability."""

    index: int
    name: str
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Provenance:
    """Where maps come from: what every Explanation of a Trace carries along.

    Attributes:
        pictures: The images.
        frames: Where the model's input lies in each image.
        size: The size of the model's input, (H,W).
        labels: The names of the classes.
        aliases: Other names of labels.
        multi_label: Whether the model's probabilities are sigmoids.
        about: What the maps were made by, as it is written into files: model, weights, score and so on.
    """

    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    size: tuple[int, int]
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    multi_label: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    def scored_by(self, score: str) -> Provenance:
        """The same, explained under this score."""
        return replace(self, about={**self.about, "score": score})

    def repeated(self, times: int) -> Provenance:
        """If this is one image, which is compared with `times` others, list it once per pair; otherwise return self."""
        if len(self.pictures) != 1:
            return self
        return replace(self, pictures=tuple(self.pictures) * times, frames=self.frames * times)

    def name_of(self, target: int) -> str:
        """The label of a class, or "class 3" without labels."""
        return self.labels[target] if target < len(self.labels) else f"class {target}"

    def contrasted_with(self, name: str) -> Provenance:
        """The same, where scores are differences to the score of the class `name`."""
        return replace(self, about={**self.about, "against": name})

    def of_captions(self, captions: tuple[str, ...]) -> Provenance:
        """The same with captions in place of classes."""
        return replace(self, labels=captions, aliases={}, multi_label=False)


@dataclass(frozen=True, eq=False)
class Trace:
    """What one forward of B images and one short backward of R scores gave. Made by `Lens.trace`.

    There is one row per explained score: an image with two target classes has two rows. `explain` makes maps by any
    method from the captured blocks, without another forward or backward; `retarget` asks for other classes at the price
    of a short backward; `raw`, `sums` and `evidence` show what a map is made of. A trace that was made for a method
    without a gradient has none, and explains by such methods only.

    Example:
        >>> trace = lens.trace([photo, other], [["cat", "dog"], None], n=2)
        >>> trace.index.tolist(), trace.blocks
        ([0, 0, 1], ('0', '1'))
        >>> trace.explain("gam", n=2).maps.shape, trace.raw("gam").shape
        (torch.Size([3, 224, 224]), torch.Size([3, 14, 14]))
        >>> [guess.name for guess in sorted(trace.top(2)[0], key=lambda guess: guess.index)]
        ['cat', 'dog']

    Attributes:
        activations: {block: (B,C,h,w)}, in network order.
        gradients: {block: (R,C,h,w)}, in network order; {} if the trace is for a method that needs none.
        scores: The explained scores, (R,).
        targets: The class of each row, (R,); -1 where the score is not a class score.
        image_of_row: Which image each row is of.
        provenance: The images, their transform, and the model, for the Explanation.
        output: The model's class scores (B,K), where the score is one of them.
        views: Traces of the same rows at other scales or mirrored, and whether each is mirrored. Their maps are
            averaged into this trace's own.
        checks: Tests for values that are not finite and the like, which `Explanation.check` runs.
        make_maps: `fuse.make_maps`, or a compiled version of it.
        lattices: For blocks of which the network reads only every second (or s-th) row and column, which ones.
        earlier: {block: (B,C,h,w)}: blocks before the captured ones, by whose values maps can be refined. They have no
            gradients.
        network_blocks: The names of all blocks of the network, in the order they run; () if all are captured.
        method: The method of kind "input" that the pixels were captured for. No other can be explained from them.
        attention: The attention layers of a transformer, as the methods of kind "attention" read them; None if the
            trace is for other methods.
        record: The forward with its graph, for `retarget`; None once it is released, or if there is no graph.
        values: The scores of all classes, (B,K), in that graph.
        own_values: The same for the own tokens of every attention layer, (L*B,K), where LeGrad was asked for.
    """

    activations: dict[str, Tensor]
    gradients: dict[str, Tensor]
    scores: Tensor
    targets: Tensor
    image_of_row: tuple[int, ...]
    provenance: Provenance
    output: Tensor | None = None
    views: tuple[tuple[Trace, bool], ...] = ()
    checks: Checks = field(default_factory=Checks)
    make_maps: fuse.MapMaker = fuse.make_maps
    lattices: Mapping[str, Lattice] = field(default_factory=dict)
    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    network_blocks: tuple[str, ...] = ()
    method: Method | None = None
    attention: AttentionTrace | None = None
    record: ForwardRecord | None = field(default=None, repr=False)
    values: Tensor | None = field(default=None, repr=False)
    own_values: Tensor | None = field(default=None, repr=False)

    @classmethod
    def from_record(
        cls,
        record: ForwardRecord,
        values: Tensor,
        target: Any,
        provenance: Provenance,
        *,
        output: Tensor,
        own_values: Tensor | None = None,
        keep_graph: bool = True,
    ) -> Trace:
        """Resolve which classes are explained, and run one backward for them if the record has a graph.

        Args:
            record: The forward.
            values: The scores of all classes, (B,K), in the record's graph if it has one.
            target: Which classes, as `Lens.trace` takes it.
            provenance: The images and how they were looked at.
            output: The model's class scores (B,K), by which the top class of an image is found.
            own_values: The scores of all classes for the own tokens of every attention layer, (L*B,K).
            keep_graph: Whether other classes may be asked for later.
        """
        wanted = targets.resolve(target, output, provenance.labels, provenance.aliases)
        attention = None
        if record.attention is not None:
            found = targets.attention_gradients(values, wanted, record, own_values)
            attention = AttentionTrace.of_record(record.attention, found)
        chosen, gradients = targets.target_gradients(values, wanted, record, keep_graph=keep_graph)
        keep_graph = keep_graph and record.has_graph
        return cls(
            activations=record.activations,
            gradients=gradients,
            scores=chosen,
            targets=wanted.classes,
            image_of_row=wanted.images,
            provenance=provenance,
            output=output,
            checks=record.checks.with_check(finite_score(chosen, len(wanted.images)), chosen.device),
            make_maps=record.make_maps,
            lattices=record.lattices,
            earlier=record.earlier_activations,
            network_blocks=record.network_blocks,
            method=record.method,
            attention=attention,
            record=record if keep_graph else None,
            values=values if keep_graph else None,
            own_values=own_values if keep_graph else None,
        )

    @classmethod
    def from_score(
        cls,
        record: ForwardRecord,
        value: Any,
        count: int,
        provenance: Provenance,
        *,
        own_value: Tensor | None = None,
        keep_graph: bool = False,
    ) -> Trace:
        """The Trace of a callable score: one number per image, (B,), and one backward if the record has a graph.

        `own_value` is the score of the own tokens of every attention layer, (L*B,), where LeGrad was asked for. With
        `keep_graph` other scores of the same forward can be explained later.
        """
        check = finite_score(value, count)
        attention = None
        if record.attention is not None:
            (found,) = attention_backward.gradients_of(value, [record], lambda _: own_value)
            attention = AttentionTrace.of_record(record.attention, found)
        (gradients,) = backward.gradients(value, [record], keep_graph=keep_graph)
        return cls(
            activations=record.activations,
            gradients=gradients,
            scores=value.detach(),
            targets=torch.full((count,), NO_CLASS, device=value.device),
            image_of_row=tuple(range(count)),
            provenance=provenance,
            checks=record.checks.with_check(check, value.device),
            make_maps=record.make_maps,
            lattices=record.lattices,
            earlier=record.earlier_activations,
            network_blocks=record.network_blocks,
            method=record.method,
            attention=attention,
        )

    def __repr__(self) -> str:
        captured = ", ".join((*self.blocks, *(self.attention.layers if self.attention is not None else ())))
        return f"<Trace of {self.images} images, {len(self.image_of_row)} {self.score} scores: {captured}>"

    @property
    def images(self) -> int:
        """The number of images, B."""
        return len(next(iter({**self.earlier, **self.activations}.values()), self.provenance.pictures))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The captured blocks, in the order in which they ran; () if only attention layers were captured."""
        return tuple(self.activations)

    @property
    def default_method(self) -> str:
        """The method that `explain` takes by default: that of the network, or one that this trace was made for."""
        if self.attention is None or not self.attention.has(METHODS[methods.ATTENTION_DEFAULT].reads):
            own = [
                name for name in methods_of("attention") if self.attention and self.attention.has(METHODS[name].reads)
            ]
            return methods.BLOCK_DEFAULT if self.activations or not own else own[0]
        return methods.ATTENTION_DEFAULT

    @property
    def index(self) -> Tensor:
        """Which image each row is of, (R,)."""
        return torch.tensor(self.image_of_row)

    @property
    def score(self) -> str:
        """The name of the score."""
        return str(self.provenance.about.get("score", "score"))

    @property
    def multi_label(self) -> bool:
        """Whether the model's probabilities are sigmoids."""
        return self.provenance.multi_label

    # Maps

    def explain(
        self,
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: fuse.Fusion = "mean",
        *,
        lattice: str = "read",
        refine: Refine = False,
        sign: str | None = None,
    ) -> Explanation:
        """Make the maps of a method. No forward and no backward is run.

        Args:
            method: A name of METHODS that explains single images; "auto" is `default_method`.
            n: How many of the captured blocks, or attention layers, the map is made of, counted from the last. "auto"
                is two blocks, or one where only one was captured, and all attention layers.
            fuse: How the maps of n blocks become one: "mean", "max", "product", or n weights.
            lattice: If the network reads only every second (or s-th) row and column of a block, its map is made of
                these positions ("read"), or of all, as a lattice of dots ("keep"). `lattices` says of which blocks.
            refine: Whether the map is refined by the self-similarity of earlier blocks: True, the number of these
                blocks, or a Refinement (see `gamlens.refine`). They must have been captured, by `trace(refine=...)` or
                a larger n.
            sign: None for maps as the method makes them. "positive" shows what raises the score, "negative" what
                lowers it (the method's map of the negated score), and "both" the first minus the second, in [-1,1]. The
                three are on one scale per image: `Explanation.scales` has the raw value that 1 stands for.

        Returns:
            An Explanation with one row per row of the trace: `maps` (R,H,W) in [0,1]. A method of kind "input" has one
            map, of the pixels, whatever n is.
        """
        if lattice != "read":
            check_reading(lattice)
        if sign is not None:
            return self._explain_signed(method, n, fuse, lattice, Refinement.parse(refine), sign)
        method = self.default_method if method == BY_NETWORK else method
        entry = METHODS[method]
        n, fuse = (1, "mean") if entry.kind == "input" else (n, fuse)
        names = self._layers(method, n)
        chosen = Refinement.parse(refine)
        with torch.no_grad(), without_autocast(self.scores):
            if entry.kind == "attention":
                made = self._maps_of_attention(method, names, fuse)
            elif self.views:
                made = self._maps_over_views(method, names, fuse, lattice)
            else:
                inputs, used = self._inputs(method, names), tuple[Lattice | None, ...]()
                if lattice == "read" and not self.lattices.keys().isdisjoint(names):
                    used = tuple(map(self.lattices.get, names))
                made = self.make_maps(entry.fn, inputs, self.provenance.size, fuse, used)
            made = made if chosen is None else made._replace(fused=self.refine(made.fused, chosen))
        return self._explanation(method, names, fuse, made, lattice, chosen)

    def _layers(self, method: str, n: int | str) -> tuple[str, ...]:
        """The names of the last n captured blocks, or attention layers for a method that reads these."""
        if METHODS[method].kind == "attention":
            return last_layers(self._attention(method).layers, None if n == BY_NETWORK else n, beyond=LARGER_N)
        return last_layers(tuple(self.activations) or self._no_blocks(method), n, beyond=LARGER_N)

    def _explain_signed(
        self, method: str, n: int | str, how: fuse.Fusion, lattice: str, refine: Refinement | None, sign: str
    ) -> Explanation:
        """The Explanation with a sign: maps of the score and of the negated score, on one scale per block.

        Raw maps are averaged over views and then scaled, so that the scale stays a raw value. A position of a larger
        input is a smaller part of the image: each view's values are multiplied by its number of positions, relative to
        the plain view's.
        """
        fuse.check_sign(sign)
        method = self.default_method if method == BY_NETWORK else method
        if METHODS[method].kind == "pair":
            raise _pairs_only(method)
        if not METHODS[method].has_sign:
            able = ", ".join(name for name, entry in METHODS.items() if entry.has_sign and entry.kind != "pair")
            raise GamlensError(
                f"Method {method!r} has no signed maps: it does not tell what raises the score from what lowers it. "
                f"Leave sign out, or use one of {able}; for pairs also {', '.join(methods_of('pair'))}."
            )
        names = self._layers(method, n)
        with torch.no_grad(), without_autocast(self.scores):
            parts = []  # of every block: what raises and what lowers the score, on one scale, and this scale
            sides = [self._mean_maps(method, names, lattice), self._mean_maps(method, names, lattice, negated=True)]
            for raises, lowers in zip(*sides, strict=True):
                parts.append(fuse.one_scale(raises, lowers))
            made = self._joined(parts, how, refine, sign, again=METHODS[method].kind == "attention")
        return self._explanation(method, names, how, made, lattice, refine, sign)

    def _mean_maps(self, method: str, names: Sequence[str], lattice: str, *, negated: bool = False) -> list[Tensor]:
        """The raw maps of each block, resized, and averaged over views: (R,H,W) each; one if layers are joined.

        With `negated` they are those of the negated score.
        """
        views = []
        for trace, mirrored in ((self, False), *self.views):
            view = trace.negated() if negated else trace
            views.append(view._sized_maps(method, names, self.provenance.size, mirrored, lattice))
        return [
            torch.stack([own * (positions / block[0][1]) for own, positions in block]).mean(dim=0)
            for block in zip(*views, strict=True)
        ]

    def _sized_maps(
        self, method: str, names: Sequence[str], size: tuple[int, int], mirrored: bool, lattice: str
    ) -> list[tuple[Tensor, int]]:
        """The raw map of each block in this view, resized (R,H,W), and its number of positions; one for joined layers.

        Values below zero, which a bicubic resize may give, count as zero.
        """
        if METHODS[method].kind == "attention":
            raw = self._attention_raw(method, names)
            sized = [fuse.resize(own.flip(2) if mirrored else own, size) for own in raw]
            return [(own.clamp(min=0), part[0].numel()) for own, part in zip(sized, raw, strict=True)]
        found = []
        for name in names:
            read = self._inputs(method, [name])[0][0]  # activations (R,C,h,w), or the pixels
            map_ = self._view_map(method, name, size, mirrored, lattice)
            found.append((map_.clamp(min=0), read.shape[-2] * read.shape[-1]))
        return found

    def _joined(
        self,
        parts: Sequence[tuple[Tensor, Tensor, Tensor]],
        how: fuse.Fusion,
        refine: Refinement | None,
        sign: str,
        *,
        again: bool = False,
    ) -> BlockMaps:
        """Fuse what raises the score and what lowers it over blocks, each by itself, and then apply the sign.

        Refinement brings every map to [0,1]; both maps are multiplied by the maxima that they had before it. With
        `again` the fused maps are divided once more by the larger of their maxima.
        """
        up, down = (fuse.fuse([part[place] for part in parts], how) for place in (0, 1))
        if again:
            up, down, _ = fuse.one_scale(up, down)
        if refine is not None:
            up, down = (self.refine(maps, refine) * maps.amax(dim=(1, 2), keepdim=True) for maps in (up, down))
        blocks = torch.stack([fuse.with_sign(own[0], own[1], sign) for own in parts])
        return BlockMaps(blocks, fuse.with_sign(up, down, sign), torch.stack([own[2] for own in parts]))

    def negated(self) -> Trace:
        """The Trace of the negated scores, without its graph. Its maps show what lowers the scores of this one."""
        return self._combined(torch.neg, (), None if self.attention is None else self.attention.negated())

    def minus(self, other: Trace) -> Trace:
        """The Trace of the differences between the scores of this trace and those of another, without a graph.

        Gradients are subtracted row by row: row r of both must be of the same image.
        """
        if self.image_of_row != other.image_of_row or self.gradients.keys() != other.gradients.keys():
            raise GamlensError("Only traces of the same images, rows and blocks have a difference: trace them alike.")
        attention = None
        if self.attention is not None and other.attention is not None:
            attention = self.attention.minus(other.attention)
        return self._combined(torch.sub, (other,), attention)

    def _combined(
        self, operation: Callable[..., Tensor], others: Sequence[Trace], attention: AttentionTrace | None
    ) -> Trace:
        """Apply a linear operation to scores and gradients, here and in every view."""
        views = []
        for place, (trace, mirrored) in enumerate(self.views):
            own = [other.views[place][0] for other in others]
            made = trace.minus(own[0]) if own else trace.negated()
            views.append((made, mirrored))
        return replace(
            self,
            gradients={
                name: operation(own, *(other.gradients[name] for other in others))
                for name, own in self.gradients.items()
            },
            scores=operation(self.scores, *(other.scores for other in others)),
            attention=attention,
            views=tuple(views),
            record=None,
            values=None,
            own_values=None,
        )

    def contrast(self, target: Any, against: Any) -> Trace:
        """Why this class rather than that one? The Trace of the difference of two class scores.

        Only two short backwards run, and none for classes that this trace explains already. The maps are best made with
        sign="both": positive pixels speak for `target`, negative ones for `against`.

        Args:
            target: One class per image, as `Lens.classify` takes it; None for the top class of each image.
            against: One class, by number or name, for all images.

        Returns:
            A Trace with one row per image. Names read "lion rather than cheetah".
        """
        if isinstance(against, list | tuple) or against is None:
            raise GamlensError(f"against= is one class, by number or name, for all images; found {against!r:.80}.")
        if not self.gradients and self.attention is None:
            raise _no_gradients("a contrast")
        first, second = self.retarget(target), self.retarget(against)
        if len(first.image_of_row) != first.images:
            raise GamlensError(f"A contrast explains one class per image; target={target!r:.80} names several.")
        name = second.provenance.name_of(int(second.targets[0]))
        found = first.minus(second)
        return replace(found, provenance=found.provenance.contrasted_with(name))

    def _attention(self, method: str) -> AttentionTrace:
        """The attention layers for a method of kind "attention"; an error if what it reads was not captured."""
        if self.attention is None or not self.attention.has(METHODS[method].reads):
            raise GamlensError(
                f"Method {method!r} reads the attention of a transformer, which this trace did not capture for it: "
                f"trace the images again with method={method!r}, or without method= for all methods."
            )
        return self.attention

    def _no_blocks(self, method: str) -> tuple[str, ...]:
        raise GamlensError(
            f"Method {method!r} reads blocks, and this trace captured attention layers alone: trace the images again "
            f"with method={method!r}, or without method= for all methods."
        )

    def _attention_raw(self, method: str, names: Sequence[str]) -> list[Tensor]:
        """The raw maps (R,h,w) of a method of kind "attention": one per layer, or a single one if it joins layers."""
        entry, attention = METHODS[method], self._attention(method)
        reads = [attention.read(name, entry.reads, self.image_of_row) for name in names]
        if entry.joins_layers:  # what is the same for every layer is given once
            together = zip(entry.reads, zip(*reads, strict=True), strict=True)
            reads = [tuple(own[-1] if what in SHARED else torch.stack(own) for what, own in together)]
        found = []
        for tensors in reads:
            relevance = entry.fn(*(at_least_float32(own) if own.is_floating_point() else own for own in tensors))
            found.append(attention.grid.image(relevance[:, :, None])[:, 0])
        return found

    def _maps_of_attention(self, method: str, names: Sequence[str], how: fuse.Fusion) -> BlockMaps:
        """The maps of a method of kind "attention", averaged over views, fused over layers, and normalised again."""
        seen = []
        for trace, mirrored in ((self, False), *self.views):
            raw = trace._attention_raw(method, names)
            sized = [fuse.resize(own.flip(2) if mirrored else own, self.provenance.size) for own in raw]
            seen.append(list(map(fuse.min_max, sized)))
        blocks, spans = [], []
        for views in zip(*seen, strict=True):
            blocks.append(torch.stack([maps for maps, _ in views]).mean(dim=0))
            spans.append(_spans(torch.stack([bad for _, bad in views]).all(dim=0)))
        if METHODS[method].joins_layers:  # nothing is left to fuse
            return BlockMaps(torch.stack(blocks), blocks[0], torch.stack(spans))
        # Layers peak at different places, so that the mean of many stays far below 1: it is normalised again.
        return BlockMaps(torch.stack(blocks), fuse.min_max(fuse.fuse(blocks, how))[0], torch.stack(spans))

    def explain_raw(self, method: str, raw: Tensor, *, refine: Refine = False, sign: str | None = None) -> Explanation:
        """The Explanation of raw maps (R,h,w) of the last block: made into maps like those of `explain`.

        With a sign, positive raw values are what raises the score, and negative ones what lowers it.
        """
        fuse.check_sign(sign)
        chosen, alone = Refinement.parse(refine), replace(self, views=())  # refined by this view, as the map is
        with torch.no_grad(), without_autocast(self.scores):
            if sign is not None:
                sized = [fuse.resize(part.relu(), self.provenance.size) for part in (raw, -raw)]
                made = alone._joined([fuse.one_scale(*sized)], "mean", chosen, sign)
            else:
                made = fuse.make_maps(torch.Tensor.detach, [(raw,)], self.provenance.size, "mean")
                if chosen is not None:
                    made = made._replace(fused=alone.refine(made.fused, chosen))
        return self._explanation(method, self.blocks[-1:], "mean", made, "keep", chosen, sign)

    def refining_blocks(self, refine: Refine) -> tuple[str, ...]:
        """The blocks that `explain(refine=...)` carries a map to, in this order; an error if one is missing.

        Which of the network's blocks they are follows from `refine` alone; those must have been captured.
        """
        chosen = Refinement.parse(refine)
        if chosen is None:
            return ()
        if self.method is not None:
            raise GamlensError(
                f"The maps of {self.method.title} are of pixels and cannot be refined: leave refine out."
            )
        known = {*self.earlier, *self.activations}
        names = chosen.choose(self.network_blocks or (*self.earlier, *self.activations))
        if missing := [name for name in names if name not in known]:
            raise GamlensError(
                f"refine={chosen.blocks} needs {', '.join(names)}, and {', '.join(missing)} was not captured: "
                f"trace the images again with refine={chosen.blocks}, or with a larger n."
            )
        return names

    def refine(self, maps: Tensor, refine: Refine = True) -> Tensor:
        """Refine maps of the rows of this trace, as `explain(refine=...)` does with its own.

        A map is carried by the activations of every view, mirrored before and after if the view is, and the results
        are averaged.

        Args:
            maps: (R,H,W) in [0,1], at the size of the plain input and on the trace's device. They may come from
                anywhere: another method, or a prior.
            refine: As `explain` takes it.

        Returns:
            (R,H,W). A map that no view can carry (where all positions are alike) stays as it is.
        """
        how = Refinement.parse(refine)
        if how is None:
            return maps
        expected = (len(self.image_of_row), *self.provenance.size)
        if maps.shape != expected:
            raise GamlensError(f"A map per row of this trace has the shape {expected}; found {tuple(maps.shape)}.")
        names, turns, seen, flats = self.refining_blocks(how), self.resolved_targets().turns, [], []
        images = self.images
        plain = self.image_of_row == tuple(range(images))
        place = () if plain else (indices_on(self.image_of_row, maps.device), indices_on(turns, maps.device))
        with torch.no_grad(), without_autocast(maps):
            for trace, mirrored in ((self, False), *self.views):
                blocks = [trace._block(name) for name in names]
                own = on_grid(maps.flip(2) if mirrored else maps, blocks[0])
                if plain:
                    arranged = own[:, None]
                else:  # the maps of an image share its similarities; zeros stand where it has fewer maps than others
                    arranged = own.new_zeros(images, max(turns) + 1, *own.shape[1:])
                    arranged[place] = own
                found = carry_on(arranged, blocks)
                rows, flat = finished(found[:, 0] if plain else found[place], self.provenance.size)
                seen.append(rows.flip(2) if mirrored else rows)
                flats.append(flat)
            whole = torch.stack(seen).mean(dim=0) if len(seen) > 1 else seen[0]
            own, nowhere = maps.to(whole.dtype), torch.stack(flats).all(dim=0)[:, None, None]
            return torch.where(nowhere, own, torch.lerp(whole, own, how.keep))

    def _block(self, name: str) -> Tensor:
        """The activation of a captured or earlier block, (B,C,h,w)."""
        return self.activations[name] if name in self.activations else self.earlier[name]

    def raw(self, method: str = "gam", block: str | None = None) -> Tensor:
        """The method's maps of one block as its formula gives them: neither resized nor normalised.

        Args:
            method: A name of METHODS that explains single images.
            block: A name of `blocks`, or of `attention.layers`; by default the last. A method that joins attention
                layers itself gives the map of all of them.

        Returns:
            (R,h,w). Most methods multiply activations by gradients, so the values are in units of the score, and rows
            can be compared with each other.
        """
        with torch.no_grad(), without_autocast(self.scores):
            if METHODS[method].kind == "attention":
                layers = self._attention(method).layers
                wanted = layers if METHODS[method].joins_layers else (block or layers[-1],)
                return self._attention_raw(method, wanted)[0]
            (inputs,) = self._inputs(method, [block or self.blocks[-1]])
            return METHODS[method].fn(*map(at_least_float32, inputs))

    def _inputs(self, method: str, names: Sequence[str]) -> list[tuple[Tensor, ...]]:
        """For each of these blocks, the tensors that the method's function takes, with R rows each."""
        entry = METHODS[method]
        if entry.kind == "pair":
            raise _pairs_only(method)
        if self.method not in (None, entry):
            raise GamlensError(f"The pixels were captured for {self.method.title}: trace again with method={method!r}.")
        if entry.kind == "input" and str(PIXELS) not in self.activations:
            raise GamlensError(
                f"Method {method!r} reads the pixels, in a pass of its own through the whole network: use "
                f"lens.classify(..., method={method!r}), lens.compare or lens.trace with this method."
            )
        if entry.needs_gradient and not self.gradients:
            raise _no_gradients(f"the method {method!r}")
        found = []
        for name in names:
            found.append(self._rows_at(name, entry.reads))
        return found

    def _rows_at(self, name: str, reads: Sequence[Reads]) -> tuple[Tensor, ...]:
        """What `reads` names (`Method.reads`) at a block: R rows each, in the precision they were made in."""
        if name not in self.activations:
            raise GamlensError(f"Block {name!r} was not captured; there are {', '.join(self.activations)}.")
        activation = self.activations[name]
        if self.image_of_row != tuple(range(activation.shape[0])):
            activation = activation[indices_on(self.image_of_row, activation.device)]
        rows = {"activation": activation, "score": self.scores}
        if self.gradients:
            rows["gradient"] = self.gradients[name]
        return tuple(map(rows.__getitem__, reads))

    def _activation_and_gradient(self, block: str | None, what: str) -> Iterator[Tensor]:
        """Activation and gradient of a block, (R,C,h,w) each, in float32 or float64.

        Args:
            block: A name of `blocks`; None for the last.
            what: What they are needed for, for the error if there are no gradients.
        """
        if not self.gradients:
            raise _no_gradients(what)
        return map(at_least_float32, self._rows_at(block or self.blocks[-1], ("activation", "gradient")))

    def _maps_over_views(self, method: str, names: Sequence[str], how: fuse.Fusion, lattice: str) -> BlockMaps:
        """The maps of every block averaged over all views, and then fused over the blocks.

        The map of a mirrored view is mirrored back before it is resized; with a lattice afterwards, since its
        positions lie elsewhere in the mirrored block. A block's map counts as flat only if it is flat in every view.
        """
        size, blocks, spans = self.provenance.size, [], []
        for name in names:
            seen = []
            for trace, mirrored in ((self, False), *self.views):
                seen.append(fuse.min_max(trace._view_map(method, name, size, mirrored, lattice)))
            blocks.append(torch.stack([maps for maps, _ in seen]).mean(dim=0))
            spans.append(_spans(torch.stack([bad for _, bad in seen]).all(dim=0)))
        return BlockMaps(torch.stack(blocks), fuse.fuse(blocks, how), torch.stack(spans))

    def _view_map(self, method: str, name: str, size: tuple[int, int], mirrored: bool, lattice: str) -> Tensor:
        """The map of one block in this view, mirrored back if the view is mirrored, and resized: (R,H,W)."""
        lattice_here = self.lattices.get(name) if lattice == "read" else None
        if lattice_here is not None:
            (inputs,) = self._inputs(method, [name])
            resized = fuse.lattice_map(METHODS[method].fn, inputs, size, lattice_here)
            return resized.flip(2) if mirrored else resized
        raw = self.raw(method, name)
        return fuse.resize(raw.flip(2) if mirrored else raw, size)

    def _explanation(
        self,
        method: str,
        names: Sequence[str],
        how: fuse.Fusion,
        made: BlockMaps,
        lattice: str,
        refine: Refinement | None = None,
        sign: str | None = None,
    ) -> Explanation:
        device = made.fused.device
        found = self.checks
        for trace, _ in self.views:
            found += trace.checks
        shown = names if len(made.blocks) == len(names) else names[-1:]
        flat = Check(made.any_flat, partial(_say_flat, method, shown, made.spans), fatal=False)
        found = found.with_check(flat, device)
        if METHODS[method].hides_evidence and sign is None:  # a map with a sign shows negative evidence, too
            found = found.with_check(self._check_hidden(method), device)
        about = {
            **self.provenance.about,
            "method": method,
            "n": len(names),
            "fuse": how if isinstance(how, str) else [float(weight) for weight in how],
            "blocks": list(names),
        }
        if not self.lattices.keys().isdisjoint(names):
            found_at = {name: self.lattices[name].record() for name in names if name in self.lattices}
            about["lattice"] = {"reading": lattice, "blocks": found_at}
        if refine is not None:
            about["refine"] = refine.record(self.refining_blocks(refine))
        scales = {}
        if sign is not None:
            about["sign"] = sign
            scales = dict(zip(shown, made.spans.float(), strict=True))
        return Explanation(
            maps=made.fused.float(),
            blocks=dict(zip(shown, made.blocks.float(), strict=True)),
            scores=self.scores.float(),
            targets=self.targets,
            index=indices_on(self.image_of_row, device),
            pictures=self.provenance.pictures,
            frames=self.provenance.frames,
            labels=self.provenance.labels,
            about=about,
            checks=found,
            scales=scales,
        )

    # Diagnostics

    def sums(self, block: str | None = None) -> Sums:
        """Sum activations, positive gradients and negative gradients over the channels of a block.

        Args:
            block: A name of `blocks`; by default the last.

        Returns:
            Sums: `activation`, `positive` and `negative`, (R,h,w) each.
        """
        activation, gradient = self._activation_and_gradient(block, "sums")
        return Sums(activation.relu().sum(1), gradient.relu().sum(1), (-gradient).relu().sum(1))

    def evidence(self, block: str | None = None) -> Evidence:
        """Split Grad-CAM's sum over channels at a block into its positive and negative part (Eq. 4 of the GAM paper).

        Hidden are the pixels with positive evidence that Grad-CAM sets to 0 because the negative part outweighs it.

        Args:
            block: A name of `blocks`; by default the last.

        Returns:
            Evidence: `positive`, `negative` and `hidden`, (R,h,w) each, and `hidden_share` (R,).
        """
        with torch.no_grad(), without_autocast(self.scores):
            positive, negative = methods.evidence(*self._activation_and_gradient(block, "evidence"))
        return Evidence(positive, negative, negative.abs() >= positive)

    def _check_hidden(self, method: str) -> Check:
        share = self.evidence().hidden_share
        return Check(
            (share > HIDDEN_SHARE).any, partial(_say_hidden, METHODS[method].title, share, self.blocks[-1]), fatal=False
        )

    # Classes

    def top(self, k: int = 5) -> list[list[Guess]]:
        """The k best classes of each image, best first: for each image a list of Guess.

        A Guess has an index, a name, a score and a probability. It is an error if the trace explains no class scores.
        """
        return self.rank(k)()

    def rank(self, k: int = 5, pool: Executor | None = None) -> Callable[[], list[list[Guess]]]:
        """Start to rank the classes without waiting for the device.

        Args:
            k: How many classes per image.
            pool: If given, one of its threads waits for the device.

        Returns:
            A function that waits for the values and returns what `top` returns.
        """
        if self.output is None:
            raise GamlensError("There are no classes to rank: the score of this trace is not a class score.")
        output = self.output.detach().float()
        best = output.topk(min(k, output.shape[1]), dim=1)
        temperature = self.provenance.about.get("temperature", 1.0)
        chances = scores.probabilities(output, multi_label=self.multi_label, temperature=temperature)
        chance = chances.gather(1, best.indices)
        name_of = self.provenance.name_of
        arrival = to_host([best.indices, best.values, chance], pool)

        def guesses() -> list[list[Guess]]:
            return [
                [
                    Guess(index, name_of(index), score, probability)
                    for index, score, probability in zip(*image, strict=True)
                ]
                for image in zip(*(tensor.tolist() for tensor in arrival()), strict=True)
            ]

        return guesses

    def retarget(self, target: Any) -> Trace:
        """Explain other classes of the same forward: only a short backward runs.

        Args:
            target: The classes, as `Lens.classify` takes them.

        Returns:
            A new Trace; this one stays as it is. An error if the graph was not kept (`keep_graph`) or was released.
        """
        if not self.gradients and self.attention is None:
            raise _no_gradients("retarget")
        if self.record is None or self.values is None or self.output is None:
            raise GamlensError(
                "Other classes need the autograd graph and class scores, and this trace lacks them: it was released, "
                "was made with keep_graph=False, or explains another score. Trace the images again."
            )
        first = Trace.from_record(
            self.record, self.values, target, self.provenance, output=self.output, own_values=self.own_values
        )
        return first.with_views(
            [(trace.retarget(first.resolved_targets()), mirrored) for trace, mirrored in self.views]
        )

    def resolved_targets(self) -> ResolvedTargets:
        """The targets of all rows in the form that `retarget` takes, found without waiting for the device."""
        seen: Counter[int] = Counter()
        turns = []
        for image in self.image_of_row:
            turns.append(seen[image])
            seen[image] += 1
        return ResolvedTargets(self.image_of_row, self.targets, tuple(turns))

    def with_views(self, views: Sequence[tuple[Trace, bool]]) -> Trace:
        """The same Trace with further views of its images, each with whether it is mirrored."""
        return replace(self, views=tuple(views)) if views else self

    def release(self) -> Trace:
        """The same Trace without its graph: it takes less memory, and `retarget` no longer works."""
        views = tuple((trace.release(), mirrored) for trace, mirrored in self.views)
        return replace(self, record=None, values=None, own_values=None, views=views)


def _spans(flat: Tensor) -> Tensor:
    """Averages have no span of their own: 0 stands for a good map, infinity for a flat one (see BlockMaps)."""
    return torch.zeros_like(flat, dtype=torch.float32).masked_fill(flat, math.inf)


def _say_flat(method: str, names: Sequence[str], spans: Tensor) -> str:
    where = "; ".join(
        f"{name!r} row {', '.join(map(str, rows.nonzero()[:, 0].tolist()))}"
        for name, rows in zip(names, ~(spans < math.inf), strict=True)
        if bool(rows.any())
    )
    return (
        f"{method}: a map is flat (the same everywhere) or has values that are not finite. It was set to zeros and "
        f"shows nothing (block {where})."
    )


def _no_gradients(what: str) -> GamlensError:
    return GamlensError(
        f"This trace was made for a method that needs no gradient, so it has none for {what}: trace again without "
        "method=."
    )


def _pairs_only(method: str) -> GamlensError:
    return GamlensError(
        f"Method {method!r} explains pairs of images only: use it with compare or trace_pair, or choose one of "
        f"{', '.join(methods_of('block', 'attention', 'input'))}."
    )


def _say_hidden(title: str, share: Tensor, block: str) -> str:
    return (
        f"{title} hides most of the positive evidence ({100 * float(share.max()):.0f} % in row "
        f"{int(share.argmax())}) under negative gradients at block {block!r} (Eq. 4): look at .evidence(), or use "
        "method='gam'."
    )
