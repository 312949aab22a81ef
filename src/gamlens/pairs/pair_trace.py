"""PairTrace: the result of one forward of pairs of images, from which both maps of every pair are made."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gamlens import fuse, scores
from gamlens.capture import attention_backward, backward
from gamlens.capture.attention_backward import AttentionTrace, LayerTensors
from gamlens.capture.forward import BY_NETWORK, ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.nonblocking import Check, Checks, finite_score
from gamlens.capture.tail import NetworkTail
from gamlens.errors import GamlensError, warn
from gamlens.explanation import NO_CLASS, PairExplanation
from gamlens.fuse import at_least_float32, without_autocast
from gamlens.lattice import check_reading
from gamlens.methods import ATTENTION_DEFAULT, BLOCK_DEFAULT, METHODS
from gamlens.pairs import correspondence
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.embedding_parts import (
    AUTO_BASELINE,
    AVERAGE,
    BLANK,
    MOST_INTEGRAL_STEPS,
    CellLayout,
    EmbeddingParts,
    average_activation,
    check_baseline,
    checked_count,
    integrated_parts,
    pooled_parts,
    pooled_scale,
    positions_of,
)
from gamlens.pairs.interactions import Interactions, PairSide
from gamlens.refine import Refine
from gamlens.trace import Provenance, Trace

MOST_CELLS = 7  # into how many rows and columns of cells the positions of a block are grouped at most
USUAL_STEPS = 20  # of the integral
LARGEST_GAP = 0.05  # how much of the score the integral may miss without a warning


class PairSplit(NamedTuple):
    """Both embeddings of one pair as sums over places, from which its score is split.

    Attributes:
        parts: Of x and of y.
        embeddings: Of x and of y, (D,) each.
        divisor: d in score = <x, y> / d.
        score: The score of the pair.
        forwards: How many times the network was run for this.
    """

    parts: tuple[EmbeddingParts, EmbeddingParts]
    embeddings: tuple[Tensor, Tensor]
    divisor: Tensor
    score: float
    forwards: int


@dataclass(eq=False)
class PairTrace:
    """What one forward of P pairs of images gave. Made by `Lens.trace_pair`.

    The score is chosen when the pairs are explained. The first time that a score is asked for, one backward computes
    its gradients with respect to the blocks of both images; they are kept for later calls with the same score.

    Example:
        >>> pair = lens.trace_pair(photo, other)
        >>> result = pair.explain("gam", n=1, score="dot")
        >>> x, y = pair.sides("dot")  # two Traces: x.raw("gam"), x.sums(), x.evidence()
        >>> pair.matches((128, 128), score="dot").full().shape  # what matches this point of x, at the size of y
        torch.Size([256, 256])

    Attributes:
        records: One forward of all images, x before y; or one for each side where their sizes differ.
        embeddings: The embeddings of x and y, (P,D) each, in the graph if there is one.
        provenances: The images of x and of y, their transform, and the model, for the Explanations.
        views: PairTraces of the same pairs at other scales or mirrored, and whether each is mirrored.
        released: Whether the graph is gone, so that no further score can be asked for.
    """

    records: tuple[ForwardRecord, ...]
    embeddings: tuple[Tensor, Tensor]
    provenances: tuple[Provenance, Provenance]
    views: tuple[tuple[PairTrace, bool], ...] = ()
    released: bool = False
    _sides: dict[Any, tuple[Trace, Trace]] = field(default_factory=dict, repr=False)
    _parts: dict[Any, Any] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def from_records(
        cls, records: tuple[ForwardRecord, ...], provenances: tuple[Provenance, Provenance], pairs: int
    ) -> PairTrace:
        """Make a PairTrace from one record that holds both sides, x before y, or from one record per side.

        `pairs` is the number of pairs, P.
        """
        x, y = records[0].required_embedding(), records[-1].required_embedding()
        if len(records) == 1:
            with outside_inference_mode(), torch.enable_grad():
                x, y = x[:pairs], x[pairs:]
        return cls(records=records, embeddings=(x, y), provenances=provenances)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The captured blocks, in the order they ran."""
        return tuple(self.records[0].blocks)  # () if only attention layers were captured

    @property
    def default_method(self) -> str:
        """The method that `explain` takes by default: "attention_gam" where attention layers were captured for it."""
        kept = self.records[0].attention
        reads = METHODS[ATTENTION_DEFAULT].reads
        return ATTENTION_DEFAULT if kept is not None and kept.needs.issuperset(reads) else BLOCK_DEFAULT

    def __len__(self) -> int:
        return len(self.embeddings[0])

    def __repr__(self) -> str:
        return f"<PairTrace of {len(self)} pairs: {', '.join(self.blocks)}>"

    def explain(
        self,
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: fuse.Fusion = "mean",
        *,
        score: str | scores.PairScoreFunction = "cosine",
        lattice: str = "read",
        refine: Refine = False,
        sign: str | None = None,
    ) -> PairExplanation:
        """Make both maps of every pair. No forward is run.

        A backward is run the first time that a score is used with a method that needs a gradient.

        Args:
            method: A name of METHODS; "auto" is that of the network, `default_method`.
            n: How many of the captured blocks, or attention layers, the maps are made of, counted from the last.
            fuse: How the maps of n blocks become one: "mean", "max", "product", or n weights.
            score: A name of PAIR_SCORES, or a callable from two sets of embeddings (P,D) to numbers (P,).
            lattice, refine: As `Trace.explain` takes them. Each map is refined by its own image's activations.
            sign: None for maps as the method makes them; "positive" for what makes the images alike, "negative" for
                what sets them apart, "both" for the first minus the second: see `Trace.explain`.

        Returns:
            A PairExplanation: `scores` (P,), and `x` and `y`, each with maps (P,H,W).
        """
        if lattice != "read":
            check_reading(lattice)
        method = self.default_method if method == BY_NETWORK else method
        entry = METHODS[method]
        x, y = self.sides(score) if entry.needs_gradient else self._sides_without_backward(score)
        if entry.kind != "pair":
            left = x.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)
            right = y.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)
        else:
            raw = entry.of_pair(x.activations[self._last_block()], y.activations[self._last_block()])
            left, right = (
                side.explain_raw(method, maps, refine=refine, sign=sign) for side, maps in zip((x, y), raw, strict=True)
            )
        return PairExplanation(left, right, left.scores)

    def sides(self, score: str | scores.PairScoreFunction = "cosine", *, keep: bool = True) -> tuple[Trace, Trace]:
        """The Traces of x and of y under a score, with one row per pair each.

        Args:
            score: As `explain` takes it.
            keep: Whether the graph is kept, so that other scores can be asked for later.
        """
        with self._lock:
            if score not in self._sides:
                if self.released:
                    raise GamlensError("This trace was released: trace the pair again for another score.")
                sides = self._scored(score, graph=self.records[0].has_graph, keep=keep)
                self.released = not keep
                seen = [(view.sides(score, keep=keep), mirrored) for view, mirrored in self.views]
                self._sides[score] = _with_views(sides, seen)
            return self._sides[score]

    def _sides_without_backward(self, score: str | scores.PairScoreFunction) -> tuple[Trace, Trace]:
        """The Traces of x and of y as `sides` gives them; without gradients, unless they are there already."""
        with self._lock:
            if score in self._sides:
                return self._sides[score]
        seen = [(view._sides_without_backward(score), mirrored) for view, mirrored in self.views]
        return _with_views(self._scored(score, graph=False, keep=True), seen)

    def _scored(self, score: str | scores.PairScoreFunction, *, graph: bool, keep: bool) -> tuple[Trace, Trace]:
        """The score of every pair and, with `graph`, one backward into both sides."""
        entry = scores.find_pair_score(score)
        with without_autocast(self.embeddings[0]), outside_inference_mode(), torch.set_grad_enabled(graph):
            x, y = at_least_float32(self.embeddings[0]), at_least_float32(self.embeddings[1])
            value = entry.fn(x, y)
        waiting = Checks()
        for record in self.records:
            waiting += record.checks
        if entry.undefined is not None:
            waiting = waiting.with_check(entry.defined(x, y), x.device)
        waiting = waiting.with_check(finite_score(value, len(self)), value.device)
        attention: list[LayerTensors] = [{} for _ in self.records]
        if graph and self.records[0].attention is not None:
            attention = attention_backward.gradients_of(value, self.records, partial(self._own_scores, entry.fn))
        found = backward.gradients(value, self.records, keep_graph=keep) if graph else [{} for _ in self.records]
        if entry.saturated is not None and graph:
            empty = entry.saturated(value.detach(), x.detach(), y.detach())
            found = [{name: scores.without_saturated(g, empty) for name, g in part.items()} for part in found]
            attention = [
                {
                    name: {what: scores.without_saturated(g, empty) for what, g in own.items()}
                    for name, own in part.items()
                }
                for part in attention
            ]
            saturated = Check(empty.any, partial(entry.saturated_message, empty), fatal=False)
            waiting = waiting.with_check(saturated, value.device)
        value = value.detach()
        rest = (found, attention, value, score, waiting)
        return self._side(0, *rest), self._side(1, *rest)

    def _own_scores(self, rule: scores.PairScoreFunction, number: int) -> Tensor:
        """The scores of every attention layer's own tokens of a record, each with the other image as it is: (L*B,)."""
        record = self.records[number].attention
        assert record is not None
        own, layers, pairs = at_least_float32(record.own_record.required_embedding()), len(record.layers), len(self)
        others = [at_least_float32(e.detach()) for e in self.embeddings]
        if len(self.records) == 2:
            other = others[1 - number].repeat(layers, 1)
            return rule(own, other) if number == 0 else rule(other, own)
        whole = own.view(layers, -1, own.shape[1])  # a record may hold images of no pair behind those of the pairs
        x = rule(whole[:, :pairs].flatten(0, 1), others[1].repeat(layers, 1)).view(layers, pairs)
        y = rule(others[0].repeat(layers, 1), whole[:, pairs : 2 * pairs].flatten(0, 1)).view(layers, pairs)
        rest = x.new_zeros(layers, whole.shape[1] - 2 * pairs)
        return torch.cat([x, y, rest], dim=1).flatten()

    def _side(
        self,
        side: int,
        gradients: list[dict[str, Tensor]],
        attention: list[LayerTensors],
        value: Tensor,
        score: str | scores.PairScoreFunction,
        waiting: Checks,
    ) -> Trace:
        """The Trace of x (0) or of y (1). Both share the checks, so that what is wrong with a pair is said once."""
        number, rows = self._place(side)
        record = self.records[number]
        kept = None  # without gradients, too: no method of kind "attention" does without
        if record.attention is not None and attention[number]:
            kept = AttentionTrace.of_record(record.attention, attention[number]).sliced(rows)
        return Trace(
            activations=self._activations(side),
            gradients={block: gradient[rows] for block, gradient in gradients[number].items()},
            scores=value,
            targets=torch.full((len(self),), NO_CLASS, device=value.device),
            image_of_row=tuple(range(len(self))),
            provenance=self.provenances[side].scored_by(scores.score_name(score)),
            checks=waiting,
            make_maps=record.make_maps,
            lattices=record.lattices,
            earlier={block: h[rows] for block, h in record.earlier_activations.items()},
            network_blocks=record.network_blocks,
            method=record.method,
            attention=kept,
        )

    def _last_block(self) -> str:
        if not self.blocks:
            raise GamlensError(
                "This trace captured attention layers alone, no block: trace the pair again without method=, or with "
                "one that reads blocks."
            )
        return self.blocks[-1]

    def _place(self, side: int) -> tuple[int, slice]:
        """Which record holds x (0) or y (1), and which rows of it."""
        pairs = len(self)
        return (side, slice(None)) if len(self.records) == 2 else (0, slice(side * pairs, (side + 1) * pairs))

    def _activations(self, side: int) -> dict[str, Tensor]:
        number, rows = self._place(side)
        return {block: h[rows] for block, h in self.records[number].activations.items()}

    def matches(
        self,
        point: tuple[float, float],
        *,
        side: PairSide = "x",
        score: str | scores.PairScoreFunction = "cosine",
        pair: int = 0,
    ) -> Matches:
        """Find what in one image matches a point of the other: how much each position there adds to the score.

        If the embedding is the average of the last block, the network does not run again. Any other embedding is split
        over positions as in `interactions`, once per pair. Matches explains the result.

        Args:
            point: (x, y) in original pixels of the image `side`.
            side: The image of the pair that the point lies in.
            score: "cosine" or "dot". Others cannot be split into a sum over pairs of positions.
            pair: The number of the pair, from 0.

        Example:
            >>> found = lens.trace_pair(photo, other).matches((120, 80))
            >>> found.side, found.full().shape == (other.height, other.width)
            ('x', True)
        """
        if side not in ("x", "y"):
            raise GamlensError(f"side= is 'x' or 'y', not {side!r}.")
        # Average pooling costs nothing at any number of positions, so they are not taken together.
        cells = None if self._is_pooled(pair) else MOST_CELLS
        split = self._split(pair, score, USUAL_STEPS, AUTO_BASELINE, cells)
        here, there = (0, 1) if side == "x" else (1, 0)
        own, other = split.parts[here].parts, split.parts[there].parts
        size, seen = (own.shape[0], own.shape[1]), self.provenances[there]
        cell = correspondence.cell_of(point, self.provenances[here].frames[pair], size)
        return Matches(
            map=other @ own[cell] / split.divisor,  # one row of the matrix of `interactions`
            score=split.score,
            side=side,
            cell=cell,
            cells=size,
            size=seen.frames[pair].size,
            picture=seen.pictures[pair],
            frame=seen.frames[pair],
        )

    def interactions(
        self,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        pair: int = 0,
        steps: int = USUAL_STEPS,
        baseline: str | Tensor = AUTO_BASELINE,
        cells: int | None = MOST_CELLS,
    ) -> Interactions:
        """Split the score of a pair over pairs of places, one in each image: which place matches which?

        If the embedding is the average of the last block, the parts are exact, and the network does not run. Any other
        embedding (max or generalised-mean pooling, attention, class tokens, further layers, a normalised output) is
        split by integrated Jacobians from a baseline, which takes one forward-mode derivative of the layers after the
        last block per cell and step; `Interactions` says what remains. Embeddings are split once; another score, or
        `matches` of another point, reuses the parts.

        Args:
            score: "cosine" or "dot", or another multiple of the dot product.
            pair: The number of the pair, from 0.
            steps: The number of steps of the integral. More steps make `gap` smaller and take longer.
            baseline: What places are compared with: "zeros" (activations of 0), "blank" (an image of the mean colour),
                "average" (what both images have on average, so that a link says what is special about two places), a
                tensor of activations, or "auto": zeros where the integral works from there, and else blank.
            cells: Neighbouring positions are taken together, so that there are at most this many rows and columns of
                cells, which bounds the cost. None takes every position by itself.

        Example:
            >>> found = lens.trace_pair(photo, other).interactions(score="dot")
            >>> found.matrix.shape, found.exact
            (torch.Size([7, 7, 7, 7]), True)
            >>> parts = found.between({"left": (0, 0, 128, 256)}, {"left": (0, 0, 128, 256)})
            >>> parts.values.shape, parts.x_names
            (torch.Size([2, 2]), ('left', 'elsewhere'))
        """
        check_baseline(baseline)
        steps = checked_count("steps", steps, MOST_INTEGRAL_STEPS)
        cells = None if cells is None else checked_count("cells", cells)
        split = self._split(pair, score, steps, baseline, cells)
        found = Interactions.from_parts(
            *split.parts,
            divisor=split.divisor,
            score=split.score,
            embeddings=split.embeddings,
            steps=0 if split.parts[0].exact and split.parts[1].exact else steps,
            forwards=split.forwards,
            pictures=tuple(own.pictures[pair] for own in self.provenances),
            frames=tuple(own.frames[pair] for own in self.provenances),
            name=scores.score_name(score),
        )
        if abs(found.gap) > LARGEST_GAP * abs(found.score):
            warn(
                f"The parts of this score miss {found.gap:.3g} of {found.score:.3g}: the integral from the baseline "
                f"{found.baseline!r} has not converged in {steps} steps. Give more steps=, or another baseline= "
                f"({AUTO_BASELINE!r} avoids one from which the integral cannot start)."
            )
        return found

    def _split(
        self,
        pair: int,
        score: str | scores.PairScoreFunction,
        steps: int,
        baseline: str | Tensor,
        cells: int | None,
    ) -> PairSplit:
        """Split both embeddings of a pair, and find by what a score divides their product."""
        entry = scores.find_pair_score(score)
        if entry.dot_divisor is None:
            sums = ", ".join(repr(name) for name, other in scores.PAIR_SCORES.items() if other.sums_over_positions)
            raise GamlensError(
                f"The score {scores.score_name(score)!r} has no matches: it is no sum over pairs of positions (only a "
                f"multiple of the dot product is one): use one of {sums}."
            )
        with torch.no_grad(), without_autocast(self.embeddings[0]), outside_inference_mode():
            x, y = (at_least_float32(own[self._pair_number(pair)].detach()) for own in self.embeddings)
            for side, own in (("x", x), ("y", y)):
                entry.require_defined(own[None], side, (pair,))
            parts, forwards = self._embedding_parts(pair, steps, baseline, cells)
            return PairSplit(
                parts=parts,
                embeddings=(x, y),
                divisor=entry.dot_divisor(x[None], y[None])[0],
                score=float(entry.fn(x[None], y[None])[0]),
                forwards=forwards,
            )

    def _pair_number(self, pair: int) -> int:
        try:
            pair = operator.index(pair)
        except TypeError as error:
            raise GamlensError(f"pair={pair!r}: give the number of a pair, from 0 to {len(self) - 1}.") from error
        if not -len(self) <= pair < len(self):
            raise GamlensError(f"There is no pair {pair}: there are {len(self)}, numbered 0 to {len(self) - 1}.")
        return pair

    def _is_pooled(self, pair: int) -> bool:
        """Whether both embeddings of a pair are averages of the last block."""
        return all(self._pooled_scale(side, pair) is not None for side in (0, 1))

    def _pooled_scale(self, side: int, pair: int) -> Tensor | None:
        """The number c in embedding = c * average of the last block; None if that does not hold for this image."""
        self._pair_number(pair)
        if not self.blocks:
            return None
        h, e = self._activations(side)[self._last_block()][pair], self.embeddings[side][pair].detach()
        eps = torch.finfo(e.dtype).eps
        return pooled_scale(at_least_float32(h), at_least_float32(e), eps)

    def _embedding_parts(
        self, pair: int, steps: int, baseline: str | Tensor, cells: int | None
    ) -> tuple[tuple[EmbeddingParts, EmbeddingParts], int]:
        """The parts of the embeddings of both images of a pair, and how many forwards they took. They are kept."""
        if not isinstance(baseline, str) and baseline.is_inference():  # it does not know whether it was changed
            baseline = baseline.clone()
        given = baseline if isinstance(baseline, str) else (id(baseline), baseline._version)  # changed in place?
        key = (pair % len(self), steps, given, cells)
        with self._lock:
            if key not in self._parts:
                made = [self._parts_of_side(side, pair, steps, baseline, cells) for side in (0, 1)]
                forwards = made[0][1] + made[1][1]
                if made[0][0].name != made[1][0].name:  # "auto" chose two baselines: the same for both is simpler
                    made = [self._parts_of_side(side, pair, steps, BLANK, cells) for side in (0, 1)]
                    forwards += made[0][1] + made[1][1]
                # A baseline that was given is kept, too, so that its id stays its own.
                self._parts[key] = (made[0][0], made[1][0]), forwards, baseline
            parts, forwards, _ = self._parts[key]
            return parts, forwards

    def _parts_of_side(
        self, side: int, pair: int, steps: int, baseline: str | Tensor, cells: int | None
    ) -> tuple[EmbeddingParts, int]:
        embedding = at_least_float32(self.embeddings[side][pair].detach())
        if isinstance(baseline, str) and baseline != BLANK and self._is_pooled(pair):
            blocks = [at_least_float32(self._activations(s)[self._last_block()][pair]) for s in (0, 1)]
            mean = torch.stack([block.mean(dim=(1, 2)) for block in blocks]).mean(dim=0)
            scale = self._pooled_scale(side, pair)
            assert scale is not None
            positions = positions_of(blocks[side], "", None, cells)
            return pooled_parts(blocks[side], scale, positions, mean if baseline == AVERAGE else None), 0
        tail, block, positions = self._tail_of_side(side, pair, cells)
        if isinstance(baseline, str) and baseline == AVERAGE:
            other, other_block, other_positions = self._tail_of_side(1 - side, pair, cells)
            means = [average_activation(block, positions), average_activation(other_block, other_positions)]
            if means[0].shape != means[1].shape:
                raise GamlensError(
                    "The images of this pair have inputs of two sizes, and so no average activation of one shape: give "
                    "another baseline, or images of one size."
                )
            tail.forwards += other.forwards
            made = integrated_parts(tail, block, embedding, positions, steps=steps, baseline=(means[0] + means[1]) / 2)
            return made._replace(name=AVERAGE), tail.forwards
        made = integrated_parts(tail, block, embedding, positions, steps=steps, baseline=baseline)
        return made, tail.forwards

    def _tail_of_side(self, side: int, pair: int, cells: int | None) -> tuple[NetworkTail, Tensor, CellLayout]:
        """The network after the last block, one row of that block, and its cells."""
        number, rows = self._place(side)
        record = self.records[number]
        if record.tail is None:
            raise GamlensError(
                "This trace cannot run the layers after its last block again: it was made for a method that reads "
                "pixels, or not by Lens.trace_pair: trace the pair again by Lens.trace_pair, without method=."
            )
        tail = record.tail()
        kept, image = record.blocks.get(tail.point.name), tail.images[rows][pair : pair + 1 or None]
        block = tail.activation(image) if kept is None else kept.detach()[rows][pair]
        block = at_least_float32(block).to(tail.images.dtype)
        return tail, block, positions_of(block, tail.point.name, tail.grid, cells)

    def release(self) -> PairTrace:
        """Free the graph. Scores that were explained before can still be explained; any other needs a new trace."""
        with self._lock:
            self.released = True
            self.records = tuple(record.without_graph() for record in self.records)
            self.embeddings = (self.embeddings[0].detach(), self.embeddings[1].detach())
        for view, _ in self.views:
            view.release()
        return self


def _with_views(sides: tuple[Trace, Trace], views: Sequence[tuple[tuple[Trace, Trace], bool]]) -> tuple[Trace, Trace]:
    """The Traces of x and y with those of further views, each with whether it is mirrored."""
    x, y = (trace.with_views([(own[side], mirrored) for own, mirrored in views]) for side, trace in enumerate(sides))
    return x, y
