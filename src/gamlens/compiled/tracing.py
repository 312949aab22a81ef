"""A model as a graph, wanted tensors marked in it; what a graph cannot hold is found out here."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from gamlens.capture.hooks import TensorTap
from gamlens.capture.layer_points import LayerPoint
from gamlens.compiled.ops import MARK
from gamlens.compiled.passes import Held
from gamlens.compiled.split import Unsupported

_guard = threading.Lock()


def trace(model: nn.Module, batch: Tensor, wanted: list[LayerPoint]) -> ExportedProgram:
    """The model as a graph, for one image or for any number where it allows that; wanted tensors are marked."""
    several = len(batch) > 1
    example = torch.zeros_like(batch[:1]).repeat(1 + several, 1, 1, 1)
    reader = TensorTap(model, wanted, lambda point, tensor: MARK(tensor, wanted.index(point)))
    free = ({0: Dim.AUTO},) if several else None
    with reader.attached(), torch.enable_grad(), _without_functions(), warnings.catch_warnings(action="ignore"):
        warnings.filterwarnings("error", message=".*assigned during export")
        try:
            return torch.export.export(model, (example,), dynamic_shapes=free, strict=False)
        except Exception as error:
            raise Unsupported(f"it cannot be traced: {reason(error)}") from error


@contextmanager
def _without_functions() -> Iterator[None]:
    """An autograd.Function is an error in this thread: its forward would be traced, its own backward lost."""
    thread = threading.get_ident()
    with _guard:
        before = torch.autograd.Function.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                raise Unsupported(f"{cls.__name__} has a backward of its own")
            return before.__get__(None, cls)(*args, **kwargs)

        torch.autograd.Function.apply = classmethod(apply)
        try:
            yield
        finally:
            torch.autograd.Function.apply = before


def held_by(traced: ExportedProgram, model: nn.Module) -> tuple[Held, Node]:
    """The graph's inputs: the model's tensors, out of any graph, and the one that is the batch."""
    known = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    places = {node.name: node for node in traced.graph_module.graph.nodes if node.op == "placeholder"}
    held: Held = {}
    entry = None
    for item in traced.graph_signature.input_specs:
        node = places[item.arg.name]
        if item.kind == InputKind.USER_INPUT:
            entry = node
            continue
        tensor = known.get(str(item.target), traced.constants.get(str(item.target)))
        if not isinstance(tensor, Tensor):
            raise Unsupported(f"it reads {item.target}, which is not a tensor")
        held[node] = tensor.detach()
    if entry is None or any(item.kind != OutputKind.USER_OUTPUT for item in traced.graph_signature.output_specs):
        raise Unsupported("its forward changes its own buffers or its input")
    return held, entry


def result_of(traced: ExportedProgram, held: Held) -> tuple[Any, ...]:
    """What the model returns, flat: names of values, or (constant,), as is a tensor of its own."""
    output = next(node for node in traced.graph_module.graph.nodes if node.op == "output")
    leaves = [held.get(item, item) if isinstance(item, Node) else item for item in output.args[0]]
    return tuple(item.name if isinstance(item, Node) else (item,) for item in leaves)


def count_of(entry: Node) -> tuple[int | None, tuple[Any, ...]]:
    """How many images the graph takes, None for any number, and what such a number must fulfil."""
    size = entry.meta["val"].shape[0]
    if isinstance(size, int) or size.node.maybe_as_int() is not None:
        return int(size), ()
    if not size.node.expr.is_symbol:
        raise Unsupported(f"it takes {size} images")
    return None, tuple(guard.expr for guard in size.node.shape_env.guards)


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, Unsupported):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
