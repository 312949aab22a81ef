"""One model, traced and cut for some wanted blocks: a forward that gives the same ForwardRecord as the plain one."""

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
    """`parts` run one after another; `blocks` and `embedding` name the values that are kept.

    `own` are the modules and tensors of the model that it was made from, each with the place of its values: where any
    is another one now, or elsewhere, it is stale. `batch` is the one number of images it is made for, where there is
    one, and `guards` are what was taken for true of any number. `seen` has each number of images that it ran on, and
    whether with a graph: for another one, torch compiles again.
    """

    guard: ModelGuard
    parts: tuple[Part, ...]
    workshop: Workshop
    blocks: Mapping[str, str]
    embedding: str | None
    result: tuple[Any, ...]
    form: pytree.TreeSpec
    entry: str
    own: tuple[tuple[Any, int], ...]
    batch: int | None
    guards: tuple[Any, ...]
    seen: set[tuple[int, bool]] = field(default_factory=set)

    def fits(self, batch: Tensor) -> bool:
        """Whether it is made for this many images, and from the model's layers and weights as they are."""
        count = len(batch)
        if (count, True) not in self.seen and (count, False) not in self.seen and not self._takes(count):
            return False
        now = _own(self.guard.model)
        return len(now) == len(self.own) and all(
            mine is theirs and place == before for (mine, place), (theirs, before) in zip(now, self.own, strict=True)
        )

    def _takes(self, count: int) -> bool:
        """Whether the model would have run the same way on this many images."""
        return self.batch in (None, count) and all(
            bool(guard.subs(dict.fromkeys(guard.free_symbols, count))) for guard in self.guards
        )

    def run(
        self, batch: Tensor, *, precision: torch.dtype | None, grids: Mapping[str, TokenGrid], graph: bool = True
    ) -> ForwardRecord:
        """One forward of `batch` (B,C,H,W), with a graph from the first block on, or without any."""
        blocks: dict[str, Tensor] = {}
        names = {value: name for name, value in self.blocks.items()}
        quiet = nullcontext() if (len(batch), graph) in self.seen else warnings.catch_warnings(action="ignore")
        with self.guard.hold(), _lasting(), quiet:  # what a compiler warns of is not about the user's model
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
        return ForwardRecord(
            guard=self.guard,
            output=pytree.tree_unflatten(leaves, self.form),
            blocks=kept,
            embedding=embedding,
            grids=grids,
            has_graph=graph,
            backward_context=partial(self._backward, self._versions()),
            make_maps=maps.make_maps,
        )

    def _versions(self) -> list[int]:
        return [thing._version for thing, _ in self.own if isinstance(thing, Tensor)]

    @contextmanager
    def _backward(self, versions: list[int]) -> Iterator[None]:
        """What a backward runs under, as long as the weights are those of its forward."""
        if self._versions() != versions:
            raise GamlensError("The weights were changed since the forward: trace the images again.")
        with _lasting():
            yield


def build(
    guard: ModelGuard,
    batch: Tensor,
    blocks: Sequence[LayerPoint],
    *,
    embedding: LayerPoint | None = None,
    precision: torch.dtype | None = None,
) -> Program:
    """Trace a model on images like those of `batch` and compile it, cut at `blocks`. `Unsupported` says why not."""
    model = guard.model
    wanted = list(dict.fromkeys([*blocks, *([embedding] if embedding is not None else [])]))
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
        result=result_of(traced, held),
        form=traced.call_spec.out_spec,
        entry=entry.name,
        own=own,
        batch=count,
        guards=guards,
    )


def _has_fused_kernels(batch: Tensor) -> bool:
    return batch.is_cuda and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


def _own(model: nn.Module) -> list[tuple[Any, int]]:
    """Every module and whether it has hooks, every parameter and buffer and where it lies, in order.

    `modules()` and `parameters()` without their generators, for it is asked in every call.
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
    """Hooks may do anything, in every call and in the backward: a graph holds none of it."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


@contextmanager
def _lasting() -> Iterator[None]:
    """A compiled backward may run more than once: its inputs are not given away."""
    with ExitStack() as stack:
        if hasattr(torch._functorch.config, "donated_buffer"):
            stack.enter_context(torch._functorch.config.patch(donated_buffer=False))
        yield
