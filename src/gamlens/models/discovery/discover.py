"""Which blocks and which embedding a network has: read off one recorded forward of any network.

Every tensor of the forward becomes a node. A node that every path from the image to the score passes through is a
gate. A block is, for each resolution, the last gate of that stage; the last block is the last gate that still has
positions, which is exactly what pooling reads. Where all blocks have one resolution, as in a vision transformer, each
transformer block is one (tokens.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from torch import Tensor, nn

from gamlens.capture.layer_points import OUTPUT, LayerPoint, TokenGrid
from gamlens.errors import GamlensError
from gamlens.models.discovery import tokens
from gamlens.models.discovery.positions import MOVES
from gamlens.models.discovery.recorder import Node, Recorder
from gamlens.models.discovery.tokens import Pick

MIN_STRIDE = 4
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


def paths(recorder: Recorder, target: Node | None) -> tuple[list[Node], list[Node]]:
    """The nodes between the image and `target`: the gates, which are on every path, and those that are on some.

    The paths through every node are counted; through a gate run all of them.
    """
    down = {recorder.all[0]: 1}
    for node in recorder.all[1:]:
        if (count := sum(down.get(source, 0) for source in node.inputs)) > 0:
            down[node] = count
    up: dict[Node | None, int] = {target: 1}
    for node in sorted(down, key=lambda node: -node.order):
        if node in up:
            for source in node.inputs:
                up[source] = up.get(source, 0) + up[node]
    through = [node for node in down if node in up]
    gates = {node: True for node in through if target is not None and down[node] * up[node] == down[target]}
    return list(gates), [node for node in through if node not in gates]


def embedding_of(recorder: Recorder, path: list[Node]) -> tuple[LayerPoint, int]:
    """What the classifier (the last linear map on the path) reads.

    The model's own output where there is no such map after pooling, or where it is normalised afterwards: then the
    model is an embedder.
    """
    for source, node in _steps_after_pooling(path):
        by_norm = node.func in DIVIDES and any("norm" in read.func for read in node.inputs)
        if node.func in NORMALISES or by_norm:
            break
        if node.func in LINEAR_FUNCTIONS:
            point = _head_input(recorder, node, source) or recorder.point(source)
            if point is not None:
                return point, source.shape[1]
    return LayerPoint(OUTPUT), path[-1].shape[1]


def _steps_after_pooling(gates: list[Node]) -> list[tuple[Node, Node]]:
    """What is read and what is made of it, for each step from pooling to the score; the last step first."""
    last = max((node.order for node in gates if node.size), default=0)
    return list(pairwise(node for node in gates if node.order > last))[::-1]


def _head_input(recorder: Recorder, node: Node, source: Node) -> LayerPoint | None:
    """`module:input` where a module that runs once reads `source` and gives `node`."""
    calls = (call for call in recorder.calls if call.gave is node and call.read is source)
    once = (call.name for call in calls if recorder.runs[call.name] == 1)
    return next((LayerPoint(name, reads_input=True) for name in once), None)


def discover(model: nn.Module, batch: Tensor, pick_scores: Callable[[Any], Any]) -> NetworkLayout:
    """Record one forward of `model` on `batch` (1,C,H,W); `pick_scores` takes the scores out of what it returns.

    Call it with the model in eval mode and no graph. Tokens take a second forward.
    """
    recorder, copy = Recorder(model), batch.clone()
    picked = recorder.run(batch, pick_scores)
    target = recorder.node(picked) if isinstance(picked, Tensor) else None
    gates, others = paths(recorder, target)
    read = spatial = _spatial(gates)
    if target is not None and any(node.grid for node in spatial):

        def again(start: int) -> Recorder:
            other = Recorder(model, start=start)
            other.run(copy.clone(), pick_scores)
            return other

        steps = _steps_after_pooling(gates)  # what the head reads, since an untrained head may be zero
        last = next((source for source, node in steps if node.func in LINEAR_FUNCTIONS), target)
        read = tokens.reached(again, recorder, spatial, last)
    pooling = tokens.pooling([*gates, *others], spatial[-1]) if spatial else ""
    stages = _stages(recorder, others, read, pooling)
    if not stages:
        raise GamlensError(
            "No block was found: nothing between the image and the output has the shape (B,C,h,w) on every path, or "
            "tokens whose places are known. Name the blocks yourself: Lens(model, blocks=['...'])."
        )
    embedding, width = embedding_of(recorder, gates)
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
        hits = (node for node in nodes if recorder.point(node) == replace(point, tokens=True))
        return next((node.grid for node in hits), None)
    for call in recorder.calls:
        node = call.read if point.reads_input else call.gave
        if call.name == point.module and node is not None:
            return node.grid
    return None


def _spatial(gates: list[Node]) -> list[Node]:
    """Gates with positions, without those that pool."""
    spatial = [node for node in gates if node.size and node.order > 0 and node.func != "pad"]
    while len(spatial) > 1 and spatial[-1].func.startswith("adaptive_"):
        spatial.pop()
    return spatial


def _stages(recorder: Recorder, others: list[Node], spatial: list[Node], pooling: str) -> list[Stage]:
    picked: list[Pick] = []
    groups = [(octave, list(group)) for octave, group in groupby(spatial, key=recorder.octave)]
    flat = len({octave for octave, group in groups if any(node.grid for node in group)}) == 1
    for octave, group in groups:
        picked += _missing(recorder, others, picked, octave)
        if flat and any(node.grid for node in group):
            placed = [node for node in group if node.grid]
            picked += tokens.per_block(recorder, placed, norms=pooling == "class token")
            if group[-1].grid is not None or group[-1].func in MOVES:
                continue
        for node in reversed(group):
            point = recorder.point(node)
            if point is not None and (node is spatial[-1] or not _inside_transition(recorder, node)):
                picked.append((node, point))
                break
    stages = []
    for node, point in picked:
        size = node.size or (1, 1)
        stride = max(1, round(recorder.all[0].shape[-2] / size[0]))
        stages.append(Stage(str(point), (node.channels, *size), stride, stride >= MIN_STRIDE, node.grid))
    enough = sum(stage.chosen for stage in stages) >= 2
    return stages if enough else [replace(stage, chosen=True) for stage in stages]


def _missing(recorder: Recorder, others: list[Node], picked: list[Pick], octave: int | None) -> list[Pick]:
    """For resolutions between the last picked one and `octave` that no gate has: the last output of a whole module."""
    start = recorder.octave(picked[-1][0]) if picked else None
    result: list[Pick] = []
    for level in range(start + 1, octave or 0) if start is not None else ():
        whole = []
        for node in others:
            point = recorder.point(node) if node.names and recorder.octave(node) == level else None
            if point is not None and not point.chain and not _inside_transition(recorder, node):
                whole.append((node, point))
        result += sorted(whole, key=lambda pair: (-pair[1].module.count("."), pair[0].order))[-1:]
    return result


def _inside_transition(recorder: Recorder, node: Node) -> bool:
    """Whether `node` was made inside a module that reads this resolution and returns half of it."""
    here = recorder.octave(node)
    return here is not None and any(
        recorder.octave(call.read) == here and recorder.octave(call.gave) == here + 1
        for call in recorder.calls
        if call.name in node.scope and call.read is not None and call.gave is not None
    )
