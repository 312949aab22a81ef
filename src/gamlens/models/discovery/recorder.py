"""A record of one forward of any network: every tensor is a node, every run of a module is a call."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.capture.layer_points import LayerPoint, TokenGrid, function_name, only_tensor, tensors
from gamlens.models.discovery import positions
from gamlens.models.discovery.positions import Positions

LONGEST_CHAIN = 6  # how many functions after a module the name of a point may have
_PERMUTES = {(0, 2, 3, 1): True, (0, 3, 1, 2): False}  # dims of a permute: whether channels are last afterwards


@dataclass(eq=False)
class Node:
    """A tensor of the recorded forward: where it came from and what it is called.

    Attributes:
        order: Its number among all tensors of the forward; the image is 0.
        inputs: The nodes that it was computed from, by the function `func`.
        scope: The modules that were running, outermost first.
        names: The modules that returned it.
        channels_last: For a tensor with four dimensions, whether it is (B,h,w,C) rather than (B,C,h,w).
        positions: Where its elements lie in the image, for tokens.
        from_tokens: Whether it was computed from tokens in a way that lost the places of its elements.
        sole_result: Whether it is the only thing that its function returned.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    order: int
    inputs: tuple[Node, ...]
    func: str
    scope: tuple[str, ...]
    names: list[str] = field(default_factory=list)
    channels_last: bool = False
    positions: Positions | None = None
    from_tokens: bool = False
    sole_result: bool = False

    @property
    def live(self) -> bool:
        """Whether it depends on the image."""
        return self.order == 0 or bool(self.inputs)

    @property
    def grid(self) -> TokenGrid | None:
        """Where its tokens lie in the image; None for a map, and for a tensor without places."""
        return self.positions.grid if self.positions is not None and self.tensor.is_floating_point() else None

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of an activation; None for a tensor that has no positions, or only one."""
        if (grid := self.grid) is not None:
            return grid.height, grid.width
        if (
            len(self.shape) != 4
            or self.from_tokens
            or self.positions is not None
            or not self.tensor.is_floating_point()
        ):
            return None
        height, width = self.shape[1:3] if self.channels_last else self.shape[2:4]
        return (height, width) if height * width > 1 else None

    @property
    def channels(self) -> int:
        return self.shape[-1 if self.channels_last or self.grid else 1]


@dataclass(frozen=True)
class ModuleCall:
    """One run of one module: what it read and what it returned, as nodes."""

    name: str
    read: Node | None
    gave: Node | None


class Recorder(TorchFunctionMode):
    """Records one forward: call `run`, then read the attributes.

    Args:
        model: The network.
        start: The number of a node. Grad mode is switched on when that node is made, so that gradients can be taken
            with respect to it and to all later nodes.

    Attributes:
        all: The nodes, in the order in which they were made.
        calls: The runs of modules.
        runs: How often each module ran.
        events: The order in which modules began (`module:input`) and ended (`module`).
        nodes: The nodes by id of their tensor. A node keeps its tensor alive, so that no id is used twice.
        stack: The modules that are running, outermost first, each with the node that it read.
        constants: By id, the tensors that do not depend on the image. They are kept alive for the same reason.
    """

    def __init__(self, model: nn.Module, *, start: int | None = None) -> None:
        super().__init__()
        self.model, self.thread, self.start = model, threading.get_ident(), start
        self.nodes: dict[int, Node] = {}
        self.all: list[Node] = []
        self.calls: list[ModuleCall] = []
        self.runs: Counter[str] = Counter()
        self.stack: list[tuple[str, Node | None]] = []
        self.events: list[LayerPoint] = []
        self.constants: dict[int, Tensor] = {}

    def run(self, batch: Tensor, finish: Callable[[Any], Any] = lambda output: output) -> Any:
        """Record the model on `batch` (1,C,H,W), and `finish` on the model's output. Returns what `finish` returns."""
        self._node(batch, (), "")
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    enter, leave = partial(self._enter, name), partial(self._leave, name)
                    stack.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                    stack.enter_context(module.register_forward_hook(leave))
            stack.enter_context(self)
            return finish(self.model(batch))

    def node(self, tensor: Tensor) -> Node | None:
        """The node of a tensor; None for a tensor that this forward did not make."""
        return self.nodes.get(id(tensor))

    def octave(self, node: Node) -> int | None:
        """How often the image was halved to reach the node's height, rounded, so that padding does not matter."""
        return round(math.log2(max(self.all[0].shape[-2] / node.size[0], 1))) if node.size else None

    def point(self, node: Node) -> LayerPoint | None:
        """The name of a node: a module that runs once, or such a module and the functions applied to its output.

        None where it has no such name.
        """
        chain: tuple[str, ...] = ()
        last, grid = node.channels_last and node.size is not None and node.grid is None, node.grid is not None
        for _ in range(LONGEST_CHAIN):
            once = [name for name in node.names if self.runs[name] == 1]
            if once:
                name = min(once, key=lambda name: name.count("."))
                return LayerPoint(name, chain=chain, channels_last=last, tokens=grid)
            if not node.inputs or not node.func:
                return None
            source = max(node.inputs, key=lambda source: source.order)
            if sum(other.func == node.func and source in other.inputs for other in self.all) != 1:
                return None
            chain, node = (node.func, *chain), source
        return None

    def _node(self, tensor: Tensor, inputs: tuple[Node, ...], func: str) -> Node:
        scope = tuple(name for name, _ in self.stack)
        node = Node(tensor, tuple(tensor.shape), len(self.all), inputs, func, scope)
        if len(node.shape) == 4 and inputs:
            node.channels_last = inputs[0].channels_last and len(inputs[0].shape) == 4
        self.nodes[id(tensor)] = node
        self.all.append(node)
        return node

    def _known(self, value: Any) -> tuple[Node, ...]:
        found = map(self.node, tensors(value))
        return tuple(dict.fromkeys(node for node in found if node is not None and node.live))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = self._known((args, kwargs))
        result = func(*args, **kwargs)
        if threading.get_ident() != self.thread:
            return result
        if not inputs:
            self.constants.update((id(tensor), tensor) for tensor in tensors(result))
            return result
        if isinstance(result, Tensor) and len(self.all) == self.start:
            torch.set_grad_enabled(True)
            result = result.detach().requires_grad_(True).clone()
        name, results = function_name(func), list(tensors(result))
        known = self.start is None and _must_follow(name, inputs, results)
        places = (
            positions.follow(func, name, args, kwargs, results, self._positions) if known else [None] * len(results)
        )
        for tensor, where in zip(results, places, strict=True):
            node = self._node(tensor, inputs, name)
            if node.func == "permute" and (dims := _dims(args, kwargs)) in _PERMUTES:
                node.channels_last = _PERMUTES[dims]
            _place(node, where)
            node.sole_result = tensor is result
        return result

    def _positions(self, tensor: Tensor) -> Positions | None:
        """The positions of a tensor that depends on the image: those that were followed, or those that a map has."""
        node = self.node(tensor)
        if node is None or not node.live:
            return None
        if node.positions is None and len(node.shape) == 4 and node.size is not None:
            return positions.raster(node.shape, channels_last=node.channels_last)
        return node.positions

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == self.thread:
            known = self._known((args, kwargs))
            self.stack.append((name, known[0] if known else None))
            self.events.append(LayerPoint(name, reads_input=True))

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        self.events.append(LayerPoint(name))
        gave = None
        for tensor in tensors(output):
            node = self.node(tensor)
            if (node is None and id(tensor) not in self.constants) or (node is not None and not node.live):
                node = self._node(tensor, self._known(args), type(module).__name__.lower())
            if node is not None and tensor is only_tensor(output):
                gave = node
                node.names.append(name)
        self.calls.append(ModuleCall(name, self.stack.pop()[1], gave))
        self.runs[name] += 1


def _must_follow(name: str, inputs: tuple[Node, ...], results: list[Tensor]) -> bool:
    """Whether position numbers must be followed. If maps become maps, the shape alone says where elements lie."""
    maps = all(len(node.shape) == 4 and node.positions is None and not node.from_tokens for node in inputs)
    return not maps or any(result.ndim != 4 for result in results) or name in ("view", "reshape")


def _place(node: Node, where: Positions | None) -> None:
    """Set `positions`, `channels_last` and `from_tokens` of a node.

    `where` are its positions, if they could be followed. If they are those of a map, in order, only `channels_last`
    is set, since the shape of the node says the rest.
    """
    tokens = any(own.from_tokens or (own.positions is not None and len(own.shape) < 5) for own in node.inputs)
    fresh = len(node.inputs[0].shape) == 4 and node.inputs[0].size is not None and node.func not in positions.MOVES
    node.from_tokens = tokens and not (fresh and len(node.shape) == 4)
    if where is None or not node.tensor.is_floating_point():
        return
    if where.channels_last is not None:
        node.channels_last, node.from_tokens = where.channels_last, False
    else:
        node.positions = where


def _dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    dims = kwargs.get("dims", args[1:])
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    return tuple(int(dim) % 4 for dim in dims)
