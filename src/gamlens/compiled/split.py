"""A traced graph cut into parts: what runs before the first block, between blocks, and after the last."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from gamlens.compiled.ops import MARK

BACKEND = "inductor"


class Unsupported(Exception):  # noqa: N818 - a finding, not a fault
    """This model, or this way of asking, cannot be made fast; it runs as it is."""


@dataclass(frozen=True, eq=False)
class Part:
    """One piece of the graph: `call` takes the values it `reads` and gives those it `gives`, by name."""

    call: Callable[..., Any]
    reads: tuple[str, ...]
    gives: tuple[str, ...]


def stages(graph: Graph, cuts: set[int], held: Mapping[Node, Tensor]) -> dict[Node, int]:
    """How many marked blocks every node lies behind; marks whose number is in `cuts` count."""
    found: dict[Node, int] = {}
    for node in graph.nodes:
        if node in held or node.op in ("get_attr", "output"):
            continue
        before = max((found[source] for source in node.all_input_nodes if source in found), default=0)
        found[node] = before + (node.target is MARK and node.args[1] in cuts)
        _check_writes(node, found, held)
    return found


def parts(graph: Graph, root: nn.Module, stage: Mapping[Node, int], held: Mapping[Node, Tensor]) -> list[Part]:
    """One part a stage, not compiled yet. A mark becomes a copy at the beginning of the part behind it."""
    return [_part(graph, root, number, stage, held) for number in range(max(stage.values()) + 1)]


def _part(graph: Graph, root: nn.Module, number: int, stage: Mapping[Node, int], held: Mapping[Node, Tensor]) -> Part:
    made, known = Graph(), dict[Node, Node]()
    mine = [node for node in graph.nodes if stage.get(node) == number and node.op != "placeholder"]
    attributes: dict[str, Any] = {}
    reads: list[str] = []

    def value(node: Node) -> Node:
        if node not in known:
            if node in held or node.op == "get_attr":
                name = f"held_{node.name}"
                attributes[name] = held[node] if node in held else getattr(root, str(node.target))
                known[node] = made.get_attr(name)
            else:
                reads.append(node.name)
                known[node] = made.placeholder(node.name)
        return known[node]

    for node in mine:  # placeholders come first
        for source in node.all_input_nodes:
            if source not in known and source not in mine and source not in held and source.op != "get_attr":
                value(source)
    for node in mine:
        if node.target is MARK:
            known[node] = made.call_function(torch.ops.aten.clone.default, (value(node.args[0]),))
        else:
            known[node] = made.node_copy(node, value)
    gives = [node for node in mine if any(_outside(user, number, stage) for user in node.users)]
    made.output(tuple(known[node] for node in gives))
    module = GraphModule(_root(attributes), made)
    return Part(module, tuple(reads), tuple(node.name for node in gives))


def _outside(user: Node, number: int, stage: Mapping[Node, int]) -> bool:
    """Whether a value is needed after its part: by another one, by the result, or because it is marked."""
    return user.op == "output" or user.target is MARK or stage.get(user) != number


def _root(attributes: Mapping[str, Any]) -> nn.Module:
    root = nn.Module()
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            root.register_buffer(name, value, persistent=False)
        else:
            setattr(root, name, value)
    return root


def _check_writes(node: Node, found: Mapping[Node, int], held: Mapping[Node, Tensor]) -> None:
    """Work in place is fine inside a part; across parts, or on the model's own tensors, it is not."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    arguments: tuple[Any, ...] = node.args
    for argument, given in zip(schema.arguments, arguments, strict=False):
        written = argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Node)
        if written and (given in held or found.get(given) != found[node]):
            raise Unsupported(f"{node.target} writes to {given.name}, which lies in another part of the network")
