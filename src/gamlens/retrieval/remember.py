"""Run every image through the model once and keep its last block and embedding, or its graph for later backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gamlens.capture.forward import ForwardRecord, last_layers
from gamlens.errors import GamlensError, attempt
from gamlens.inputs.batch import ModelInput, join
from gamlens.inputs.images import Picture, pictures
from gamlens.refine import Refine
from gamlens.retrieval.embedding_form import find_form
from gamlens.retrieval.gallery import FramedPicture, Gallery, join_galleries, lens_identity
from gamlens.streaming.prefetch import grouped, prefetch

if TYPE_CHECKING:
    from gamlens.lens import Lens


@dataclass(frozen=True, eq=False)
class EmbeddedBatch:
    """One forward of B images. It has no graph if it was made for a method that needs no gradient.

    Attributes:
        record: What the forward kept.
        embeddings: The embeddings (B,D), in the record's graph.
        shown: For each image the picture, and the frame that says which part of it the model saw.
    """

    record: ForwardRecord
    embeddings: Tensor
    shown: tuple[FramedPicture, ...]

    @property
    def size(self) -> tuple[int, int]:
        """The size of the model's input, (H,W)."""
        return self.shown[0][1].size


def embed_batches(
    lens: Lens,
    images: Iterable[Any],
    *,
    method: str = "gam",
    n: int = 1,
    refine: Refine = False,
    batch_size: int,
    workers: int | None = None,
) -> Iterator[EmbeddedBatch]:
    """One forward per batch that keeps what `method` and `refine` read, while threads decode the next batches."""
    for _, ready in prefetch(lens.prepare, grouped(images, batch_size), workers=workers):
        yield _embed(lens, ready, method=method, n=n, refine=refine)


def gather(batches: Iterable[EmbeddedBatch], device: str | torch.device) -> Gallery:
    """Make a Gallery of the images of all batches, with tensors on `device`.

    Its `about` has only the block's name: whoever keeps the gallery adds the identity of the lens.
    """
    parts = []
    for batch in batches:
        form, scales = find_form(batch.record, batch.embeddings)
        block, activations = list(batch.record.activations.items())[-1]
        part = Gallery(
            activations=activations,
            embeddings=batch.embeddings.detach(),
            law=form,
            scales=scales,
            size=batch.size,
            pictures=tuple(picture for picture, _ in batch.shown),
            frames=tuple(frame for _, frame in batch.shown),
            about={"block": block},
            earlier=batch.record.earlier_activations,
        )
        parts.append(part.to(device))
    return join_galleries(parts)


@torch.inference_mode(False)
@torch.no_grad()
def remember(
    lens: Lens,
    images: Any,
    *,
    refine: Refine = False,
    batch_size: int,
    workers: int | None = None,
    device: str | torch.device | None = None,
) -> Gallery:
    """A Gallery of all images, with tensors on `device` (the model's by default). A bad image is an error."""
    if batch_size < 1:
        raise GamlensError(f"batch_size={batch_size}: give at least 1.")
    batches = embed_batches(lens, pictures(images), refine=refine, batch_size=batch_size, workers=workers)
    return replace(gather(batches, lens.device if device is None else device), about=lens_identity(lens))


@torch.inference_mode(False)
@torch.no_grad()
def remember_readable(
    lens: Lens,
    images: Any,
    told: Callable[[Picture, GamlensError | None], None],
    *,
    refine: Refine = False,
    batch_size: int,
) -> Gallery:
    """A Gallery on the CPU of the images that can be read. `told` is called for every image, with its error if any."""

    def batches() -> Iterator[EmbeddedBatch]:
        for group, (ready, errors) in prefetch(partial(_read, lens), grouped(pictures(images), batch_size)):
            if ready is not None:
                yield _embed(lens, ready, refine=refine)
            for picture, error in zip(group, errors, strict=True):
                told(picture, error)

    return replace(gather(batches(), "cpu"), about=lens_identity(lens))


def _embed(lens: Lens, ready: ModelInput, *, method: str = "gam", n: int = 1, refine: Refine = False) -> EmbeddedBatch:
    record = lens.forward(ready, n=n, method=method, embedding=True, refine=refine)
    if not record.blocks:
        last_layers(lens.blocks, n)  # n=0 keeps no block: an error that says how many there are
    assert record.embedding is not None
    return EmbeddedBatch(record, record.embedding, tuple(zip(ready.pictures, ready.frames, strict=True)))


def _read(lens: Lens, group: list[Picture]) -> tuple[ModelInput | None, list[GamlensError | None]]:
    """The readable images of a group in one batch, and the error of each image or None."""
    loaded = [attempt(lens.prepare, picture) for picture in group]
    good = [ready for ready in loaded if isinstance(ready, ModelInput)]
    return join(good) if good else None, [one if isinstance(one, GamlensError) else None for one in loaded]
