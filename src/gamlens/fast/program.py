"""One model, traced and cut for some wanted blocks: a forward that gives the same Tail as the plain one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from gamlens.capture import Tail, check_shape
from gamlens.fast import split
from gamlens.fast.derive import Workshop
from gamlens.fast.ops import MARK
from gamlens.fast.passes import Held, derive_weights, fuse_relus
from gamlens.fast.replay import Replayed
from gamlens.fast.split import Part, Unsupported
from gamlens.points import Grid, Point
from gamlens.reader import Reader
from gamlens.settle import settled, unwrap

BACKEND = "inductor"


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """`parts` run one after another; `blocks` and `embedding` name the values that are kept.

    `own` are the tensors of the model that it was made from: where any of them is another one now, or elsewhere, it is
    stale.
    """

    model: nn.Module
    parts: tuple[Part, ...]
    workshop: Workshop
    blocks: Mapping[str, str]
    embedding: str | None
    result: tuple[Any, ...]
    form: pytree.TreeSpec
    entry: str
    own: tuple[tuple[Tensor, int], ...]
    batch: int | None
    seen: set[int] = field(default_factory=set)

    def fits(self, batch: Tensor) -> bool:
        """Whether it is made for this many images, and from the model's weights as they are."""
        if self.batch not in (None, len(batch)):
            return False
        now = _tensors(self.model)
        return len(now) == len(self.own) and all(
            mine is theirs and mine.data_ptr() == place for mine, (theirs, place) in zip(now, self.own, strict=True)
        )

    def run(self, batch: Tensor, *, precision: torch.dtype | None, grids: Mapping[str, Grid]) -> Tail:
        """One forward of `batch` (B,C,H,W)."""
        blocks: dict[str, Tensor] = {}
        names = {value: name for name, value in self.blocks.items()}
        with settled(self.model), _lasting(), nullcontext() if len(batch) in self.seen else _quietly():
            self.workshop.refresh()
            amp = torch.autocast(batch.device.type, dtype=precision) if precision is not None else nullcontext()
            values: dict[str, Any] = {self.entry: batch.clone() if batch.is_inference() else batch}
            for number, part in enumerate(self.parts):
                with amp, torch.set_grad_enabled(number > 0):
                    made = part.call(*(values[name] for name in part.reads))
                for name, value in zip(part.gives, made, strict=True):
                    if name in names:
                        check_shape(names[name], value, grids.get(names[name]))
                        value = value if value.requires_grad else value.detach().requires_grad_(True)
                        blocks[names[name]] = value
                    values[name] = value
        self.seen.add(len(batch))
        leaves = [values[item] if isinstance(item, str) else item[0] for item in self.result]
        kept = {name: blocks[name] for name in self.blocks}
        embedding = values[self.embedding] if self.embedding is not None else None
        return Tail(
            self.model, pytree.tree_unflatten(leaves, self.form), kept, embedding, grids, around=_lasting, compiled=True
        )


def build(
    model: nn.Module,
    batch: Tensor,
    blocks: Sequence[Point],
    *,
    embedding: Point | None = None,
    precision: torch.dtype | None = None,
) -> Program:
    """Trace `model` on images like those of `batch` and compile it, cut at `blocks`. `Unsupported` says why not."""
    model = unwrap(model)
    wanted = list(dict.fromkeys([*blocks, *([embedding] if embedding is not None else [])]))
    own = _tensors(model)
    with settled(model):
        traced = _trace(model, batch, wanted)
        graph = traced.graph_module.graph
        held, entry = _held(traced, model)
        cuts = {wanted.index(point) for point in blocks}
        marks = {node.args[1]: node for node in graph.nodes if node.target is MARK}
        if len(marks) != sum(node.target is MARK for node in graph.nodes) or set(marks) != set(range(len(wanted))):
            raise Unsupported("a wanted block does not run exactly once")
        workshop = derive_weights(graph, held, precision)
        trunk = {node for node, number in split.stages(graph, cuts, held).items() if number == 0}
        if _has_fused_kernels(batch):
            fuse_relus(graph, trunk)
        parts = split.parts(graph, traced.graph_module, split.stages(graph, cuts, held), held)
    fast = [replace(part, call=torch.compile(part.call, backend=BACKEND)) for part in parts]
    if fast[0].reads == (entry.name,):
        fast[0] = replace(fast[0], call=Replayed(fast[0].call))
    named = {point: marks[number].args[0].name for number, point in enumerate(wanted)}
    size = entry.meta["val"].shape[0]
    assert traced.call_spec.out_spec is not None
    return Program(
        model,
        tuple(fast),
        workshop,
        {str(point): named[point] for point in blocks},
        named[embedding] if embedding is not None else None,
        _result(traced),
        traced.call_spec.out_spec,
        entry.name,
        tuple((tensor, tensor.data_ptr()) for tensor in own),
        size if isinstance(size, int) else size.node.maybe_as_int(),
    )


def _has_fused_kernels(batch: Tensor) -> bool:
    return batch.is_cuda and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


def _trace(model: nn.Module, batch: Tensor, wanted: list[Point]) -> ExportedProgram:
    """The model as a graph, for any number of images where it allows that; wanted tensors are marked by number."""
    example = torch.zeros_like(batch[:1]).repeat(2, 1, 1, 1)
    reader = Reader(model, wanted, lambda point, tensor: MARK(tensor, wanted.index(point)))
    with reader.attached():
        try:
            return torch.export.export(model, (example,), dynamic_shapes=({0: Dim.AUTO},), strict=False)
        except Exception as error:
            raise Unsupported(f"it cannot be traced: {reason(error)}") from error


def _held(traced: ExportedProgram, model: nn.Module) -> tuple[Held, Node]:
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


def _result(traced: ExportedProgram) -> tuple[Any, ...]:
    """What the model returns, flat: names of values, or (constant,)."""
    output = next(node for node in traced.graph_module.graph.nodes if node.op == "output")
    return tuple(item.name if isinstance(item, Node) else (item,) for item in output.args[0])


def _tensors(model: nn.Module) -> list[Tensor]:
    """Every parameter and buffer, in order: `parameters()` without its generators, for it is asked in every call."""
    found, seen, waiting = [], {id(model)}, [model]
    while waiting:
        module = waiting.pop()
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                found.append(tensor)
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return found


@contextmanager
def _lasting() -> Iterator[None]:
    """A compiled backward may run more than once: its inputs are not given away."""
    with ExitStack() as stack:
        if hasattr(torch._functorch.config, "donated_buffer"):
            stack.enter_context(torch._functorch.config.patch(donated_buffer=False))
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """While parts are compiled: what the compiler warns of is not about the user's model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, Unsupported):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
