"""A model compiled for one choice of wanted blocks; its forward returns a ForwardRecord, as `run_forward` does."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gamlens.capture.forward import ForwardRecord, check_shape
from gamlens.capture.guard import ModelGuard
from gamlens.capture.layer_points import LayerPoint, TokenGrid
from gamlens.compiled import maps, split
from gamlens.compiled.folded_weights import Workshop
from gamlens.compiled.ops import MARK
from gamlens.compiled.passes import derive_weights, fuse_relus
from gamlens.compiled.replay import Replayed
from gamlens.compiled.split import Part, Unsupported
from gamlens.compiled.tracing import count_of, held_by, result_of, trace
from gamlens.errors import GamlensError


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """The compiled parts of a model, which exchange values under the names of graph nodes.

    Attributes:
        guard: Holds the model.
        parts: The parts, in the order they run.
        workshop: The derived weights that the parts use.
        blocks: For each wanted block, the name of its value.
        embedding: The name of the embedding's value, if it is wanted.
        earlier: For each block before the wanted ones that is kept without a graph, the name of its value.
        result: The leaves of what the model returns: the name of a value, or (constant,).
        form: The structure of what the model returns, which `result` is unflattened into.
        entry: The name of the input batch.
        own: Every module of the model with whether it has hooks, and every parameter and buffer with its memory
            address. If any of these has changed, the program is out of date.
        batch: The number of images that the program was traced for, or None if it takes any number.
        guards: Conditions on the number of images under which the traced graph is valid.
        seen: Each number of images that has run, and whether with a graph. For another one, torch compiles again.
    """

    guard: ModelGuard
    parts: tuple[Part, ...]
    workshop: Workshop
    blocks: Mapping[str, str]
    embedding: str | None
    earlier: Mapping[str, str]
    result: tuple[Any, ...]
    form: pytree.TreeSpec
    entry: str
    own: tuple[tuple[Any, int], ...]
    batch: int | None
    guards: tuple[Any, ...]
    seen: set[tuple[int, bool]] = field(default_factory=set)

    def fits(self, batch: Tensor) -> bool:
        """Tell whether the program accepts this number of images, and the model's layers and tensors are the same ones.

        New values inside the same tensors are no reason to compile again: derived weights are refreshed in every call.
        """
        count = len(batch)
        if (count, True) not in self.seen and (count, False) not in self.seen and not self._takes(count):
            return False
        now = _own(self.guard.model)
        return len(now) == len(self.own) and all(
            mine is theirs and place == before for (mine, place), (theirs, before) in zip(now, self.own, strict=True)
        )

    def _takes(self, count: int) -> bool:
        """Tell whether the traced graph is valid for this number of images."""
        return self.batch in (None, count) and all(
            bool(guard.subs(dict.fromkeys(guard.free_symbols, count))) for guard in self.guards
        )

    def run(
        self, batch: Tensor, *, precision: torch.dtype | None, grids: Mapping[str, TokenGrid], graph: bool = True
    ) -> ForwardRecord:
        """Run one forward of `batch` (B,C,H,W).

        The trunk (part 0) runs with gradients off. Each wanted block that comes out of it is detached and requires a
        gradient, so that the graph for the backward starts there.

        Args:
            batch: The images.
            precision: The type that autocast computes in; None runs without autocast.
            grids: For blocks of tokens, which token belongs to which cell.
            graph: Whether there is a graph at all.
        """
        blocks: dict[str, Tensor] = {}
        names = {value: name for name, value in self.blocks.items()}
        quiet = nullcontext() if (len(batch), graph) in self.seen else warnings.catch_warnings(action="ignore")
        with self.guard.hold(), _lasting(), quiet:  # the compiler's warnings do not concern the user's model
            self.workshop.refresh()
            amp = torch.autocast(batch.device.type, dtype=precision) if precision is not None else nullcontext()
            values: dict[str, Any] = {self.entry: batch.clone() if batch.is_inference() else batch}
            for number, part in enumerate(self.parts):
                with amp, torch.set_grad_enabled(graph and number > 0):
                    made = part.call(*(values[name] for name in part.reads))
                for name, value in zip(part.gives, made, strict=True):
                    if name in names:
                        check_shape(names[name], value, grids.get(names[name]))
                        value = value if value.requires_grad else value.detach().requires_grad_(graph)
                        blocks[names[name]] = value
                    values[name] = value
        self.seen.add((len(batch), graph))
        leaves = [values[item] if isinstance(item, str) else item[0] for item in self.result]
        kept = {name: blocks[name] for name in self.blocks}
        embedding = values[self.embedding] if self.embedding is not None else None
        aside = {}
        for name, value in self.earlier.items():
            check_shape(name, values[value], grids.get(name))
            aside[name] = values[value].detach()
        return ForwardRecord(
            guard=self.guard,
            output=pytree.tree_unflatten(leaves, self.form),
            blocks=kept,
            embedding=embedding,
            earlier=aside,
            grids=grids,
            has_graph=graph,
            backward_context=partial(self._backward, self._versions()),
            make_maps=maps.make_maps,
        )

    def _versions(self) -> list[int]:
        """Return the version counters of the model's tensors, which torch raises with every change in place."""
        return [thing._version for thing, _ in self.own if isinstance(thing, Tensor)]

    @contextmanager
    def _backward(self, versions: list[int]) -> Iterator[None]:
        """Make the context of a backward, or raise if the weights have changed since its forward.

        Derived weights are overwritten without autograd's knowledge (`Derived.rooms`), so this replaces its own check.
        """
        if self._versions() != versions:
            raise GamlensError(
                "The weights were changed since the forward, so its gradients cannot be computed any more: trace the "
                "images again."
            )
        with _lasting():
            yield


