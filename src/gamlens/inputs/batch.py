"""Images as a model takes them: one batch for each view (scale, mirrored copy) of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import BatchPictures, Picture, pictures
from gamlens.inputs.transform import ExternalTransform, Pixels, Transform

FLIP = "flip"
ViewList = Sequence[str | float]


@dataclass(frozen=True)
class Views:
    """Scales of the input, the first of them 1, and whether each scale comes mirrored as well."""

    scales: tuple[float, ...] = (1.0,)
    mirrored: bool = False

    @classmethod
    def parse(cls, views: ViewList) -> Views:
        """`("flip", 1.43, 2.0)`: the usual size, 1.43 and 2 times it, and mirrored copies of all three."""
        if isinstance(views, tuple) and not views:
            return PLAIN_VIEW
        if isinstance(views, str):
            views = [views]
        factors = [view for view in views if view != FLIP]
        if not all(isinstance(factor, int | float) and 0.1 <= factor <= 10 for factor in factors):
            raise GamlensError(
                f"views= takes 'flip' and scales from 0.1 to 10, such as ('flip', 1.43, 2.0); found {views!r}."
            )
        return cls(tuple(dict.fromkeys((1.0, *map(float, factors)))), FLIP in views)


PLAIN_VIEW = Views()


@dataclass(frozen=True, eq=False)
class ModelInput:
    """Images ready for a model.

    Attributes:
        batches: One batch (B,C,H,W) per view, the plain view first.
        mirrored: For each batch, whether it is a mirrored copy.
        pictures: The B images as the user gave them.
        frames: For each image, where the plain view's input lies in it.
        views: The views that the batches are of.
        pending_transform: None where the batches are the model's input. Otherwise they are uint8 pixels, and
            `normalise_on` makes the model's input of them by this transform.
    """

    batches: tuple[Tensor, ...]
    mirrored: tuple[bool, ...]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    views: Views = PLAIN_VIEW
    pending_transform: Transform | None = None


def prepare(images: Any, transform: Transform | ExternalTransform, views: Views = PLAIN_VIEW) -> ModelInput:
    """Decode and transform images once for every view; a preprocessed batch (B,C,H,W) is taken as it is."""
    colours = (transform.mean, transform.std) if isinstance(transform, Transform) else None
    if isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point() and images.numel() > 0:
        batches = [images]
        for scale in views.scales[1:]:
            batches.append(_resized(images, scale))
        return _with_mirrored(batches, BatchPictures(images, colours), [_whole(images)] * len(images), views)
    shown, frames, made = [], [], []
    for picture in pictures(images):
        frame, tensors = _transformed(picture, transform, views.scales)
        shown.append(picture if picture.tensor is None or colours is None else replace(picture, scale=colours))
        frames.append(frame)
        made.append(tensors)
    sizes = sorted({str(tuple(tensors[0].shape)) for tensors in made})
    if len(sizes) > 1:
        raise GamlensError(
            f"The images of one call must come out at one size; found {', '.join(sizes)}: one call for each size."
        )
    own = len(shown) == 1 and shown[0].tensor is None and colours is not None  # no copy is needed
    batches = [column[0][None] if own else torch.stack(column) for column in zip(*made, strict=True)]
    return _with_mirrored(batches, tuple(shown), frames, views)


def _with_mirrored(
    batches: list[Tensor], shown: Sequence[Picture], frames: list[Frame], views: Views, raw: Transform | None = None
) -> ModelInput:
    """One batch per scale, and a mirrored copy after each where the views ask for it."""
    flips = (False, True) if views.mirrored else (False,)
    if views.mirrored:
        batches = [view for batch in batches for view in (batch, batch.flip(3))]
    return ModelInput(tuple(batches), flips * len(views.scales), shown, tuple(frames), views, raw)


def _transformed(
    picture: Picture, transform: Transform | ExternalTransform, scales: tuple[float, ...]
) -> tuple[Frame, list[Tensor]]:
    """One picture at every scale, (C,h,w) each. A tensor, or what a user's transform gave, is resized."""
    if picture.tensor is None and isinstance(transform, Transform):
        image = _opened(picture, transform)
        made = [transform.scaled(scale)(image) for scale in scales]
        return made[0][1], [tensor for tensor, _ in made]
    if picture.tensor is None:
        tensor, frame = transform(picture.open())
    else:
        tensor, frame = picture.tensor, _whole(picture.tensor)
    return frame, [_resized(tensor[None], scale)[0] for scale in scales]


def _opened(picture: Picture, transform: Transform) -> Image.Image:
    return picture.open().convert("L") if len(transform.mean) == 1 else picture.open()


def _whole(images: Tensor) -> Frame:
    """The frame of images (...,H,W) that are the model's input themselves."""
    height, width = images.shape[-2:]
    return Frame((height, width), (height, width), (0.0, 0.0, float(width), float(height)))


