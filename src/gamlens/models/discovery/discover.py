"""Which blocks and which embedding a network has, found by recording one forward of it.

Every tensor of the forward is a node of a graph. A node that lies on every path from the image to the score is called
a gate. At each resolution the last gate is a block. So the last block is the last gate that still has positions, which
is exactly what pooling reads. Where there is only one resolution, as in a vision transformer, every transformer block
is a block (tokens.py).
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
        name: The name of its LayerPoint, such as "layer4" or "features:relu".
        shape: (C,h,w) of its activation.
        stride: Input pixels per position, along the height.
        chosen: Whether it is read. By default those of stride 4 and more are.
        grid: If its output is tokens (B,N,C), which token belongs to which cell of the image; None if it is (B,C,h,w).
    """

    name: str
    shape: tuple[int, int, int]
    stride: int
    chosen: bool
    grid: TokenGrid | None = None


@dataclass(frozen=True)
class NetworkLayout:
    """What discovery found.

    Attributes:
        stages: The blocks in the order in which they run.
        embedding: The name of the layer that gives the embedding.
        width: How many numbers the embedding of an image has.
        pooling: How one vector is made of the last block, in words: "mean", "class token".
        layers: The transformer layers, where all tokens have one resolution: the path of each module, and where the
            tokens that it returns lie.
    """

    stages: tuple[Stage, ...]
    embedding: str
    width: int
    pooling: str = "unknown"
    layers: tuple[tuple[str, TokenGrid], ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the chosen stages."""
        return tuple(stage.name for stage in self.stages if stage.chosen)


def paths(recorder: Recorder, target: Node | None) -> tuple[list[Node], list[Node]]:
    """The nodes between the image and `target`: first the gates, which lie on every path, then all others.

    Paths are counted: `down` holds the paths from the image to a node, `up` those from the node to the target. Their
    product is the number of paths through the node, and a gate is a node that all paths run through.
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
    """Find the embedding: the input of the classifier, which is the last linear layer after pooling.

    If there is no such layer, or if a normalisation follows it, the model itself returns an embedding, and this is it.

    Args:
        recorder: The recorded forward.
        path: The gates, from the image to the score.

    Returns:
        Where the embedding is read, and how many numbers it has per image.
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
    """The steps from pooling to the score, the last step first. A step is two consecutive gates: (read, computed)."""
    last = max((node.order for node in gates if node.size), default=0)
    return list(pairwise(node for node in gates if node.order > last))[::-1]


def _head_input(recorder: Recorder, node: Node, source: Node) -> LayerPoint | None:
    """The point `module:input` of a module that runs once, reads `source` and gives `node`; None without one."""
    calls = (call for call in recorder.calls if call.gave is node and call.read is source)
    once = (call.name for call in calls if recorder.runs[call.name] == 1)
    return next((LayerPoint(name, reads_input=True) for name in once), None)


def discover(model: nn.Module, batch: Tensor, pick_scores: Callable[[Any], Any]) -> NetworkLayout:
    """Find the blocks and the embedding of `model` by one recorded forward, or by two where it has tokens.

    The caller puts the model into eval mode and switches gradients off.

    Args:
        model: The network.
        batch: One image (1,C,H,W).
        pick_scores: Takes the class scores out of what the model returns.
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

        # The input of the classifier is differentiated rather than the scores: untrained classifiers may be all zeros,
        # and then every gradient is zero.
        steps = _steps_after_pooling(gates)
        last = next((source for source, node in steps if node.func in LINEAR_FUNCTIONS), target)
        read = tokens.reached(again, recorder, spatial, last)
    pooling = tokens.pooling([*gates, *others], spatial[-1]) if spatial else ""
    stages = _stages(recorder, others, read, pooling)
    if not stages:
        raise GamlensError(
            "No block was found: no tensor that lies on every path from the image to the output has the shape "
            "(B,C,h,w), or holds tokens whose places in the image are known. Name the blocks yourself: "
            "Lens(model, blocks=['...'])."
        )
    embedding, width = embedding_of(recorder, gates)
    placed = [node for node in spatial if node.grid]
    flat = len({recorder.octave(node) for node in placed}) == 1
    return NetworkLayout(tuple(stages), str(embedding), width, pooling, tokens.layers(placed) if flat else ())


def locate(model: nn.Module, batch: Tensor, points: Sequence[LayerPoint]) -> dict[LayerPoint, TokenGrid | None]:
    """Run the model once, sort the named blocks `points` by the order in which they run, and find their token grids.

    A block that returns tokens is renamed to say so: `blocks.11` becomes `blocks.11:tokens`.

    Returns:
        {block: its token grid, or None if it returns no tokens}, in the order in which the blocks run.
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
                f"{str(point)!r} gives no tokens whose places in the image are known: name another block, as `gamlens "
                "blocks` lists them."
            )
        found[replace(point, tokens=grid is not None)] = grid
    return found


def _grid_at(recorder: Recorder, point: LayerPoint) -> TokenGrid | None:
    """The grid of the tokens at a point; None where the point gives no tokens."""
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
    """The gates that have positions, without adaptive pooling at their end and without padding."""
    spatial = [node for node in gates if node.size and node.order > 0 and node.func != "pad"]
    while len(spatial) > 1 and spatial[-1].func.startswith("adaptive_"):
        spatial.pop()
    return spatial


def _stages(recorder: Recorder, others: list[Node], spatial: list[Node], pooling: str) -> list[Stage]:
    """Pick one stage per resolution; where all tokens have the same resolution, one per transformer block.

    Stages with a stride below MIN_STRIDE are not chosen, unless fewer than two would be left.

    Args:
        recorder: The recorded forward.
        others: The nodes on some path to the score that are no gates.
        spatial: The gates with positions.
        pooling: How one vector is made of the last block, in words.
    """
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
    """Pick one node for each resolution between that of the last picked node and `octave`: no gate has these.

    Of the modules whose output has that resolution, the least nested ones are considered, and the last of them to run
    is picked.
    """
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
    """Whether `node` was made inside a module that reads the node's resolution and returns half of it."""
    here = recorder.octave(node)
    return here is not None and any(
        recorder.octave(call.read) == here and recorder.octave(call.gave) == here + 1
        for call in recorder.calls
        if call.name in node.scope and call.read is not None and call.gave is not None
    )
