"""Which blocks, which embedding: read off one recorded forward of any network.

Every tensor of the forward becomes a node. A node that every path from the image to the score passes through is a
gate. A block is, for each resolution, the last gate of that stage; the last block is the last gate that still has
positions, which is exactly what pooling reads.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.errors import GamlensError
from gamlens.points import OUTPUT, Point, function_name, tensors

MIN_STRIDE = 4
LONGEST_CHAIN = 6
LINEAR = ("linear", "conv2d", "conv_transpose2d", "matmul", "addmm", "mm", "einsum")
_PERMUTES = {(0, 2, 3, 1): True, (0, 3, 1, 2): False}


@dataclass(eq=False)
class Node:
    """A tensor of the recorded forward: where it came from and what it is called."""

    shape: tuple[int, ...]
    order: int
    inputs: tuple[Node, ...]
    func: str
    scope: tuple[str, ...]
    names: list[str] = field(default_factory=list)
    real: bool = True
    channels_last: bool = False

    @property
    def live(self) -> bool:
        """Whether it depends on the image."""
        return self.order == 0 or bool(self.inputs)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of a (B,C,h,w) tensor with more than one position."""
        if len(self.shape) != 4 or not self.real or self.channels_last or self.shape[2] * self.shape[3] <= 1:
            return None
        return self.shape[2], self.shape[3]

    def octave(self, image: tuple[int, int]) -> int | None:
        """How often the image was halved to come to this size; padding does not change it."""
        return round(math.log2(max(image[0] / self.size[0], 1))) if self.size else None


@dataclass(frozen=True)
class Call:
    """One run of one module: what it read and what it returned, as nodes."""

    name: str
    kind: type[nn.Module]
    read: Node | None
    gave: Node | None


@dataclass(frozen=True)
class Stage:
    """A block that may be read: its name, its activation's (C,h,w), its stride in pixels, chosen by default or not."""

    name: str
    shape: tuple[int, int, int]
    stride: int
    chosen: bool


@dataclass(frozen=True)
class Layout:
    """What discovery found: blocks in the order they run, and the embedding with its width."""

    stages: tuple[Stage, ...]
    embedding: str
    width: int

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages if stage.chosen)


class Recorder(TorchFunctionMode):
    """Writes down one forward: `run` it, then ask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.thread = model, threading.get_ident()
        self.nodes: dict[int, Node] = {}
        self.kept: list[Tensor] = []
        self.all: list[Node] = []
        self.calls: list[Call] = []
        self.stack: list[tuple[str, Node | None]] = []
        self.events: list[Point] = []

    def run(self, batch: Tensor) -> Any:
        self._node(batch, (), "")
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    stack.callback(module.register_forward_pre_hook(self._enter(name), with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(self._leave(name)).remove)
            stack.enter_context(self)
            return self.model(batch)

    def node(self, tensor: Tensor) -> Node | None:
        return self.nodes.get(id(tensor))

    def _node(self, tensor: Tensor, inputs: tuple[Node, ...], func: str) -> Node:
        scope = tuple(name for name, _ in self.stack)
        node = Node(tuple(tensor.shape), len(self.all), inputs, func, scope, real=tensor.is_floating_point())
        if len(node.shape) == 4 and inputs:
            node.channels_last = inputs[0].channels_last and len(inputs[0].shape) == 4
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)
        self.all.append(node)
        return node

    def _known(self, value: Any) -> tuple[Node, ...]:
        found = (self.nodes.get(id(tensor)) for tensor in tensors(value))
        return tuple(dict.fromkeys(node for node in found if node is not None and node.live))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = self._known((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if inputs and threading.get_ident() == self.thread:
            for tensor in tensors(result):
                node = self._node(tensor, inputs, function_name(func))
                if node.func == "permute" and (dims := _dims(args, kwargs or {})) in _PERMUTES:
                    node.channels_last = _PERMUTES[dims]
        return result

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if threading.get_ident() == self.thread:
                known = self._known((args, kwargs))
                self.stack.append((name, known[0] if known else None))
                self.events.append(Point(name, reads_input=True))

        return hook

    def _leave(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() != self.thread:
                return
            self.events.append(Point(name))
            read = self.stack[-1][1]
            gave = None
            for tensor in tensors(output):
                node = self.nodes.get(id(tensor))
                if node is None or not node.live:
                    node = self._node(tensor, self._known(args), type(module).__name__.lower())
                if isinstance(output, Tensor):
                    gave = node
                    node.names.append(name)
            self.stack.pop()
            self.calls.append(Call(name, type(module), read, gave))

        return hook


def gates(recorder: Recorder, target: Node) -> list[Node]:
    """Nodes on every path from the image to `target`, in order: those through which all paths are counted."""
    down = {recorder.all[0]: 1}
    for node in recorder.all[1:]:
        if (paths := sum(down.get(source, 0) for source in node.inputs)) > 0:
            down[node] = paths
    up = {target: 1}
    for node in sorted(down, key=lambda node: -node.order):
        if node in up:
            for source in node.inputs:
                up[source] = up.get(source, 0) + up[node]
    total = down.get(target, 0)
    return [node for node in down if total and down[node] * up.get(node, 0) == total]


def point_of(recorder: Recorder, node: Node) -> Point | None:
    """How `node` is written down: a module that runs once, else functions applied to such a module's output."""
    runs = Counter(call.name for call in recorder.calls)
    chain: tuple[str, ...] = ()
    for _ in range(LONGEST_CHAIN):
        once = [name for name in node.names if runs[name] == 1]
        if once:
            return Point(min(once, key=lambda name: name.count(".")), chain=chain)
        if not node.inputs or not node.func:
            return None
        chain = (node.func, *chain)
        node = max(node.inputs, key=lambda source: source.order)
    return None


