"""What a lens looks through: a model, the blocks found in it, and one forward that keeps them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gamlens import models
from gamlens.capture import checks
from gamlens.capture import forward as capture
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.guard import alone, unwrap
from gamlens.capture.hooks import has_output_module
from gamlens.capture.layers import OUTPUT, PIXELS, LayerPoint, TokenGrid
from gamlens.errors import GamlensError, GamlensWarning, near
from gamlens.methods import Method
from gamlens.models import ModelBlocks, NetworkLayout, Output, pick
from gamlens.rows import last_blocks

if TYPE_CHECKING:
    from gamlens.compiled import Program

Reach = int | None | Method  # the last n blocks, all of them, or the pixels under an `input` method
MOST_PROGRAMS = 16
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class HookedModel:
    """A model and where it is read: `blocks` and `embedding` as the user named them, or as they are found."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        *,
        blocks: Sequence[str] | None = None,
        embedding: str | None = None,
        output: Output = None,
        precision: str = "fp32",
        compile: bool = False,
    ) -> None:
        if precision not in PRECISIONS:
            raise GamlensError(f"There is no precision {precision!r}: {near(str(precision), PRECISIONS)}")
        self.model, self.inner, self.name = model, unwrap(model), name
        self.output, self.precision = output, precision
        self.asked = models.points_named(self.inner, blocks)
        place = models.points_named(self.inner, [embedding] if embedding is not None else None)
        self.asked_embedding = place[0] if place else None
        self.binding: ModelBlocks | None = None
        self.compile = compile
        self._programs: dict[Any, Program | None] = {}
        self._grids: dict[tuple[int, int], Mapping[str, TokenGrid]] = {}

    def on(self, model: nn.Module) -> HookedModel:
        """The same blocks of another copy of the model."""
        other = copy.copy(self)
        other.model, other.inner, other._programs = model, unwrap(model), {}
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_programs": {}}

    # What is known about the model

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(str(point) for point in self.bound().points)

    @property
    def embedding(self) -> str:
        return str(self.asked_embedding or self.layout.embedding)

    @property
    def layout(self) -> NetworkLayout:
        layout = self.bound().layout
        if layout is None:
            raise GamlensError("The blocks were named by hand and no others could be found: name the embedding too.")
        return layout

    def bound(self, batch: Tensor | None = None) -> ModelBlocks:
        """The blocks; they are found when the first image comes."""
        if self.binding is None:
            if batch is None:
                raise GamlensError("The blocks are not known yet: they are found when the first image comes.")
            self.binding = models.find_blocks(self.inner, batch[:1].detach(), asked=self.asked, output=self.output)
        return self.binding

    def find(self, size: tuple[int, int]) -> None:
        """Find the blocks at once, at the usual input size; a model that takes another waits for its first image."""
        like = self.like(torch.empty(0))
        first = next((layer for layer in self.inner.modules() if isinstance(layer, nn.Conv2d)), None)
        for channels in dict.fromkeys((first.in_channels if first is not None else 3, 3)):
            with suppress(GamlensError):
                self.bound(torch.zeros(1, channels, *size, device=like.device, dtype=like.dtype))
                break

    def like(self, other: Tensor) -> Tensor:
        """A floating point tensor of the model, for its device and dtype; `other` where it has none."""
        own = chain(self.model.parameters(), self.model.buffers())
        return next((tensor for tensor in own if tensor.is_floating_point()), other)

    # Looking

    def fit(self, batch: Tensor, *, own: bool = False) -> Tensor:
        """The batch on the model's device and of its dtype; a copy where the model would write to the user's `own`."""
        like = self.like(batch)
        ready = batch.to(like.device, like.dtype)
        if ready.is_cuda and self.precision != "fp32" and ready.ndim == 4:
            ready = ready.contiguous(memory_format=torch.channels_last)
        return ready.clone() if own and ready is batch and self.bound(ready).writes_input else ready

    def forward(self, batch: Tensor, n: Reach, *, embedding: bool = False) -> ForwardRecord:
        """One forward that keeps the last n blocks and checks that they are finite."""
        names = [str(point) for point in self.bound(batch).points]
        if isinstance(n, Method):
            tail = self.look(batch, [PIXELS], embedding=embedding, during=n.during())
        else:
            wanted = [LayerPoint.parse(name) for name in last_blocks(names, len(names) if n is None else n)]
            tail = self.look(batch, wanted, embedding=embedding)
        blocks = tail.blocks.items()
        found = [checks.finite(block.detach(), partial(_not_finite, name, self.name)) for name, block in blocks]
        return replace(tail, checks=checks.make(found))

    def look(
        self,
        batch: Tensor,
        blocks: Sequence[LayerPoint],
        *,
        embedding: bool = False,
        during: AbstractContextManager[Any] | None = None,
    ) -> ForwardRecord:
        """One forward that keeps `blocks`, and the embedding where it is asked for."""
        place = LayerPoint.parse(self.embedding) if embedding else None
        whole = place is not None and str(place) == OUTPUT and not has_output_module(self.inner)
        precision, grids, read = PRECISIONS[self.precision], self._grids_at(batch), None if whole else place
        tail = self._fast(batch, blocks, read, precision, grids) if self.compile and during is None else None
        if tail is None:
            tail = capture.forward(
                self.model, batch, blocks, embedding=read, precision=precision, during=during, grids=grids
            )
        return replace(tail, embedding=pick(tail.output, self.output)) if whole else tail

    def class_scores(self, tail: ForwardRecord, count: int) -> Tensor:
        """The model's class scores (B,K), picked out of its output."""
        output = pick(tail.output, self.output)
        if output.ndim != 2 or len(output) != count or not output.is_floating_point():
            raise GamlensError(
                f"The output has the shape {tuple(output.shape)}; class scores are ({count}, classes). Pick them with "
                "output=, or give score= a callable on the output that returns one number an image."
            )
        return output

    def embeddings(
        self, tails: Sequence[ForwardRecord], parts: tuple[slice, slice], count: int
    ) -> tuple[Tensor, Tensor]:
        """x's and y's embeddings (P,D), still in the graph."""
        for tail in tails:
            if tail.embedding is None or len(tail.embedding) != count or tail.embedding.numel() == 0:
                raise GamlensError(f"The embedding {self.embedding!r} gives no vector an image: name another layer.")
        with torch.inference_mode(False), torch.enable_grad():
            flat = [tail.embedding.flatten(1) for tail in (tails[0], tails[-1]) if tail.embedding is not None]
            return flat[0][parts[0]], flat[1][parts[1]]

    def _fast(
        self,
        batch: Tensor,
        blocks: Sequence[LayerPoint],
        embedding: LayerPoint | None,
        precision: torch.dtype | None,
        grids: Mapping[str, TokenGrid],
    ) -> ForwardRecord | None:
        """The same by a compiled program, made when it is first needed; None where the model cannot be compiled."""
        from gamlens import compiled as fast

        key = (tuple(blocks), embedding, len(batch) == 1, batch.shape[1:], batch.dtype, batch.device)
        try:
            with alone(self.inner):  # no other look has hooks on it meanwhile
                program = self._programs.get(key)
                if key in self._programs and program is None:
                    return None
                if program is None and len(self._programs) >= MOST_PROGRAMS:
                    raise fast.Unsupported(f"{MOST_PROGRAMS} programs are there already, one a size and set of blocks")
                if program is None or not program.fits(batch):
                    program = fast.build(self.inner, batch, blocks, embedding=embedding, precision=precision)
                    self._programs[key] = program
                    if not program.fits(batch):
                        raise fast.Unsupported(f"what it runs depends on the number of images, here {len(batch)}")
                return program.run(batch, precision=precision, grids=grids)
        except (GamlensError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a compiler says, the plain model is there
            self._programs[key] = None
            warnings.warn(
                f"compile=True: {self.name} runs as it is, not compiled: {fast.reason(error)}",
                GamlensWarning,
                stacklevel=2,
            )
            return None

    def _grids_at(self, batch: Tensor) -> Mapping[str, TokenGrid]:
        """Where tokens lie at this batch's size: found anew for a size that is new."""
        binding, size = self.bound(batch), (int(batch.shape[-2]), int(batch.shape[-1]))
        if not binding.grids or size == binding.size:
            return binding.grids
        if size not in self._grids:
            self._grids[size] = models.token_grids(self.inner, batch[:1].detach(), binding.points)
        return self._grids[size]


def _not_finite(block: str, model: str) -> str:
    return (
        f"Block {block!r} of {model} has values that are not finite: are there NaN or infinite weights, or pixels, or "
        "does half precision overflow?"
    )
