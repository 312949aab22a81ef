"""Cut a traced graph into parts: before the first wanted block, between blocks, and after the last.

The stage of a node is the largest number of wanted blocks on a path from the input to it. All nodes of one stage form
a part.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from gamlens.compiled.ops import MARK

BACKEND = "inductor"


class Unsupported(Exception):  # noqa: N818 - not an error for the user: the model then runs without compilation
    """The model cannot be compiled, for the reason in the message. It then runs as it is."""


@dataclass(frozen=True, eq=False)
class Part:
    """One part of the graph: `call` takes the values named in `reads` and returns the values named in `gives`."""

    call: Callable[..., Any]
    reads: tuple[str, ...]
    gives: tuple[str, ...]


def stages(graph: Graph, cuts: set[int], held: Mapping[Node, Tensor]) -> dict[Node, int]:
    """Compute the stage of every node: the largest number of marks on a path from the input to it.

    Args:
        graph: The traced graph.
        cuts: The numbers of the marks that count: blocks do, the embedding does not.
        held: The model's tensors, which have no stage.
    """
    found: dict[Node, int] = {}
    for node in graph.nodes:
        if node in held or node.op in ("get_attr", "output"):
            continue
        before = max((found[source] for source in node.all_input_nodes if source in found), default=0)
        found[node] = before + (node.target is MARK and node.args[1] in cuts)
        _check_writes(node, found, held)
    return found


def parts(graph: Graph, root: nn.Module, stage: Mapping[Node, int], held: Mapping[Node, Tensor]) -> list[Part]:
    """Make one part per stage, not yet compiled. A mark becomes a copy at the beginning of the part after it."""
    return [_part(graph, root, number, stage, held) for number in range(max(stage.values()) + 1)]


def _part(graph: Graph, root: nn.Module, number: int, stage: Mapping[Node, int], held: Mapping[Node, Tensor]) -> Part:
    """Copy the nodes of one stage to a graph of their own.

    Values from earlier stages become inputs of the new graph, the model's tensors become its attributes, and values
    that other stages or the result need become its outputs.
    """
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

    for node in mine:  # an fx graph must have its placeholders first
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
    """Tell whether this user of a value makes it an output of its part: another part, the result, or a mark."""
    return user.op == "output" or user.target is MARK or stage.get(user) != number


def _root(attributes: Mapping[str, Any]) -> nn.Module:
    """Make a module that holds these attributes, tensors as buffers, for a GraphModule to read."""
    root = nn.Module()
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            root.register_buffer(name, value, persistent=False)
        else:
            setattr(root, name, value)
    return root


def _check_writes(node: Node, found: Mapping[Node, int], held: Mapping[Node, Tensor]) -> None:
    """Raise Unsupported if an in-place operation writes to a value of another part or to a tensor of the model."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    arguments: tuple[Any, ...] = node.args
    for argument, given in zip(schema.arguments, arguments, strict=False):
        written = argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Node)
        if written and (given in held or found.get(given) != found[node]):
            raise Unsupported(f"{node.target} writes to {given.name}, which lies in another part of the network")