def embedding_of(recorder: Recorder, path: list[Node]) -> tuple[Point, int]:
    """What the classifier (the last linear map on the path) reads.

    The model's own output where there is no such map after pooling, or where it is normalised afterwards: then the
    model is an embedder.
    """
    last = max((node.order for node in path if node.size), default=0)
    after = [node for node in path if node.order > last]
    for number, node in reversed(list(enumerate(after))):
        if node.func == "normalize":
            break
        if node.func in LINEAR and number > 0:
            source = after[number - 1]
            point = _head_input(recorder, node, source) or point_of(recorder, source)
            if point is not None:
                return point, source.shape[1]
    return Point(OUTPUT), path[-1].shape[1]


def _head_input(recorder: Recorder, node: Node, source: Node) -> Point | None:
    """`module:input` where a module that runs once reads `source` and gives `node`."""
    runs = Counter(call.name for call in recorder.calls)
    for call in recorder.calls:
        if call.gave is node and call.read is source and runs[call.name] == 1:
            return Point(call.name, reads_input=True)
    return None


def discover(model: nn.Module, batch: Tensor, *, output: Any = None) -> Layout:
    """Record one forward of `model` on `batch` (1,C,H,W); `output` picks the scores out of what it returns.

    Call it with the model in eval mode and no graph.
    """
    recorder = Recorder(model)
    result = recorder.run(batch)
    picked = output(result) if output is not None else next(tensors(result), None)
    target = recorder.node(picked) if isinstance(picked, Tensor) else None
    path = gates(recorder, target) if target is not None else []
    stages = _stages(recorder, path, (int(batch.shape[-2]), int(batch.shape[-1])))
    if not stages:
        raise GamlensError(
            "No block was found: nothing between the image and the output has the shape (B,C,h,w) on every path. "
            "Name the blocks yourself: Lens(model, blocks=['...'])."
        )
    embedding, width = embedding_of(recorder, path)
    return Layout(tuple(stages), str(embedding), width)


def order_of(model: nn.Module, batch: Tensor, points: Sequence[Point]) -> list[Point]:
    """`points` in the order in which they run, for blocks that the user named."""
    recorder = Recorder(model)
    recorder.run(batch)
    place = {event: number for number, event in enumerate(recorder.events)}
    return sorted(points, key=lambda point: (place.get(replace(point, chain=()), len(place)), len(point.chain)))


def _stages(recorder: Recorder, path: list[Node], image: tuple[int, int]) -> list[Stage]:
    spatial = [node for node in path if node.size and node.order > 0]
    while len(spatial) > 1 and spatial[-1].func.startswith("adaptive_"):
        spatial.pop()
    groups: list[list[Node]] = []
    for node in spatial:
        if groups and groups[-1][0].octave(image) == node.octave(image):
            groups[-1].append(node)
        else:
            groups.append([node])
    picked: list[tuple[Node, Point]] = []
    for group in groups:
        for node in reversed(group):
            point = point_of(recorder, node)
            if point is not None and (node is spatial[-1] or not _inside_transition(recorder, node, image)):
                picked.append((node, point))
                break
    strides = [max(1, round(image[0] / node.shape[2])) for node, _ in picked]
    deep = [stride >= MIN_STRIDE for stride in strides]
    chosen = deep if sum(deep) >= 2 else [True] * len(picked)
    return [
        Stage(str(point), (node.shape[1], node.shape[2], node.shape[3]), stride, keep)
        for (node, point), stride, keep in zip(picked, strides, chosen, strict=True)
    ]


def _inside_transition(recorder: Recorder, node: Node, image: tuple[int, int]) -> bool:
    """Whether `node` was made inside a module that reads this resolution and returns half of it."""
    here = node.octave(image)
    for call in recorder.calls:
        if call.name in node.scope and call.read is not None and call.read.octave(image) == here:
            after = call.gave.octave(image) if call.gave is not None else None
            if here is not None and after == here + 1:
                return True
    return False


def _dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    dims = kwargs.get("dims", args[1:])
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    return tuple(int(dim) % 4 for dim in dims)
