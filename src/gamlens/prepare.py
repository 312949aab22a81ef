"""Images as a model takes them: one batch, or one for each view (scale, mirrored copy) of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.geometry import Foreign, Frame, Transform
from gamlens.images import Picture, Slices, check_batch, pictures

FLIP = "flip"
ViewList = Sequence[str | float]


@dataclass(frozen=True)
class Views:
    """Scales of the input, the first being 1, and whether each comes mirrored as well."""

    scales: tuple[float, ...] = (1.0,)
    mirrored: bool = False

    @classmethod
    def parse(cls, views: ViewList) -> Views:
        """`("flip", 1.43, 2.0)`: the usual size, 1.43 and 2 times it, and mirrored copies of all three."""
        if isinstance(views, str):
            views = [views]
        factors = [view for view in views if view != FLIP]
        if not all(isinstance(factor, int | float) and 0.1 <= factor <= 10 for factor in factors):
            raise GamlensError(
                f"views= takes 'flip' and scales from 0.1 to 10, such as ('flip', 1.43, 2.0); found {views!r}."
            )
        return cls(tuple(dict.fromkeys((1.0, *map(float, factors)))), FLIP in views)

    def __iter__(self) -> Iterator[tuple[float, bool]]:
        for scale in self.scales:
            yield scale, False
            if self.mirrored:
                yield scale, True


@dataclass(frozen=True, eq=False)
class Prepared:
    """One batch (B,C,H,W) a view, the plain one first, with the pictures and where the input lies in them."""

    batches: tuple[Tensor, ...]
    mirrored: tuple[bool, ...]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]


def prepare(images: Any, transform: Transform | Foreign, views: Views) -> Prepared:
    """Decode and transform images once for every view."""
    if isinstance(images, Tensor) and images.ndim == 4:
        return _whole(check_batch(images), transform, views)
    shown, frames = [], []
    columns: list[list[Tensor]] = [[] for _ in views.scales]
    for picture in pictures(images):
        frame, tensors = _one(picture, transform, views.scales)
        if picture.tensor is not None and isinstance(transform, Transform):
            picture = replace(picture, scale=(transform.mean, transform.std))
        shown.append(picture)
        frames.append(frame)
        for column, tensor in zip(columns, tensors, strict=True):
            column.append(tensor)
    if len({tensor.shape for tensor in columns[0]}) > 1:
        found = ", ".join(sorted({str(tuple(tensor.shape)) for tensor in columns[0]}))
        raise GamlensError(f"The images of one call must come out at one size; found {found}: one call for each size.")
    return _viewed([torch.stack(column) for column in columns], tuple(shown), tuple(frames), views)


def _whole(batch: Tensor, transform: Transform | Foreign, views: Views) -> Prepared:
    """A batch that is preprocessed already: as it is, and scaled for the other views."""
    scale = (transform.mean, transform.std) if isinstance(transform, Transform) else None
    size = (int(batch.shape[2]), int(batch.shape[3]))
    batches = [_scaled(batch, factor) for factor in views.scales]
    return _viewed(batches, Slices(batch, scale), (Frame.whole(size, size),) * len(batch), views)


def _viewed(batches: list[Tensor], shown: Sequence[Picture], frames: tuple[Frame, ...], views: Views) -> Prepared:
    flips = (False, True) if views.mirrored else (False,)
    return Prepared(
        tuple(batch.flip(3) if flip else batch for batch in batches for flip in flips),
        flips * len(batches),
        shown,
        frames,
    )


def join(several: Sequence[Prepared]) -> Prepared:
    """One of many: their images in one batch a view. They must be of one size."""
    shapes = {tuple(ready.batches[0].shape[1:]) for ready in several}
    if len(shapes) > 1:
        raise GamlensError(
            f"The transform gives images of several sizes ({', '.join(map(str, sorted(shapes)))}): use one size, or "
            "one image at a time."
        )
    return Prepared(
        tuple(torch.cat(views) for views in zip(*(ready.batches for ready in several), strict=True)),
        several[0].mirrored,
        tuple(picture for ready in several for picture in ready.pictures),
        tuple(frame for ready in several for frame in ready.frames),
    )


def part(ready: Prepared, number: int) -> Prepared:
    """One image of a batch."""
    at = slice(number, number + 1)
    return Prepared(tuple(b[at] for b in ready.batches), ready.mirrored, ready.pictures[at], ready.frames[at])


def _one(picture: Picture, transform: Transform | Foreign, scales: tuple[float, ...]) -> tuple[Frame, list[Tensor]]:
    """One picture at every scale, (C,h,w) each; a tensor, or what a foreign transform gave, is resized."""
    if picture.tensor is not None:
        size = (int(picture.tensor.shape[1]), int(picture.tensor.shape[2]))
        return Frame.whole(size, size), [_scaled(picture.tensor, scale) for scale in scales]
    image = picture.open()
    if isinstance(transform, Foreign):
        tensor, frame = transform(image)
        return frame, [_scaled(tensor, scale) for scale in scales]
    image = image.convert("L") if len(transform.mean) == 1 else image
    made = [transform.scaled(scale)(image) for scale in scales]
    return made[0][1], [tensor for tensor, _ in made]


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return tensor
    size = (round(tensor.shape[-2] * scale), round(tensor.shape[-1] * scale))
    batch = tensor if tensor.ndim == 4 else tensor[None]
    made = F.interpolate(batch, size=size, mode="bicubic", align_corners=False, antialias=scale < 1)
    return made if tensor.ndim == 4 else made[0]
