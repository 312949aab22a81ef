"""Images as a model takes them: one batch, or one for each view (scale, mirrored copy) of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.inputs.images import Picture, Slices, check_batch, pictures
from gamlens.inputs.transform import ExternalTransform, Frame, Pixels, Transform

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
class ModelInput:
    """One batch (B,C,H,W) a view, the plain one first, with the pictures and where the input lies in them.

    Where it is `raw` the batches are uint8, and `develop` makes the model's input of them by that transform.
    """

    batches: tuple[Tensor, ...]
    mirrored: tuple[bool, ...]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    raw: Transform | None = None


def prepare_pixels(image: Any, transform: Transform | ExternalTransform, views: Views) -> ModelInput:
    """One image for every view, its pixels left in uint8 for `develop`; a tensor, or a user's transform, as it is."""
    if isinstance(transform, ExternalTransform) or isinstance(image, Tensor | list | tuple):
        return prepare(image, transform, views)
    found = tuple(pictures(image))
    if len(found) != 1 or found[0].tensor is not None:
        return prepare(image, transform, views)
    opened = _opened(found[0], transform)
    made = [transform.scaled(scale).pixels(opened) for scale in views.scales]
    batches = [torch.from_numpy(pixels[None].copy()).permute(0, 3, 1, 2) for pixels, _ in made]
    return _viewed(batches, found, (made[0][1],), views, raw=transform)


def normalise_on(ready: ModelInput, device: torch.device) -> ModelInput:
    """What `prepare` would have made, on `device`: pixels are normalised there, to the same bits."""
    if ready.raw is not None and device.type == "cpu":
        batches = tuple(_normalised(batch, ready.raw) for batch in ready.batches)
    elif device.type == "cuda" or ready.raw is not None:
        batches = tuple(batch.to(device, non_blocking=batch.device.type == "cpu") for batch in ready.batches)
        if ready.raw is not None:
            batches = tuple(look_up(_table(ready.raw, device), batch) for batch in batches)
    else:
        return ready
    return replace(ready, batches=batches, raw=None)


@lru_cache(maxsize=8)
def _table(transform: Transform, device: torch.device) -> Tensor:
    return transform.table().to(device)


def _normalised(batch: Tensor, transform: Transform) -> Tensor:
    made = np.empty(tuple(batch.shape), np.float32)
    for pixels, into in zip(_array(batch), made, strict=True):
        transform.normalise(pixels, into)
    return torch.from_numpy(made)


def look_up(table: Tensor, pixels: Tensor) -> Tensor:
    """table[c, x] for every pixel x of channel c: (C,256) and (B,C,H,W) uint8 -> (B,C,H,W)."""
    start = torch.arange(0, table.numel(), table.shape[1], dtype=torch.int32, device=table.device)
    places = (pixels.int() + start[:, None, None]).contiguous()
    return table.flatten().index_select(0, places.flatten()).view(places.shape)


def prepare(images: Any, transform: Transform | ExternalTransform, views: Views) -> ModelInput:
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
    fresh = len(shown) == 1 and shown[0].tensor is None and isinstance(transform, Transform)
    batches = [column[0][None] if fresh else torch.stack(column) for column in columns]
    return _viewed(batches, tuple(shown), tuple(frames), views)


def _whole(batch: Tensor, transform: Transform | ExternalTransform, views: Views) -> ModelInput:
    """A batch that is preprocessed already: as it is, and scaled for the other views."""
    scale = (transform.mean, transform.std) if isinstance(transform, Transform) else None
    size = (int(batch.shape[2]), int(batch.shape[3]))
    batches = [_scaled(batch, factor) for factor in views.scales]
    return _viewed(batches, Slices(batch, scale), (Frame.whole(size, size),) * len(batch), views)


def _viewed(
    batches: list[Tensor],
    shown: Sequence[Picture],
    frames: tuple[Frame, ...],
    views: Views,
    *,
    raw: Transform | None = None,
) -> ModelInput:
    flips = (False, True) if views.mirrored else (False,)
    return ModelInput(
        tuple(batch.flip(3) if flip else batch for batch in batches for flip in flips),
        flips * len(batches),
        shown,
        frames,
        raw,
    )


def join(several: Sequence[ModelInput], *, pin: bool = False) -> ModelInput:
    """One of many: their images in one batch a view. They must be of one size. `pin`: in memory a GPU reads itself."""
    shapes = {tuple(ready.batches[0].shape[1:]) for ready in several}
    if len(shapes) > 1:
        raise GamlensError(
            f"The transform gives images of several sizes ({', '.join(map(str, sorted(shapes)))}): use one size, or "
            "one image at a time."
        )
    return ModelInput(
        tuple(_joined(views, pin) for views in zip(*(ready.batches for ready in several), strict=True)),
        several[0].mirrored,
        tuple(picture for ready in several for picture in ready.pictures),
        tuple(frame for ready in several for frame in ready.frames),
        several[0].raw,
    )


def part(ready: ModelInput, number: int) -> ModelInput:
    """One image of a batch."""
    at = slice(number, number + 1)
    return replace(
        ready, batches=tuple(b[at] for b in ready.batches), pictures=ready.pictures[at], frames=ready.frames[at]
    )


def _one(
    picture: Picture, transform: Transform | ExternalTransform, scales: tuple[float, ...]
) -> tuple[Frame, list[Tensor]]:
    """One picture at every scale, (C,h,w) each; a tensor, or what a foreign transform gave, is resized."""
    if picture.tensor is not None:
        size = (int(picture.tensor.shape[1]), int(picture.tensor.shape[2]))
        return Frame.whole(size, size), [_scaled(picture.tensor, scale) for scale in scales]
    if isinstance(transform, ExternalTransform):
        tensor, frame = transform(picture.open())
        return frame, [_scaled(tensor, scale) for scale in scales]
    image = _opened(picture, transform)
    made = [transform.scaled(scale)(image) for scale in scales]
    return made[0][1], [tensor for tensor, _ in made]


def _opened(picture: Picture, transform: Transform) -> Image.Image:
    return picture.open().convert("L") if len(transform.mean) == 1 else picture.open()


def _joined(batches: Sequence[Tensor], pin: bool) -> Tensor:
    """Batches one after another. Pixels by numpy: torch would start threads of its own in every thread that decodes."""
    first = batches[0]
    if first.device.type != "cpu" or not (pin or first.dtype == torch.uint8):
        return torch.cat(list(batches))
    count, (channels, height, width) = sum(map(len, batches)), first.shape[1:]
    if first.dtype != torch.uint8:
        whole = torch.empty(count, channels, height, width, dtype=first.dtype, pin_memory=pin)
        return torch.cat(list(batches), out=whole)
    whole = torch.empty(count, height, width, channels, dtype=first.dtype, pin_memory=pin)
    np.concatenate([_array(batch) for batch in batches], out=whole.numpy())
    return whole.permute(0, 3, 1, 2)


def _array(batch: Tensor) -> Pixels:
    """(B,C,H,W) uint8 as (B,H,W,C)."""
    return batch.permute(0, 2, 3, 1).numpy()


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return tensor
    size = (round(tensor.shape[-2] * scale), round(tensor.shape[-1] * scale))
    batch = tensor if tensor.ndim == 4 else tensor[None]
    made = F.interpolate(batch, size=size, mode="bicubic", align_corners=False, antialias=scale < 1)
    return made if tensor.ndim == 4 else made[0]
