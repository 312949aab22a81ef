"""Turn images into the model's input: one batch per view, where a view is a scale, mirrored or not."""

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
    """The views in which a model sees its images, to average maps over.

    Attributes:
        scales: Factors of the input size. The first is always 1, the plain view.
        mirrored: Whether the model also sees a mirrored copy at each scale.
    """

    scales: tuple[float, ...] = (1.0,)
    mirrored: bool = False

    @classmethod
    def parse(cls, views: ViewList) -> Views:
        """Read the `views=` argument.

        >>> Views.parse(("flip", 1.43, 2.0))
        Views(scales=(1.0, 1.43, 2.0), mirrored=True)
        """
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
    """B images ready for a model.

    Attributes:
        batches: One batch (B,C,H,W) per view, the plain view first. H and W differ between scales.
        mirrored: For each batch, whether it is a mirrored copy.
        pictures: The B images as the user gave them.
        frames: For each image, which part of it the plain view's input shows.
        views: The views that the batches belong to.
        pending_transform: None if the batches are normalised. Otherwise they hold uint8 pixels, and `normalise_on`
            normalises them with this transform.
    """

    batches: tuple[Tensor, ...]
    mirrored: tuple[bool, ...]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    views: Views = PLAIN_VIEW
    pending_transform: Transform | None = None


def prepare(images: Any, transform: Transform | ExternalTransform, views: Views = PLAIN_VIEW) -> ModelInput:
    """Decode images, transform them, and stack them into one batch per view.

    Args:
        images: One image, a list of images, or a preprocessed float tensor (B,C,H,W), which is used without a copy.
        transform: Resizes and normalises a decoded image.
        views: The views to make. A tensor is resized for other scales; files and pixels are decoded once and
            transformed at each scale.
    """
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
            f"The transform must bring all images of one call to one size; found {', '.join(sizes)}: use one call for "
            "each size."
        )
    # A single tensor made by our own Transform belongs to nobody else, so torch.stack need not copy it.
    own = len(shown) == 1 and shown[0].tensor is None and colours is not None
    batches = [column[0][None] if own else torch.stack(column) for column in zip(*made, strict=True)]
    return _with_mirrored(batches, tuple(shown), frames, views)


def _with_mirrored(
    batches: list[Tensor], shown: Sequence[Picture], frames: list[Frame], views: Views, raw: Transform | None = None
) -> ModelInput:
    """Make a ModelInput of one batch per scale. With `views.mirrored`, each batch is followed by its mirrored copy.

    `raw` is the transform that must still normalise the batches; None if they are normalised.
    """
    flips = (False, True) if views.mirrored else (False,)
    if views.mirrored:
        batches = [view for batch in batches for view in (batch, batch.flip(3))]
    return ModelInput(tuple(batches), flips * len(views.scales), shown, tuple(frames), views, raw)


def _transformed(
    picture: Picture, transform: Transform | ExternalTransform, scales: tuple[float, ...]
) -> tuple[Frame, list[Tensor]]:
    """Make the input tensors of one picture, one (C,h,w) per scale, and the frame of the plain view.

    Our own Transform resizes the original image to each scale. A given tensor, or the tensor that a user's transform
    returned, is itself resized.
    """
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
    """Decode a picture, in grey if the transform has one channel."""
    return picture.open().convert("L") if len(transform.mean) == 1 else picture.open()


def _whole(images: Tensor) -> Frame:
    """Return the frame of preprocessed images (...,H,W): the input is the whole image, unscaled."""
    height, width = images.shape[-2:]
    return Frame((height, width), (height, width), (0.0, 0.0, float(width), float(height)))


def _resized(batch: Tensor, scale: float) -> Tensor:
    """Resize a batch bicubically to `scale` times its height and width: (B,C,H,W) -> (B,C,h,w)."""
    if scale == 1:
        return batch
    size = (round(batch.shape[2] * scale), round(batch.shape[3] * scale))
    return F.interpolate(batch, size=size, mode="bicubic", align_corners=False, antialias=scale < 1)


