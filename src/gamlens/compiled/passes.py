"""Changes to a traced graph: batch norms folded, weights in half precision, convolution and ReLU in one kernel.

`held` are the graph's inputs that are tensors of the model, by node.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from gamlens.compiled.folded_weights import Norm, Workshop
from gamlens.compiled.ops import CONV_ADD_RELU, CONV_RELU

aten = torch.ops.aten
CONV, NORM, LINEAR = aten.conv2d.default, aten.batch_norm.default, aten.linear.default
RELUS = (aten.relu.default, aten.relu_.default)
ADDS = (aten.add.Tensor, aten.add_.Tensor)
CONV_DEFAULTS = ([1, 1], [0, 0], [1, 1], 1)
Held = dict[Node, Tensor]


def derive_weights(graph: Graph, held: Held, dtype: torch.dtype | None) -> Workshop:
    """Convolutions and linear layers get weights of `dtype`; a batch norm after a convolution is folded into them."""
    workshop = Workshop()
    for node in [node for node in graph.nodes if node.target in (CONV, LINEAR)]:
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
        if weight not in held or (bias is not None and bias not in held):
            continue
        norm = _norm_after(node, held) if node.target is CONV else None
        if norm is None and dtype is None:
            continue
        found = _norm_of(norm, held) if norm is not None else None
        made = workshop.derive(held[weight], held[bias] if bias is not None else None, found, dtype)
        names = [(f"{node.name}_weight", made.made_weight), (f"{node.name}_bias", made.made_bias)]
        new = [_hold(graph, held, name, tensor) if tensor is not None else None for name, tensor in names]
        node.args = (node.args[0], *new, *node.args[3:])
        if norm is not None:
            norm.replace_all_uses_with(node)
            graph.erase_node(norm)
    _drop_unused(graph, held)
    return workshop


def fuse_relus(graph: Graph, nodes: set[Node]) -> int:
    """Each relu(conv) and relu(conv + other) among `nodes` becomes one operator; returns how many."""
    count = 0
    for relu in [node for node in graph.nodes if node.target in RELUS]:
        source = relu.args[0]
        if relu not in nodes or len(source.users) != 1:
            continue
        conv, other = source, None
        if source.target in ADDS and not source.kwargs:
            conv, other = next(_operands(source), (source, None))
        if conv.target is not CONV or conv not in nodes or len(conv.users) != 1 or len(conv.args) < 2:
            continue
        shape = _shape(conv)
        if shape is None:
            continue
        x, weight, bias = conv.args[0], conv.args[1], conv.args[2] if len(conv.args) > 2 else None
        with graph.inserting_before(relu):
            arguments = (x, weight, bias, *shape) if other is None else (x, other, weight, bias, *shape)
            fused = graph.call_function(CONV_RELU if other is None else CONV_ADD_RELU, arguments)
        fused.meta = dict(relu.meta)
        nodes.add(fused)
        relu.replace_all_uses_with(fused)
        for node in (relu, source, conv) if other is not None else (relu, conv):
            graph.erase_node(node)
            nodes.discard(node)
        count += 1
    return count


def _operands(add: Node) -> Iterator[tuple[Node, Node]]:
    """A convolution and what is added to it, where they have one shape and the sum may take the other's place."""
    for conv, other in (add.args, add.args[::-1]):
        if not isinstance(conv, Node) or not isinstance(other, Node) or conv is other:
            continue
        same = _size(conv) is not None and _size(conv) == _size(other)
        if conv.target is CONV and len(conv.users) == 1 and same and (add.target is ADDS[0] or conv is add.args[0]):
            yield conv, other


def _shape(conv: Node) -> tuple[Any, ...] | None:
    """Stride, padding, dilation and groups, all of them; None where padding is given by name."""
    given = list(conv.args[3:])
    found = tuple(given[i] if i < len(given) else CONV_DEFAULTS[i] for i in range(4))
    return found if all(isinstance(numbers, list | tuple) for numbers in found[:3]) else None


def _norm_after(conv: Node, held: Held) -> Node | None:
    """The batch norm in eval mode that is all that reads this convolution."""
    user = next(iter(conv.users), None)
    if len(conv.users) != 1 or user is None or user.target is not NORM or user.args[0] is not conv:
        return None
    tensors, training = user.args[1:5], user.args[5]
    known = all(tensor is None or tensor in held for tensor in tensors) and None not in tensors[2:]
    return user if known and training is False else None


def _norm_of(node: Node, held: Held) -> Norm:
    places: tuple[Any, ...] = node.args
    scale, shift = (held[place] if place is not None else None for place in places[1:3])
    return Norm(scale, shift, held[places[3]], held[places[4]], float(places[7]))


def _hold(graph: Graph, held: Held, name: str, tensor: Tensor) -> Node:
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        node = graph.placeholder(name)
    held[node] = tensor
    return node


def _drop_unused(graph: Graph, held: Held) -> None:
    for node in [node for node in held if not node.users]:
        graph.erase_node(node)
        del held[node]


def _size(node: Node) -> Any:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None
