"""Rewrite a traced graph: fold batch norms, use weights in half precision, fuse convolutions with the ReLU after them.

An exported graph takes the model's parameters and buffers as inputs (placeholder nodes). `held` maps these nodes to
their tensors.
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
    """Replace the weights of convolutions and linear layers by derived ones.

    Derived weights have the type `dtype`, or keep their own if it is None. A batch norm that directly follows a
    convolution is folded into the weights and removed from the graph. `graph` and `held` are changed in place.

    Returns:
        The Workshop that computes the derived weights.
    """
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
    """Replace each relu(conv(x)) and relu(conv(x) + other) by one operator.

    Only nodes in `nodes` are fused, and only where nothing else reads the result of the convolution or of the sum.
    `graph` and `nodes` are changed in place.

    Returns:
        How many operators were fused.
    """
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
    """Yield (convolution, other operand) for each operand of `add` that is a convolution which can be fused with it.

    Both operands must have the same shape, since the fused kernel does not broadcast. An in-place addition writes to
    its first operand, so there the convolution must be the first.
    """
    for conv, other in (add.args, add.args[::-1]):
        if not isinstance(conv, Node) or not isinstance(other, Node) or conv is other:
            continue
        same = _size(conv) is not None and _size(conv) == _size(other)
        if conv.target is CONV and len(conv.users) == 1 and same and (add.target is ADDS[0] or conv is add.args[0]):
            yield conv, other


def _shape(conv: Node) -> tuple[Any, ...] | None:
    """Return stride, padding, dilation and groups of a convolution, or None if padding is a string such as "same"."""
    given = list(conv.args[3:])
    found = tuple(given[i] if i < len(given) else CONV_DEFAULTS[i] for i in range(4))
    return found if all(isinstance(numbers, list | tuple) for numbers in found[:3]) else None


def _norm_after(conv: Node, held: Held) -> Node | None:
    """Return the batch norm node after a convolution, if it is in eval mode and the only reader of the convolution."""
    user = next(iter(conv.users), None)
    if len(conv.users) != 1 or user is None or user.target is not NORM or user.args[0] is not conv:
        return None
    tensors, training = user.args[1:5], user.args[5]
    known = all(tensor is None or tensor in held for tensor in tensors) and None not in tensors[2:]
    return user if known and training is False else None


def _norm_of(node: Node, held: Held) -> Norm:
    """Collect the tensors of a batch norm node: its arguments are x, scale, shift, mean, variance, ..., eps."""
    places: tuple[Any, ...] = node.args
    scale, shift = (held[place] if place is not None else None for place in places[1:3])
    return Norm(scale, shift, held[places[3]], held[places[4]], float(places[7]))


def _hold(graph: Graph, held: Held, name: str, tensor: Tensor) -> Node:
    """Add `tensor` to the graph as a new input, and to `held`."""
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        node = graph.placeholder(name)
    held[node] = tensor
    return node


def _drop_unused(graph: Graph, held: Held) -> None:
    """Remove the model's tensors that the graph does not read any more."""
    for node in [node for node in held if not node.users]:
        graph.erase_node(node)
        del held[node]


def _size(node: Node) -> Any:
    """Return the shape that tracing found for a node's result, or None."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None
