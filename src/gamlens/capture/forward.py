"""One forward, one short backward: activations and gradients of the wanted blocks.

The trunk runs without a graph. At the first wanted block the output is detached and asks for a gradient, and only
what follows is recorded, so memory and time are those of the tail. The model is left as it was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.checks import Check
from gamlens.capture.guard import failed, model_guard, unwrap
from gamlens.capture.hooks import TensorTap
from gamlens.capture.layers import LayerPoint, TokenGrid
from gamlens.errors import GamlensError

PROBE, PEAK, WIDEST = 2.0**14, 2.0**6, 2.0**28
ATTENTION = re.compile(r"attention|flash|xformers|sdp", re.IGNORECASE)


@dataclass
class ForwardRecord:
    """What a forward left, still in the graph: wanted blocks in the order they ran, as the network has them.

    `around` makes what a backward through it must run under; `compiled`: whether maps should be, too.
    """

    model: nn.Module
    output: Any
    blocks: dict[str, Tensor]
    embedding: Tensor | None
    grids: Mapping[str, TokenGrid] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    compiled: bool = False

    def activations(self) -> dict[str, Tensor]:
        """The blocks out of the graph, (B,C,h,w) each."""
        return {name: as_map(name, block.detach(), self.grids) for name, block in self.blocks.items()}


class ActivationStore:
    """Keeps blocks and the embedding as a TensorTap finds them, and starts the graph at the first block."""

    def __init__(
        self,
        blocks: Sequence[LayerPoint],
        embedding: LayerPoint | None = None,
        grids: Mapping[str, TokenGrid] | None = None,
    ) -> None:
        self.points, self.embedding_point, self.grids = list(blocks), embedding, grids or {}
        self.blocks: dict[str, Tensor] = {}
        self.embedding: Tensor | None = None

    @property
    def wanted(self) -> list[LayerPoint]:
        return [*self.points, *([self.embedding_point] if self.embedding_point is not None else [])]

    def take(self, point: LayerPoint, tensor: Tensor) -> Tensor:
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
    blocks: Sequence[LayerPoint],
    *,
    embedding: LayerPoint | None = None,
    precision: torch.dtype | None = None,
    during: AbstractContextManager[Any] | None = None,
    grids: Mapping[str, TokenGrid] | None = None,
) -> ForwardRecord:
    """Run `model` once on `batch` (B,C,H,W) and keep the wanted blocks, the embedding and the output, in the graph.

    The forward runs under the context `during`, which may change how gradients come back. `grids` says, for blocks of
    tokens, where the tokens lie.
    """
    model = unwrap(model)
    keeper = ActivationStore(blocks, embedding, grids)
    with model_guard(model), TensorTap(model, keeper.wanted, keeper.take).attached():
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
    return ForwardRecord(model, output, keeper.blocks, keeper.embedding, keeper.grids)


def gradients(score: Tensor, tails: Sequence[ForwardRecord], *, keep_graph: bool) -> list[dict[str, Tensor]]:
    """d(sum of score)/d(block), (B,C,h,w), for each block of each tail. Items of a batch do not mix.

    No `.grad` is touched. The model is held in eval mode, for parts that are computed again (checkpointing).
    """
    if not score.requires_grad:
        raise GamlensError(
            "The score does not depend on the wanted blocks through anything that has a gradient: is there a "
            "torch.no_grad() or a .detach() inside the model's forward, or in the score function?"
        )
    blocks = [block for tail in tails for block in tail.blocks.values()]
    last = [next(reversed(tail.blocks.values())) for tail in tails]
    try:
        with model_guard(tails[0].model), tails[0].around(), torch.enable_grad():
            found = iter(_backward(score, blocks, last, keep_graph))
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


def _backward(score: Tensor, blocks: list[Tensor], last: list[Tensor], keep_graph: bool) -> Sequence[Tensor | None]:
    """Gradients of the score's sum; in float16 each score is scaled, so that none vanish and none overflow.

    How far is read off the last blocks, whose backward costs next to nothing, on the device: nothing waits for it.
    """
    if not any(block.dtype == torch.float16 for block in blocks):
        return torch.autograd.grad(score.sum(), blocks, retain_graph=keep_graph, allow_unused=True)
    up, down = (
        torch.autograd.grad((score * factor).sum(), last, retain_graph=True, allow_unused=True)
        for factor in (PROBE, 1 / PROBE)
    )
    scale = _scales(_peaks(up, score) / PROBE, _peaks(down, score) * PROBE)
    found = torch.autograd.grad((score * scale).sum(), blocks, retain_graph=keep_graph, allow_unused=True)
    return [None if gradient is None else gradient.float() / _rows_of(scale, gradient) for gradient in found]


def _peaks(gradients: Sequence[Tensor | None], score: Tensor) -> Tensor:
    """The largest gradient that each score has in any of these: (R,)."""
    each = [gradient.detach().float().abs().flatten(1).amax(dim=1) for gradient in gradients if gradient is not None]
    return torch.cat([peaks.view(-1, len(score)) for peaks in each] or [torch.ones_like(score)[None]]).amax(dim=0)


def _scales(fine: Tensor, coarse: Tensor) -> Tensor:
    """Powers of two that bring peaks (R,) to PEAK, far from float16's ends. `fine` may overflow, `coarse` vanish."""
    peak = torch.where(fine.isfinite(), fine, coarse)
    found = torch.exp2(torch.floor(torch.log2(PEAK / peak))).clamp(1 / WIDEST, WIDEST)
    return torch.where(peak.isfinite(), found, 1)


def _rows_of(scale: Tensor, gradient: Tensor) -> Tensor:
    """One factor a row of a gradient: both images of a pair have their score's."""
    return scale.repeat(len(gradient) // len(scale)).view(-1, *[1] * (gradient.ndim - 1))


def check_shape(name: str, tensor: Tensor, grid: TokenGrid | None) -> None:
    """A block is a map (B,C,h,w), or tokens (B,N,C) whose places are known."""
    fits = tensor.ndim == 4 if grid is None else tensor.ndim > 2 and tensor[0, ..., 0].numel() == grid.count
    if not fits or not tensor.is_floating_point():
        what = "(B,C,h,w)" if grid is None else f"(B,{grid.count},C)"
        raise GamlensError(
            f"Block {name!r} gives {tuple(tensor.shape)} of {tensor.dtype}; an activation is {what} and real: "
            "name a block before the features are flattened."
        )


def as_map(name: str, tensor: Tensor, grids: Mapping[str, TokenGrid]) -> Tensor:
    """(B,C,h,w) from tokens that have a grid, or from (B,h,w,C) where the name says so."""
    return grids[name].image(tensor) if name in grids else channels_first(name, tensor)


def channels_first(name: str, tensor: Tensor) -> Tensor:
    """(B,h,w,C) -> (B,C,h,w) where the name says that channels come last."""
    return tensor.permute(0, 3, 1, 2) if LayerPoint.parse(name).channels_last else tensor
