"""One forward that keeps the wanted blocks, with a graph only where it is needed.

The part of the network before the first wanted block runs without a graph. The block is detached and set to require a
gradient, so that autograd records only what follows: memory and time are those of that part. Where no gradient is
needed, nothing is recorded at all. The model is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gamlens import fuse
from gamlens.capture.attention import AttentionRecord, AttentionTap
from gamlens.capture.guard import ModelGuard, forward_error
from gamlens.capture.hooks import TensorTap
from gamlens.capture.layer_points import NHWC, LayerPoint, TokenGrid
from gamlens.capture.nonblocking import Checks
from gamlens.capture.tail import NetworkTail
from gamlens.errors import GamlensError
from gamlens.lattice import Lattice

T = TypeVar("T")
BY_NETWORK = "auto"  # what an option `method=` or `n=` takes for the network's own default
BLOCKS_BY_DEFAULT = 2  # how many blocks a map is made of by default


@dataclass(eq=False)
class ForwardRecord:
    """What one forward of B images left behind: tensors in a graph, or outside of any where `has_graph` is False.

    Attributes:
        guard: Holds the network that ran.
        output: What the network returned.
        blocks: The wanted blocks by name, in the order in which they ran. Each is laid out as in the network, such as
            tokens (B,N,C); `activations` has them as (B,C,h,w).
        embedding: The embedding of each image, where it was asked for.
        earlier: Blocks that ran before the wanted ones, by name, outside of any graph: only their values are wanted.
        network_blocks: The names of all blocks of the network, in the order they run.
        grids: For blocks of tokens, where in the image each token lies.
        lattices: For blocks of which the network reads only every second (or s-th) row and column, which ones.
        checks: What may be wrong with the blocks.
        has_graph: Whether a backward can run from the output and the embedding to the blocks.
        backward_context: Makes the context that a backward through this record runs under.
        make_maps: Makes maps from activations and gradients: `fuse.make_maps`, or a compiled version of it.
        method: The method of kind "input" that the pixels were kept for.
        attention: What was kept of a transformer's attention, where a method reads it.
        tail: Makes the part of the network after its last block, which can be run on any activations; None if no
            embedding was asked for.
    """

    guard: ModelGuard
    output: Any
    blocks: dict[str, Tensor]
    embedding: Tensor | None
    earlier: dict[str, Tensor] = field(default_factory=dict)
    network_blocks: tuple[str, ...] = ()
    grids: Mapping[str, TokenGrid] = field(default_factory=dict)
    lattices: Mapping[str, Lattice] = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)
    has_graph: bool = True
    backward_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    make_maps: fuse.MapMaker = fuse.make_maps
    method: Any = None
    attention: AttentionRecord | None = None
    tail: Callable[[], NetworkTail] | None = None

    @cached_property
    def activations(self) -> dict[str, Tensor]:
        """The blocks outside of the graph, (B,C,h,w) each."""
        return self._as_maps(self.blocks)

    @cached_property
    def earlier_activations(self) -> dict[str, Tensor]:
        """The blocks `earlier`, (B,C,h,w) each."""
        return self._as_maps(self.earlier)

    def _as_maps(self, blocks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, block in blocks.items():
            found[name] = as_map(name, block.detach(), self.grids)
        return found

    def required_embedding(self) -> Tensor:
        """The embedding of each image, (B,D), or an error where it was not asked for."""
        if self.embedding is None:
            raise GamlensError("This forward kept no embedding: ask for it with embedding=True.")
        return self.embedding

    def without_graph(self) -> ForwardRecord:
        """A record of the same blocks, without the output, the embedding and the graph."""
        blocks = {name: block.detach() for name, block in self.blocks.items()}
        return ForwardRecord(
            guard=self.guard,
            output=None,
            blocks=blocks,
            embedding=None,
            earlier=self.earlier,
            network_blocks=self.network_blocks,
            grids=self.grids,
            lattices=self.lattices,
            has_graph=False,
            attention=None if self.attention is None else self.attention.without_layers(),
            tail=self.tail,
        )


class ActivationStore:
    """Keeps blocks and the embedding as a TensorTap finds them. With `graph`, autograd records from the first block.

    The points `earlier` run before all others; copies of them are kept, outside of the graph.
    """

    def __init__(
        self,
        points: Sequence[LayerPoint],
        embedding_point: LayerPoint | None = None,
        grids: Mapping[str, TokenGrid] | None = None,
        graph: bool = True,
        earlier: Sequence[LayerPoint] = (),
    ) -> None:
        self.points, self.embedding_point, self.grids, self.graph = points, embedding_point, grids or {}, graph
        self.earlier_points = earlier
        self.wanted = [*earlier, *points, embedding_point] if embedding_point is not None else [*earlier, *points]
        self.blocks: dict[str, Tensor] = {}
        self.earlier: dict[str, Tensor] = {}
        self.versions: dict[str, int | None] = {}  # torch's count of changes of each block, as it was when kept
        self.embedding: Tensor | None = None

    def take(self, point: LayerPoint, tensor: Tensor, in_place: bool) -> Tensor:
        """Keep the tensor. The network goes on with a copy, so that a layer that works in place cannot change it.

        If the tensor was made in place, the network may go on with `tensor` itself. A copy of it is then kept, and
        where the graph begins, the copy is written back, so that `tensor` depends on it from here on.
        """
        if point == self.embedding_point and self.embedding is not None:
            raise GamlensError(f"The embedding layer {point.name!r} ran twice in one forward: name another one.")
        if point not in self.points and point not in self.earlier_points:
            self.embedding = tensor.clone()
            return tensor
        if point.name in self.blocks or point.name in self.earlier:
            raise GamlensError(
                f"Block {point.name!r} runs more than once in one forward, so it has no single activation: "
                "name a block that runs once, or call the shared part by itself."
            )
        check_shape(point.name, tensor, self.grids.get(point.name))
        if point in self.earlier_points:
            self.earlier[point.name] = tensor.detach().clone()
            self.embedding = self.earlier[point.name] if point == self.embedding_point else self.embedding
            return tensor
        if self.graph:
            torch.set_grad_enabled(True)  # the hook runs inside the forward: all that follows this block is recorded
        apart = in_place and not (self.graph and tensor.requires_grad)  # a graph that exists already stays as it is
        kept = tensor if self.graph and tensor.requires_grad else tensor.detach()
        kept = kept.clone() if apart else kept
        kept = kept.requires_grad_(True) if self.graph and not kept.requires_grad else kept
        self.blocks[point.name] = kept
        self.versions[point.name] = None if kept.is_inference() else kept._version
        if point == self.embedding_point:
            self.embedding = kept
        return _written_back(kept, tensor) if apart else kept.clone()

    def check_complete(self) -> None:
        """Raise an error that names the first wanted tensor that was not found or was changed, if there is one."""
        for point in (*self.earlier_points, *self.points):
            if point.name not in self.blocks and point.name not in self.earlier:
                raise GamlensError(
                    f"Block {point.name!r} did not run in this forward: name one that the model calls, "
                    "as `lens.blocks` or `gamlens blocks` list them."
                )
            version = self.versions.get(point.name)
            if version is not None and self.blocks[point.name]._version != version:
                raise GamlensError(
                    f"The model changed block {point.name!r} in place after it was read, so its activation is lost: "
                    "name another block (blocks=), or replace the in-place call after it (such as F.relu_(y), "
                    "y.add_(...) or y *= 2) by one that makes a new tensor (y = F.relu(y))."
                )
        if self.embedding_point is not None and self.embedding is None:
            name = self.embedding_point.name
            raise GamlensError(f"The embedding layer {name!r} did not run in this forward: name another one.")


def run_forward(
    guard: ModelGuard,
    batch: Tensor,
    points: Sequence[LayerPoint],
    *,
    embedding: LayerPoint | None = None,
    precision: torch.dtype | None = None,
    during: AbstractContextManager[Any] | None = None,
    grids: Mapping[str, TokenGrid] | None = None,
    graph: bool = True,
    earlier: Sequence[LayerPoint] = (),
    attention: AttentionTap | None = None,
) -> ForwardRecord:
    """Run a model once on `batch` (B,C,H,W) and keep the wanted blocks, the embedding and the output.

    Args:
        guard: Holds the model.
        points: Which blocks are kept.
        embedding: Which tensor is the embedding, if it is wanted.
        precision: The type that autocast computes in. None runs the model without autocast.
        during: A context for the forward, which may change how gradients come back.
        grids: For blocks of tokens, where in the image each token lies.
        graph: Whether what follows the first block is recorded for a backward. Without points, nothing is.
        earlier: Which blocks before `points` are kept, too, outside of the graph.
        attention: Keeps the attention of transformer layers. It may begin the graph earlier.
    """
    store = ActivationStore(points, embedding, grids, graph, earlier)
    watched = attention.attached() if attention is not None else nullcontext()
    with guard.hold(), watched, TensorTap(guard.model, store.wanted, store.take).attached():
        batch = batch.clone() if batch.is_inference() else batch
        amp = torch.autocast(batch.device.type, dtype=precision) if precision is not None else nullcontext()
        try:
            with amp, during or nullcontext():
                output = guard.model(batch)
        except GamlensError:
            raise
        except Exception as error:
            what = f"a batch of shape {tuple(batch.shape)}, {batch.dtype}, {batch.device}"
            raise forward_error(what, error) from error
    store.check_complete()
    return ForwardRecord(
        guard=guard,
        output=output,
        blocks=store.blocks,
        embedding=store.embedding,
        earlier=store.earlier,
        grids=store.grids,
        has_graph=graph,
    )


def _written_back(kept: Tensor, tensor: Tensor) -> Tensor:
    """Make `tensor` depend on `kept`, which has the same values, and return the tensor that the network goes on with.

    torch allows no such change of a view that was made without a graph. The network then goes on with a copy.
    """
    if not kept.requires_grad:
        return tensor
    try:
        return tensor.copy_(kept)
    except RuntimeError:
        return kept.clone()


def check_shape(name: str, tensor: Tensor, grid: TokenGrid | None) -> None:
    """Raise an error unless a block is (B,C,h,w), or tokens (B,N,C) where `grid` says where they lie."""
    fits = tensor.ndim == 4 if grid is None else tensor.ndim > 2 and tensor[0, ..., 0].numel() == grid.count
    if not fits or not tensor.is_floating_point():
        what = "(B,C,h,w)" if grid is None else f"(B,{grid.count},C)"
        raise GamlensError(
            f"Block {name!r} gives {tuple(tensor.shape)} of {tensor.dtype}; an activation is {what} and real: "
            "name a block before the features are flattened."
        )


def as_map(name: str, tensor: Tensor, grids: Mapping[str, TokenGrid]) -> Tensor:
    """A block or its gradient as (B,C,h,w): from tokens (B,N,C) with a grid, or (B,h,w,C) where the name says so."""
    if name in grids:
        return grids[name].image(tensor)
    return tensor.permute(0, 3, 1, 2) if name.endswith(f":{NHWC}") else tensor


def last_layers(layers: Sequence[T], n: int | str | None, *, beyond: str = "") -> tuple[T, ...]:
    """The last n layers; all of them where n is None. If n is too large, an error says how many there are.

    n = 2 is what "auto" stands for here, so it gives the only layer of a network that has a single one. `beyond` is
    added to the error: how to get more layers.
    """
    n = len(layers) if n is None else int(n) if isinstance(n, np.integer) else n
    n = BLOCKS_BY_DEFAULT if n == BY_NETWORK else n
    if n == 2 and len(layers) == 1:
        return tuple(layers)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= len(layers):
        raise GamlensError(
            f"n={n!r} blocks were asked for, but there are {len(layers)} ({', '.join(map(str, layers))}): give a whole "
            f"number n from 1 to {len(layers)}{beyond}."
        )
    return tuple(layers[len(layers) - n :])