def prepare_pixels(image: Any, transform: Transform | ExternalTransform, views: Views = PLAIN_VIEW) -> ModelInput:
    """Prepare one image for every view, but leave its pixels in uint8, to be normalised later by `normalise_on`.

    Only a quarter of the bytes must then be copied to a GPU. A tensor and a user's own transform are handled by
    `prepare` instead, and the result is normalised already. Several images, in a list or a batch, are an error.
    """
    shown = tuple(pictures(image))
    if len(shown) != 1:
        raise GamlensError(
            f"One image is expected here, found {len(shown)} images in one {type(image).__name__}: give each image as "
            "an item of its own."
        )
    if isinstance(transform, ExternalTransform) or shown[0].tensor is not None:
        return prepare(image, transform, views)
    opened = _opened(shown[0], transform)
    made = [transform.scaled(scale).pixels(opened) for scale in views.scales]
    batches = [torch.from_numpy(pixels[None].copy()).permute(0, 3, 1, 2) for pixels, _ in made]
    return _with_mirrored(batches, shown, [made[0][1]], views, raw=transform)


def normalise_on(ready: ModelInput, device: torch.device) -> ModelInput:
    """Move an input to `device` and normalise its pixels there, if it still holds pixels.

    The values are equal, bit for bit, to those that `prepare` computes on the CPU.
    """
    if ready.pending_transform is None and device.type != "cuda":
        return ready
    return replace(
        ready,
        batches=tuple(_normalised(batch, ready.pending_transform, device) for batch in ready.batches),
        pending_transform=None,
    )


def _normalised(batch: Tensor, transform: Transform | None, device: torch.device) -> Tensor:
    """Move one batch (B,C,H,W) to `device`. With a `transform` it holds uint8 pixels, which are normalised.

    On the CPU numpy normalises, as in `Transform.normalise`. On a GPU each pixel is looked up in `Transform.table`,
    because a division on the GPU could round differently.
    """
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
    """Replace every pixel x of channel c by table[c, x]: table (C,256), pixels (B,C,H,W) uint8 -> (B,C,H,W)."""
    start = torch.arange(0, table.numel(), table.shape[1], dtype=torch.int32, device=table.device)
    places = (pixels.int() + start[:, None, None]).contiguous()
    return table.flatten().index_select(0, places.flatten()).view(places.shape)


def join(several: Sequence[ModelInput], *, pin: bool = False) -> ModelInput:
    """Concatenate several inputs, all of one size, to one batch per view.

    Args:
        several: The inputs, made with the same views.
        pin: Whether the batches lie in pinned memory, from which a GPU copies without the CPU waiting.
    """
    shapes = {tuple(ready.batches[0].shape[1:]) for ready in several}
    if len(shapes) > 1:
        raise GamlensError(
            f"The transform gives images of several sizes ({', '.join(map(str, sorted(shapes)))}), which do not fit "
            "into one batch: use a transform with one size, or give one image at a time."
        )
    return replace(
        several[0],
        batches=tuple(
            _concatenated(batches, pin) for batches in zip(*(ready.batches for ready in several), strict=True)
        ),
        pictures=tuple(picture for ready in several for picture in ready.pictures),
        frames=tuple(frame for ready in several for frame in ready.frames),
    )


def part(ready: ModelInput, images: int | slice) -> ModelInput:
    """Return the input of one image, or of several, as a batch per view. It shares memory with `ready`."""
    at = slice(images, images + 1) if isinstance(images, int) else images
    batches = tuple(batch[at] for batch in ready.batches)
    return replace(ready, batches=batches, pictures=ready.pictures[at], frames=ready.frames[at])


def _concatenated(batches: Sequence[Tensor], pin: bool) -> Tensor:
    """Concatenate batches (B,C,H,W), in pinned memory if `pin`. The result has no graph, whatever the batches have.

    numpy joins uint8 pixels: torch would start its own worker threads in every thread that decodes images.
    """
    batches = [batch.detach() for batch in batches]
    first = batches[0]
    if first.device.type != "cpu" or not (pin or first.dtype == torch.uint8):
        return torch.cat(batches)
    count, (channels, height, width) = sum(map(len, batches)), first.shape[1:]
    if first.dtype != torch.uint8:
        whole = torch.empty(count, channels, height, width, dtype=first.dtype, pin_memory=pin)
        return torch.cat(batches, out=whole)
    whole = torch.empty(count, height, width, channels, dtype=first.dtype, pin_memory=pin)
    np.concatenate([_pixels_last(batch) for batch in batches], out=whole.numpy())
    return whole.permute(0, 3, 1, 2)


def _pixels_last(batch: Tensor) -> Pixels:
    """View a uint8 batch (B,C,H,W) as a numpy array (B,H,W,C)."""
    return batch.permute(0, 2, 3, 1).numpy()
