"""One forward, one short backward: activations and gradients of the wanted blocks.

The trunk runs without a graph. At the first wanted block the output is detached and asks for a gradient, and only
what follows is recorded, so memory and time are those of the tail. The model is left as it was found.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.checks import Check
from gamlens.errors import GamlensError
from gamlens.points import OUTPUT, Grid, Point, function_name, only_tensor, tensors
from gamlens.settle import failed, settled, unwrap

HALF_SCALE = 2.0**14
ATTENTION = re.compile(r"attention|flash|xformers|sdp", re.IGNORECASE)


@dataclass
class Tail:
    """What a forward left, still in the graph: wanted blocks in the order they ran, as the network has them.

    `around` makes what a backward through it must run under; `compiled`: whether maps should be, too.
    """

    model: nn.Module
    output: Any
    blocks: dict[str, Tensor]
    embedding: Tensor | None
    grids: Mapping[str, Grid] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    compiled: bool = False

    def activations(self) -> dict[str, Tensor]:
        """The blocks out of the graph, (B,C,h,w) each."""
        return {name: as_map(name, block.detach(), self.grids) for name, block in self.blocks.items()}


class Reader(TorchFunctionMode):
    """Finds the wanted tensors of one forward in this thread; `take` gets each and says what to go on with."""

    def __init__(self, model: nn.Module, wanted: Sequence[Point], take: Callable[[Point, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.wanted, self.take = model, list(dict.fromkeys(wanted)), take
        self.thread = threading.get_ident()
        self.armed: list[tuple[Tensor, Point, int]] = []
        self.heard = False
        self.listening = ExitStack()

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in dict.fromkeys(point.module for point in self.wanted):
                if name == OUTPUT and not has_output_module(self.model):
                    continue
                module = self.model.get_submodule(name)
                mine = [point for point in self.wanted if point.module == name]
                if any(point.reads_input for point in mine):
                    stack.callback(module.register_forward_pre_hook(self._before(mine), with_kwargs=True).remove)
                if any(not point.reads_input for point in mine):
                    stack.callback(module.register_forward_hook(self._after(mine)).remove)
            if any(point.chain for point in self.wanted):
                stack.callback(self.model.register_forward_hook(self._leave).remove)
            self.listening = stack.enter_context(ExitStack())
            yield

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Functions are followed inside the model only."""
        if threading.get_ident() == self.thread:
            self.listening.close()

    def _before(self, points: list[Point]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if threading.get_ident() != self.thread or not (args or kwargs):
                return None
            key = None if args else next(iter(kwargs))
            value = args[0] if key is None else kwargs[key]
            for point in points:
                if point.reads_input:
                    value = self.take(point, _tensor(value, point))
            return ((value, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: value})

        return hook

    def _after(self, points: list[Point]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            wrapped = isinstance(output, tuple) and only_tensor(output) is not None
            start = value = output[0] if wrapped else output
            for point in points:
                if not point.reads_input and not point.chain:
                    value = self.take(point, _tensor(value, point))
            for point in points:
                if point.chain:
                    self.listen()
                    self.armed.append((_tensor(value, point), point, 0))
            return None if value is start else (value, *output[1:]) if wrapped else value

        return hook

    def listen(self) -> None:
        """Follow functions from here on: not before, since it costs some time each."""
        if not self.heard:
            self.heard = True
            self.listening.enter_context(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.armed:
            return result
        name, read = function_name(func), {id(tensor) for tensor in tensors(args)}
        for entry in [entry for entry in self.armed if id(entry[0]) in read]:
            _, point, step = entry
            if name != point.chain[step]:
                continue
            self.armed.remove(entry)
            if step + 1 < len(point.chain):
                self.armed.append((_tensor(result, point), point, step + 1))
            else:
                result = self.take(point, _tensor(result, point))
        return result


class Keeper:
    """Keeps blocks and the embedding as a Reader finds them, and starts the graph at the first block."""

    def __init__(
        self, blocks: Sequence[Point], embedding: Point | None = None, grids: Mapping[str, Grid] | None = None
    ) -> None:
        self.points, self.embedding_point, self.grids = list(blocks), embedding, grids or {}
        self.blocks: dict[str, Tensor] = {}
        self.embedding: Tensor | None = None

    @property
    def wanted(self) -> list[Point]:
        return [*self.points, *([self.embedding_point] if self.embedding_point is not None else [])]

    def take(self, point: Point, tensor: Tensor) -> Tensor:
        """Keep the tensor; hand on a copy, so that in-place work that follows cannot reach what was kept."""
        if point == self.embedding_point:
            if self.embedding is not None:
                raise GamlensError(f"The embedding layer {str(point)!r} ran twice in one forward: name another one.")
            self.embedding = tensor
        if point not in self.points:
            return tensor.clone()
        name = str(point)
        if name in self.blocks:
            raise GamlensError(
                f"Block {name!r} runs more than once in one forward, so it has no single activation: "
                "name a block that runs once, or call the shared part by itself."
            )
        check_shape(name, tensor, self.grids.get(name))
        torch.set_grad_enabled(True)
        kept = tensor if tensor.requires_grad else tensor.detach().requires_grad_(True)
        self.blocks[name] = kept
        copy = kept.clone()
        if point == self.embedding_point:
            self.embedding = copy
        return copy

    def missing(self) -> list[str]:
        return [str(point) for point in self.points if str(point) not in self.blocks]


def forward(
    model: nn.Module,
    batch: Tensor,
    blocks: Sequence[Point],
    *,
    embedding: Point | None = None,
    precision: torch.dtype | None = None,
    during: AbstractContextManager[Any] | None = None,
    grids: Mapping[str, Grid] | None = None,
) -> Tail:
    """Run `model` once on `batch` (B,C,H,W) and keep the wanted blocks, the embedding and the output, in the graph.

    The forward runs under the context `during`, which may change how gradients come back. `grids` says, for blocks of
    tokens, where the tokens lie.
    """
    model = unwrap(model)
    keeper = Keeper(blocks, embedding, grids)
    with settled(model), Reader(model, keeper.wanted, keeper.take).attached():
        batch = batch.clone() if batch.is_inference() else batch
        amp = torch.autocast(batch.device.type, dtype=precision) if precision is not None else nullcontext()
        try:
            with amp, during or nullcontext():
                output = model(batch)
        except GamlensError:
            raise
        except Exception as error:
            what = f"a batch of shape {tuple(batch.shape)}, {batch.dtype}, {batch.device}"
            raise failed(what, error) from error
    if missing := keeper.missing():
        raise GamlensError(
            f"Block {missing[0]!r} did not run in this forward: name one that the model calls, "
            "as `lens.blocks` or `gamlens blocks` list them."
        )
    if embedding is not None and keeper.embedding is None:
        raise GamlensError(f"The embedding layer {str(embedding)!r} did not run in this forward: name another one.")
    return Tail(model, output, keeper.blocks, keeper.embedding, keeper.grids)


def gradients(score: Tensor, tails: Sequence[Tail], *, keep_graph: bool) -> list[dict[str, Tensor]]:
    """d(sum of score)/d(block), (B,C,h,w), for each block of each tail. Items of a batch do not mix.

    No `.grad` is touched. The model is held in eval mode, for parts that are computed again (checkpointing).
    """
    if not score.requires_grad:
        raise GamlensError(
            "The score does not depend on the wanted blocks through anything that has a gradient: is there a "
            "torch.no_grad() or a .detach() inside the model's forward, or in the score function?"
        )
    blocks = [block for tail in tails for block in tail.blocks.values()]
    try:
        with settled(tails[0].model), tails[0].around(), torch.enable_grad():
            found = iter(_backward(score.sum(), blocks, keep_graph))
    except RuntimeError as error:
        hint = "Were weights changed since the forward? Then trace the images again."
        if ATTENTION.search(str(error)):
            hint = (
                "An attention kernel of this model has no backward here. Switch to the plain one: in timm "
                "timm.layers.set_fused_attn(False) before the model is built, in transformers "
                "attn_implementation='eager', in torch run inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            )
        raise GamlensError(f"The backward failed: {error}. {hint}") from error
    result: list[dict[str, Tensor]] = []
    for tail in tails:
        side = {}
        for name in tail.blocks:
            gradient = next(found)
            if gradient is None:
                raise GamlensError(
                    f"The score does not depend on block {name!r}: name blocks on the way from the image to the score."
                )
            side[name] = as_map(name, gradient, tail.grids)
        result.append(side)
    return result


def _backward(score: Tensor, blocks: list[Tensor], keep_graph: bool) -> Sequence[Tensor | None]:
    """Gradients of one number; in float16 it is scaled up first, so that small gradients do not vanish."""
    if not any(block.dtype == torch.float16 for block in blocks):
        return torch.autograd.grad(score, blocks, retain_graph=keep_graph, allow_unused=True)
    found = torch.autograd.grad(score * HALF_SCALE, blocks, retain_graph=True, allow_unused=True)
    if all(bool(gradient.isfinite().all()) for gradient in found if gradient is not None):
        return [None if gradient is None else gradient.float() / HALF_SCALE for gradient in found]
    return torch.autograd.grad(score, blocks, retain_graph=keep_graph, allow_unused=True)


def check_shape(name: str, tensor: Tensor, grid: Grid | None) -> None:
    """A block is a map (B,C,h,w), or tokens (B,N,C) whose places are known."""
    fits = tensor.ndim == 4 if grid is None else tensor.ndim > 2 and tensor[0, ..., 0].numel() == grid.count
    if not fits or not tensor.is_floating_point():
        what = "(B,C,h,w)" if grid is None else f"(B,{grid.count},C)"
        raise GamlensError(
            f"Block {name!r} gives {tuple(tensor.shape)} of {tensor.dtype}; an activation is {what} and real: "
            "name a block before the features are flattened."
        )


def has_output_module(model: nn.Module) -> bool:
    """Whether `output` names a module of this model rather than what it returns."""
    return isinstance(getattr(model, OUTPUT, None), nn.Module)


def as_map(name: str, tensor: Tensor, grids: Mapping[str, Grid]) -> Tensor:
    """(B,C,h,w) from tokens that have a grid, or from (B,h,w,C) where the name says so."""
    return grids[name].image(tensor) if name in grids else channels_first(name, tensor)


def channels_first(name: str, tensor: Tensor) -> Tensor:
    """(B,h,w,C) -> (B,C,h,w) where the name says that channels come last."""
    return tensor.permute(0, 3, 1, 2) if Point.parse(name).channels_last else tensor


def _tensor(value: Any, point: Point) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise GamlensError(
        f"{str(point)!r} gives a {type(value).__name__}, not a tensor: name a module inside it, or after it, "
        "that gives one."
    )
