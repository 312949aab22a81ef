"""Which blocks and which embedding a network has: read off one recorded forward of any network.

Every tensor of the forward becomes a node. A node that every path from the image to the score passes through is a
gate. A block is, for each resolution, the last gate of that stage; the last block is the last gate that still has
positions, which is exactly what pooling reads. Where all blocks have one resolution, as in a vision transformer, each
transformer block is one (tokens.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from torch import Tensor, nn

from gamlens.capture.layer_points import OUTPUT, LayerPoint, TokenGrid, tensors
from gamlens.errors import GamlensError
from gamlens.models.discovery import tokens
from gamlens.models.discovery.positions import MOVES
from gamlens.models.discovery.recorder import Node, Paths, Recorder, paths

MIN_STRIDE = 4
LONGEST_CHAIN = 6
NORMALISES = ("normalize", "batch_norm", "layer_norm")
DIVIDES = ("truediv", "div", "divide", "true_divide")
LINEAR_FUNCTIONS = ("linear", "conv2d", "conv_transpose2d", "matmul", "addmm", "mm", "einsum")


@dataclass(frozen=True)
class Stage:
    """A block that may be read.

    Attributes:
        name: As LayerPoint writes it.
        shape: (C,h,w) of its activation.
        stride: Input pixels per position.
        chosen: Whether it is read unless the user names blocks.
        grid: Where its tokens lie, and how many are set aside; None for a map.
    """

    name: str
    shape: tuple[int, int, int]
    stride: int
    chosen: bool
    grid: TokenGrid | None = None


@dataclass(frozen=True)
class NetworkLayout:
    """What discovery found: blocks in the order they run, the embedding with its width, and how it is pooled."""

    stages: tuple[Stage, ...]
    embedding: str
    width: int
    pooling: str = "unknown"

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the chosen stages."""
        return tuple(stage.name for stage in self.stages if stage.chosen)


def point_of(recorder: Recorder, node: Node) -> LayerPoint | None:
    """How `node` is written down: a module that runs once, else functions applied to such a module's output."""
    chain: tuple[str, ...] = ()
    last, grid = node.channels_last and node.size is not None and node.grid is None, node.grid is not None
    for _ in range(LONGEST_CHAIN):
        once = [name for name in node.names if recorder.runs[name] == 1]
        if once:
            return LayerPoint(min(once, key=lambda name: name.count(".")), chain=chain, channels_last=last, tokens=grid)
        if not node.inputs or not node.func:
            return None
        source = max(node.inputs, key=lambda source: source.order)
        if sum(other.func == node.func and source in other.inputs for other in recorder.all) != 1:
            return None
        chain, node = (node.func, *chain), source
    return None


def embedding_of(recorder: Recorder, path: list[Node]) -> tuple[LayerPoint, int]:
    """What the classifier (the last linear map on the path) reads.

    The model's own output where there is no such map after pooling, or where it is normalised afterwards: then the
    model is an embedder.
    """
    for source, node in _steps_after_pooling(path):
        if _normalises(node):
            break
        if node.func in LINEAR_FUNCTIONS:
            point = _head_input(recorder, node, source) or point_of(recorder, source)
            if point is not None:
                return point, source.shape[1]
    return LayerPoint(OUTPUT), path[-1].shape[1]


def _steps_after_pooling(gates: list[Node]) -> list[tuple[Node, Node]]:
    """What is read and what is made of it, for each step from pooling to the score; the last step first."""
    last = max((node.order for node in gates if node.size), default=0)
    return list(pairwise(node for node in gates if node.order > last))[::-1]


def _normalises(node: Node) -> bool:
    """Whether `node` is a normalised vector: F.normalize, a batch or layer norm, or a division by a norm."""
    by_norm = any("norm" in source.func for source in node.inputs)
    return node.func in NORMALISES or (by_norm and node.func in DIVIDES)


def _head_input(recorder: Recorder, node: Node, source: Node) -> LayerPoint | None:
    """`module:input` where a module that runs once reads `source` and gives `node`."""
    calls = (call for call in recorder.calls if call.gave is node and call.read is source)
    once = (call.name for call in calls if recorder.runs[call.name] == 1)
    return next((LayerPoint(name, reads_input=True) for name in once), None)


def discover(model: nn.Module, batch: Tensor, *, output: Any = None) -> NetworkLayout:
    """Record one forward of `model` on `batch` (1,C,H,W); `output` picks the scores out of what it returns.

    Call it with the model in eval mode and no graph. Tokens take a second forward.
    """
    recorder, copy = Recorder(model), batch.clone()
    finish = output if output is not None else lambda result: next(tensors(result), None)
    picked = recorder.run(batch, finish)
    target = recorder.node(picked) if isinstance(picked, Tensor) else None
    found = paths(recorder, target) if target is not None else Paths([], [])
    spatial = _spatial(found)
    read = spatial
    if target is not None and any(node.grid for node in spatial):

        def again(start: int) -> Recorder:
            other = Recorder(model, start=start)
            other.run(copy.clone(), finish)
            return other

        steps = _steps_after_pooling(found.gates)  # what the head reads, since an untrained head may be zero
        last = next((source for source, node in steps if node.func in LINEAR_FUNCTIONS), target)
        read = tokens.reached(again, recorder, spatial, last)
    pooling = tokens.pooling(found, spatial[-1]) if spatial else ""
    stages = _stages(recorder, found, read, (int(batch.shape[-2]), int(batch.shape[-1])), pooling)
    if not stages:
        raise GamlensError(
            "No block was found: nothing between the image and the output has the shape (B,C,h,w) on every path, or "
            "tokens whose places are known. Name the blocks yourself: Lens(model, blocks=['...'])."
        )
    embedding, width = embedding_of(recorder, found.gates)
    return NetworkLayout(tuple(stages), str(embedding), width, pooling)


