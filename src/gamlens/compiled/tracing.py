"""Export a model to a graph in which the wanted tensors are marked, and refuse models that a graph cannot represent."""

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

_guard = threading.Lock()  # held while torch.autograd.Function.apply is replaced


def trace(model: nn.Module, batch: Tensor, wanted: list[LayerPoint]) -> ExportedProgram:
    """Export a model to a graph in which a MARK stands at each wanted tensor.

    Args:
        model: The model, in eval mode.
        batch: Images (B,C,H,W). The graph is made for one image if B is 1, and else for any number of images, if the
            model allows that. Tracing runs on zeros of this shape.
        wanted: The tensors to mark; the mark's number is the index in this list.
    """
    several = len(batch) > 1
    example = torch.zeros_like(batch[:1]).repeat(1 + several, 1, 1, 1)
    reader = TensorTap(model, wanted, lambda point, tensor, in_place: MARK(tensor, wanted.index(point)))
    free = ({0: Dim.AUTO},) if several else None
    with reader.attached(), torch.enable_grad(), _without_functions(), warnings.catch_warnings(action="ignore"):
        warnings.filterwarnings("error", message=".*assigned during export")
        try:
            return torch.export.export(model, (example,), dynamic_shapes=free, strict=False)
        except Exception as error:
            raise Unsupported(f"it cannot be traced: {reason(error)}") from error


@contextmanager
def _without_functions() -> Iterator[None]:
    """Make every autograd.Function raise Unsupported inside this context and thread.

    Tracing records the operations of its forward, so its custom backward would silently be lost. `Function.apply` is
    replaced for the whole process; other threads get the original behaviour.
    """
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
    """Sort the inputs of the exported graph.

    Returns:
        The nodes of the model's parameters, buffers and constants with their (detached) tensors, and the node of the
        input batch.
    """
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
    """List the leaves of what the model returns: the name of a computed value, or (constant,).

    A constant is a plain Python value, or one of the model's own tensors.
    """
    output = next(node for node in traced.graph_module.graph.nodes if node.op == "output")
    leaves = [held.get(item, item) if isinstance(item, Node) else item for item in output.args[0]]
    return tuple(item.name if isinstance(item, Node) else (item,) for item in leaves)


def count_of(entry: Node) -> tuple[int | None, tuple[Any, ...]]:
    """Return how many images the graph takes (None for any number), and the conditions that the number must meet."""
    size = entry.meta["val"].shape[0]
    if isinstance(size, int) or size.node.maybe_as_int() is not None:
        return int(size), ()
    if not size.node.expr.is_symbol:
        raise Unsupported(f"it takes {size} images")
    return None, tuple(guard.expr for guard in size.node.shape_env.guards)


def reason(error: Exception) -> str:
    """Describe an exception in one line."""
    if isinstance(error, Unsupported):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