def build(
    guard: ModelGuard,
    batch: Tensor,
    blocks: Sequence[LayerPoint],
    *,
    embedding: LayerPoint | None = None,
    precision: torch.dtype | None = None,
    earlier: Sequence[LayerPoint] = (),
) -> Program:
    """Trace a model, cut it at the wanted blocks, and compile the parts.

    Args:
        guard: Holds the model.
        batch: Images (B,C,H,W) like those that the program will run on. If B is 1, it is made for one image only.
        blocks: The wanted blocks.
        embedding: The tensor that is the embedding, if it is wanted.
        precision: The type of the derived weights; None keeps that of the model.
        earlier: Which blocks before `blocks` are kept, too, outside of the graph.

    Raises:
        Unsupported: If the model cannot be compiled; the message says why.
    """
    model = guard.model
    wanted = list(dict.fromkeys([*blocks, *([embedding] if embedding is not None else []), *earlier]))
    own = tuple(_own(model))
    if any(map(_hooked, model.modules())):
        raise Unsupported("there are hooks on it")
    with guard.hold():
        traced = trace(model, batch, wanted)
        graph = traced.graph_module.graph
        held, entry = held_by(traced, model)
        cuts = {wanted.index(point) for point in blocks}
        marks = {node.args[1]: node for node in graph.nodes if node.target is MARK}
        if len(marks) != sum(node.target is MARK for node in graph.nodes) or set(marks) != set(range(len(wanted))):
            raise Unsupported("a wanted block does not run exactly once")
        if not all(marks[number].users for number in cuts):
            raise Unsupported("a wanted block is changed in place, and the value that this returns is not used")
        for mark in (marks[wanted.index(point)] for point in earlier):
            with graph.inserting_before(mark):  # a copy, which the network cannot change in place later
                mark.update_arg(0, graph.call_function(torch.ops.aten.clone.default, (mark.args[0],)))
        workshop = derive_weights(graph, held, precision)
        trunk = {node for node, number in split.stages(graph, cuts, held).items() if number == 0}
        if _has_fused_kernels(batch):
            fuse_relus(graph, trunk)
        parts = split.parts(graph, traced.graph_module, split.stages(graph, cuts, held), held)
    fast = [replace(part, call=torch.compile(part.call, backend=split.BACKEND)) for part in parts]
    if fast[0].reads == (entry.name,):
        fast[0] = replace(fast[0], call=Replayed(fast[0].call))
    named = {point: marks[number].args[0].name for number, point in enumerate(wanted)}
    count, guards = count_of(entry)
    assert traced.call_spec.out_spec is not None
    return Program(
        guard=guard,
        parts=tuple(fast),
        workshop=workshop,
        blocks={str(point): named[point] for point in blocks},
        embedding=named[embedding] if embedding is not None else None,
        earlier={str(point): named[point] for point in earlier},
        result=result_of(traced, held),
        form=traced.call_spec.out_spec,
        entry=entry.name,
        own=own,
        batch=count,
        guards=guards,
    )


def _has_fused_kernels(batch: Tensor) -> bool:
    """Tell whether cuDNN's kernels for a convolution with a ReLU can be used."""
    return batch.is_cuda and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


def _own(model: nn.Module) -> list[tuple[Any, int]]:
    """List every module with whether it has hooks, and every parameter and buffer with its memory address.

    This runs in every call, so it walks the modules itself, which is faster than the generators behind `modules()`
    and `parameters()`.
    """
    found: list[tuple[Any, int]] = []
    seen, waiting = {id(model)}, [model]
    while waiting:
        module = waiting.pop()
        found.append((module, _hooked(module)))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                found.append((tensor, tensor.data_ptr()))
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return found


def _hooked(module: nn.Module) -> bool:
    """Tell whether a module has hooks. The traced graph would leave out what they do, in the forward and backward."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


@contextmanager
def _lasting() -> Iterator[None]:
    """Allow a compiled backward to run more than once: torch must not reuse the memory of the tensors saved for it."""
    with ExitStack() as stack:
        if hasattr(torch._functorch.config, "donated_buffer"):
            stack.enter_context(torch._functorch.config.patch(donated_buffer=False))
        yield
