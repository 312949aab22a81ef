"""Reading images: a path, a PIL image, a uint8 array or a preprocessed tensor becomes a Picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from gamlens.errors import GamlensError, reworded

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class Picture:
    """One image as the user gave it: a file that is read when needed, its pixels, or a model's input.

    `scale` is the mean and std that turn a preprocessed tensor (C,H,W) back into colours.
    """

    name: str
    path: str | None = None
    pixels: Image.Image | None = None
    tensor: Tensor | None = None
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def open(self) -> Image.Image:
        """The picture in RGB, upright."""
        if self.pixels is not None:
            with reworded(f"Cannot read the PIL image {self.name!r}"):
                image = rgb(self.pixels)
                return image.copy() if image is self.pixels else image
        if self.path is not None:
            return upright(self.path)
        if self.tensor is None:
            raise GamlensError(f"There is no picture behind {self.name!r}: it was not kept.")
        return _from_tensor(self.tensor, self.scale)

    def cpu(self) -> Picture:
        """The same picture with its tensor, if it has one, in the memory of the CPU."""
        return replace(self, tensor=self.tensor.cpu()) if self.tensor is not None else self


@dataclass(frozen=True, eq=False)
class BatchPictures(Sequence[Picture]):
    """The pictures of a preprocessed batch (B,C,H,W), each made when it is asked for."""

    batch: Tensor
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __len__(self) -> int:
        return self.batch.shape[0]

    def __getitem__(self, place: Any) -> Any:
        places = range(len(self))[place]
        if isinstance(places, int):
            return Picture(f"image {places}", tensor=self.batch[places], scale=self.scale)
        return tuple(self[at] for at in places)


Slices = BatchPictures  # the name in results that version 0.1 pickled


def pictures(images: Any) -> Iterator[Picture]:
    """Every image of what the user gave: one image, a batch, or a list of images."""
    if isinstance(images, list | tuple):
        if not images:
            raise GamlensError("There is no image: the list is empty.")
        for number, image in enumerate(images):
            for picture in pictures(image):
                named = picture.path is not None or picture is image
                yield picture if named else replace(picture, name=f"image {number}")
    elif isinstance(images, Picture):
        yield images
    elif isinstance(images, str | os.PathLike):
        place = Path(images)
        yield Picture(place.name, path=str(place))
    elif isinstance(images, Image.Image):
        yield Picture("image 0", pixels=images)
    elif isinstance(images, np.ndarray):
        yield from _from_array(images)
    elif isinstance(images, Tensor):
        yield from _from_batch(images)
    else:
        raise GamlensError(
            f"An image is a path, a PIL image, a uint8 array (H,W,3), a preprocessed tensor (B,C,H,W), or a list of "
            f"these; found {type(images).__name__}."
        )


def upright(path: str | os.PathLike[str]) -> Image.Image:
    """An image file decoded whole, EXIF rotation applied, in RGB. Anything wrong with it is a GamlensError."""
    name = str(path)
    try:
        with Image.open(name) as image:
            most = Image.MAX_IMAGE_PIXELS
            if most is not None and image.width * image.height > most:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels, {most} at most")
            image.load()
            return rgb(image)
    except Image.DecompressionBombError as error:
        raise GamlensError(
            f"{name!r} is too large to decode safely ({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS."
        ) from error
    except MemoryError as error:
        raise GamlensError(f"{name!r} does not fit into memory.") from error
    except Exception as error:
        if not os.path.exists(name):
            raise GamlensError(f"There is no file {name!r}.") from error
        if os.path.isdir(name):
            raise GamlensError(f"{name!r} is a folder: give the image files in it.") from error
        if os.path.getsize(name) == 0:
            raise GamlensError(f"{name!r} is empty (0 bytes).") from error
        raise GamlensError(f"Cannot read {name!r} as an image: {type(error).__name__}: {error}") from error


def rgb(image: Image.Image) -> Image.Image:
    """Any PIL image, upright, in RGB: transparency over white, 16 bits and floats brought to 8. Itself if it is so."""
    image.load()
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        top = 65535.0 if image.mode.startswith("I") else max(float(values.max(initial=0)), 1e-12)
        top = 255.0 if image.mode == "I" and values.max(initial=0) <= 255 else top
        image = Image.fromarray(((values / top).clip(0, 1) * 255).round().astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_array(array: np.ndarray[Any, Any]) -> Iterator[Picture]:
    if array.dtype != np.uint8:
        raise GamlensError(
            f"An array of {array.dtype} is not an image: give uint8 (H,W,3), or a preprocessed torch tensor."
        )
    if array.ndim == 4 and len(array):
        for number, item in enumerate(array):
            yield from (replace(picture, name=f"image {number}") for picture in _from_array(item))
        return
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise GamlensError(f"An image array is uint8 (H,W), (H,W,3) or (H,W,4); found {array.shape}.")
    yield Picture("image 0", pixels=Image.fromarray(array))


def _from_batch(batch: Tensor) -> Iterator[Picture]:
    """The images of a preprocessed batch (B,C,H,W), or one image (C,H,W), checked."""
    if not batch.is_floating_point():
        raise GamlensError(
            f"A tensor of {batch.dtype} is not a preprocessed image: give floating point (B,C,H,W) as the model "
            "takes it, or a uint8 numpy array (H,W,3) to have it preprocessed."
        )
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or 0 in batch.shape:
        raise GamlensError(f"A preprocessed tensor is (B,C,H,W) or (C,H,W), not empty; found {tuple(batch.shape)}.")
    yield from BatchPictures(batch)


def _from_tensor(tensor: Tensor, scale: tuple[tuple[float, ...], tuple[float, ...]] | None) -> Image.Image:
    """(C,H,W) back to colours: by mean and std where they are known, else stretched to its own range."""
    values = tensor.detach().float().cpu()
    if scale is not None and len(scale[0]) == len(values):
        values = values * torch.tensor(scale[1])[:, None, None] + torch.tensor(scale[0])[:, None, None]
    else:
        span = (values.max() - values.min()).clamp(min=1e-12)
        values = (values - values.min()) / span
    if len(values) not in (1, 3):
        values = values.mean(dim=0, keepdim=True)
    pixels = (values.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