def locate(model: nn.Module, batch: Tensor, points: Sequence[LayerPoint]) -> dict[LayerPoint, TokenGrid | None]:
    """`points` in the order in which they run, for blocks that the user named, with the grids of those of tokens.

    A name without its layout, `blocks.11`, becomes that of tokens, `blocks.11:tokens`, where it gives them.
    """
    recorder = Recorder(model)
    recorder.run(batch)
    place = {event: number for number, event in enumerate(recorder.events)}

    def when(point: LayerPoint) -> tuple[int, int]:
        bare = replace(point, chain=(), channels_last=False, tokens=False)
        return place.get(bare, len(place)), len(point.chain)

    found: dict[LayerPoint, TokenGrid | None] = {}
    for point in sorted(points, key=when):
        grid = _grid_at(recorder, point)
        if point.tokens and grid is None and when(point)[0] < len(place):
            raise GamlensError(
                f"{str(point)!r} gives no tokens whose places in the image are known: name another block."
            )
        found[replace(point, tokens=grid is not None)] = grid
    return found


def _grid_at(recorder: Recorder, point: LayerPoint) -> TokenGrid | None:
    """The grid of the tokens at a point; None where there are none."""
    if point.channels_last:
        return None
    if point.chain:
        nodes = (node for node in recorder.all if node.grid and not node.names)
        hits = (node for node in nodes if point_of(recorder, node) == replace(point, tokens=True))
        return next((node.grid for node in hits), None)
    for call in recorder.calls:
        node = call.read if point.reads_input else call.gave
        if call.name == point.module and node is not None:
            return node.grid
    return None


def _spatial(found: Paths) -> list[Node]:
    """Gates with positions, without those that pool."""
    spatial = [node for node in found.gates if node.size and node.order > 0 and node.func != "pad"]
    while len(spatial) > 1 and spatial[-1].func.startswith("adaptive_"):
        spatial.pop()
    return spatial


def _stages(recorder: Recorder, found: Paths, spatial: list[Node], image: tuple[int, int], pooling: str) -> list[Stage]:
    picked: list[tuple[Node, LayerPoint]] = []
    groups = [(octave, list(group)) for octave, group in groupby(spatial, key=lambda node: node.octave(image))]
    flat = len({octave for octave, group in groups if any(node.grid for node in group)}) == 1
    for octave, group in groups:
        picked += _missing(recorder, found, picked, octave, image)
        if flat and any(node.grid for node in group):
            placed = [node for node in group if node.grid]
            norms = pooling == "class token"
            picked += tokens.per_block(recorder, placed, partial(point_of, recorder), norms=norms)
            if group[-1].grid is not None or group[-1].func in MOVES:
                continue
        for node in reversed(group):
            point = point_of(recorder, node)
            if point is not None and (node is spatial[-1] or not _inside_transition(recorder, node, image)):
                picked.append((node, point))
                break
    sizes = [node.size or (1, 1) for node, _ in picked]
    strides = [max(1, round(image[0] / size[0])) for size in sizes]
    deep = [stride >= MIN_STRIDE for stride in strides]
    chosen = deep if sum(deep) >= 2 else [True] * len(picked)
    return [
        Stage(str(point), (node.channels, *size), stride, keep, node.grid)
        for (node, point), size, stride, keep in zip(picked, sizes, strides, chosen, strict=True)
    ]


def _missing(
    recorder: Recorder, found: Paths, picked: list[tuple[Node, LayerPoint]], octave: int | None, image: tuple[int, int]
) -> list[tuple[Node, LayerPoint]]:
    """For resolutions between the last picked one and `octave` that no gate has: the last output of a whole module."""
    start = picked[-1][0].octave(image) if picked else None
    result: list[tuple[Node, LayerPoint]] = []
    for level in range(start + 1, octave or 0) if start is not None else ():
        whole = []
        for node in found.others:
            point = point_of(recorder, node) if node.names and node.octave(image) == level else None
            if point is not None and not point.chain and not _inside_transition(recorder, node, image):
                whole.append((node, point))
        result += sorted(whole, key=lambda pair: (-pair[1].module.count("."), pair[0].order))[-1:]
    return result


def _inside_transition(recorder: Recorder, node: Node, image: tuple[int, int]) -> bool:
    """Whether `node` was made inside a module that reads this resolution and returns half of it."""
    here = node.octave(image)
    return here is not None and any(
        call.read.octave(image) == here and call.gave.octave(image) == here + 1
        for call in recorder.calls
        if call.name in node.scope and call.read is not None and call.gave is not None
    )