def _resized(batch: Tensor, scale: float) -> Tensor:
    """(B,C,H,W) -> (B,C,h,w), `scale` times as high and wide."""
    if scale == 1:
        return batch
    size = (round(batch.shape[2] * scale), round(batch.shape[3] * scale))
    return F.interpolate(batch, size=size, mode="bicubic", align_corners=False, antialias=scale < 1)


def prepare_pixels(image: Any, transform: Transform | ExternalTransform, views: Views = PLAIN_VIEW) -> ModelInput:
    """One image for every view, its pixels left in uint8 for `normalise_on`.

    Several images, a tensor, and what a user's transform makes are prepared at once.
    """
    shown = tuple(pictures(image))
    if isinstance(transform, ExternalTransform) or len(shown) != 1 or shown[0].tensor is not None:
        return prepare(image, transform, views)
    opened = _opened(shown[0], transform)
    made = [transform.scaled(scale).pixels(opened) for scale in views.scales]
    batches = [torch.from_numpy(pixels[None].copy()).permute(0, 3, 1, 2) for pixels, _ in made]
    return _with_mirrored(batches, shown, [made[0][1]], views, raw=transform)


def normalise_on(ready: ModelInput, device: torch.device) -> ModelInput:
    """What `prepare` would have made, on `device`: pixels are normalised there, to the same bits."""
    if ready.pending_transform is None and device.type != "cuda":
        return ready
    return replace(
        ready,
        batches=tuple(_normalised(batch, ready.pending_transform, device) for batch in ready.batches),
        pending_transform=None,
    )


def _normalised(batch: Tensor, transform: Transform | None, device: torch.device) -> Tensor:
    """A batch on `device`: uint8 pixels normalised by `transform`, by numpy on the CPU; itself without a transform."""
    if transform is not None and device.type == "cpu":
        made = np.empty(tuple(batch.shape), np.float32)
        for pixels, out in zip(_pixels_last(batch), made, strict=True):
            transform.normalise(pixels, out)
        return torch.from_numpy(made)
    batch = batch.to(device, non_blocking=batch.device.type == "cpu")
    return batch if transform is None else look_up(_table_on(transform, device), batch)


@lru_cache(maxsize=8)
def _table_on(transform: Transform, device: torch.device) -> Tensor:
    return transform.table().to(device)


def look_up(table: Tensor, pixels: Tensor) -> Tensor:
    """table[c, x] for every pixel x of channel c: (C,256) and (B,C,H,W) uint8 -> (B,C,H,W)."""
    start = torch.arange(0, table.numel(), table.shape[1], dtype=torch.int32, device=table.device)
    places = (pixels.int() + start[:, None, None]).contiguous()
    return table.flatten().index_select(0, places.flatten()).view(places.shape)


def join(several: Sequence[ModelInput], *, pin: bool = False) -> ModelInput:
    """The images of several inputs, all of one size, in one batch per view. `pin`: in memory that a GPU can read."""
    shapes = {tuple(ready.batches[0].shape[1:]) for ready in several}
    if len(shapes) > 1:
        raise GamlensError(
            f"The transform gives images of several sizes ({', '.join(map(str, sorted(shapes)))}): use one size, or "
            "one image at a time."
        )
    return replace(
        several[0],
        batches=tuple(
            _concatenated(batches, pin) for batches in zip(*(ready.batches for ready in several), strict=True)
        ),
        pictures=tuple(picture for ready in several for picture in ready.pictures),
        frames=tuple(frame for ready in several for frame in ready.frames),
    )


def part(ready: ModelInput, number: int) -> ModelInput:
    """One image of a batch."""
    at = slice(number, number + 1)
    batches = tuple(batch[at] for batch in ready.batches)
    return replace(ready, batches=batches, pictures=ready.pictures[at], frames=ready.frames[at])


def _concatenated(batches: Sequence[Tensor], pin: bool) -> Tensor:
    """Batches one after another. Pixels are joined by numpy: torch would start threads of its own in every thread
    that decodes images."""
    first = batches[0]
    if first.device.type != "cpu" or not (pin or first.dtype == torch.uint8):
        return torch.cat(list(batches))
    count, (channels, height, width) = sum(map(len, batches)), first.shape[1:]
    if first.dtype != torch.uint8:
        whole = torch.empty(count, channels, height, width, dtype=first.dtype, pin_memory=pin)
        return torch.cat(list(batches), out=whole)
    whole = torch.empty(count, height, width, channels, dtype=first.dtype, pin_memory=pin)
    np.concatenate([_pixels_last(batch) for batch in batches], out=whole.numpy())
    return whole.permute(0, 3, 1, 2)


def _pixels_last(batch: Tensor) -> Pixels:
    """(B,C,H,W) uint8 as (B,H,W,C)."""
    return batch.permute(0, 2, 3, 1).numpy()
