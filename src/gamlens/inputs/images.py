"""Read images: turn a path, a PIL image, a uint8 array or a preprocessed tensor into a Picture."""

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

from gamlens.errors import GamlensError, readable, reworded
from gamlens.files import check_plain

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # Pillow's names


@dataclass(frozen=True, eq=False)
class Picture:
    """One image as the user gave it: as a file, as pixels, or as a tensor.

    Attributes:
        name: The file's name, or "image 0", "image 1", ...
        path: A file, which is decoded each time the picture is opened.
        pixels: A PIL image.
        tensor: A preprocessed image (C,H,W).
        scale: The mean and std of each channel, by which `tensor` was normalised; they turn it back into colours.
    """

    name: str
    path: str | None = None
    pixels: Image.Image | None = None
    tensor: Tensor | None = None
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def open(self) -> Image.Image:
        """Return the picture in RGB, turned upright by its EXIF orientation. The result is never the user's object."""
        if self.pixels is not None:
            with reworded(f"Cannot read the PIL image {self.name!r}"):
                image = rgb(self.pixels)
                return image.copy() if image is self.pixels else image
        if self.path is not None:
            return upright(self.path)
        if self.tensor is None:
            raise GamlensError(
                f"The picture of {self.name!r} was not kept, so it cannot be shown: explain the image again."
            )
        return _from_tensor(self.tensor, self.scale)

    def cpu(self) -> Picture:
        """Return this picture with its tensor, if it has one, in CPU memory."""
        return replace(self, tensor=self.tensor.cpu()) if self.tensor is not None else self


@dataclass(frozen=True, eq=False)
class BatchPictures(Sequence[Picture]):
    """The pictures of a preprocessed batch (B,C,H,W); each Picture is created when it is indexed."""

    batch: Tensor
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __len__(self) -> int:
        return self.batch.shape[0]

    def __getitem__(self, place: Any) -> Any:
        places = range(len(self))[place]
        if isinstance(places, int):
            return Picture(f"image {places}", tensor=self.batch[places], scale=self.scale)
        return tuple(self[at] for at in places)


Slices = BatchPictures  # results pickled by version 0.1 look for this class under its old name


def pictures(images: Any) -> Iterator[Picture]:
    """Yield one Picture for each image in `images`: one image, a batch, or a (nested) list of them.

    Pictures without a file name are called "image 0", "image 1", ... by their place in the list or batch.
    """
    if isinstance(images, list | tuple):
        if not images:
            raise GamlensError("There is no image: the list is empty. Give at least one.")
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


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Open an image file with Pillow, without decoding its pixels yet.

    Only IMAGE_FORMATS are tried, whatever the file is called: Pillow's decoders of other formats may run programs (EPS
    starts Ghostscript). Only plain files are opened: reading a pipe or a device may never end.
    """
    name = os.fspath(path)
    if readable(name) != name:
        raise GamlensError(f"The name of the file '{readable(name)}' is not UTF-8: rename the file.")
    check_plain(name)
    return Image.open(name, formats=IMAGE_FORMATS)


def upright(path: str | os.PathLike[str]) -> Image.Image:
    """Decode an image file completely, apply its EXIF rotation, and convert it to RGB.

    Any failure becomes a GamlensError that names the file.
    """
    name = str(path)
    try:
        with open_image(name) as image:
            most = Image.MAX_IMAGE_PIXELS
            if most is not None and image.width * image.height > most:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels, {most} at most")
            image.load()
            return rgb(image)
    except GamlensError:
        raise
    except Image.DecompressionBombError as error:
        raise GamlensError(
            f"{name!r} is too large to decode safely ({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS."
        ) from error
    except MemoryError as error:
        raise GamlensError(f"The image {name!r} does not fit into memory: make it smaller.") from error
    except Exception as error:
        if os.path.islink(name) and not os.path.exists(name):
            raise GamlensError(f"{name!r} is a link that leads to no file ({error}): remove it, or mend it.") from error
        if not os.path.exists(name):
            raise GamlensError(f"There is no file {name!r}: check the path.") from error
        if os.path.isdir(name):
            raise GamlensError(f"{name!r} is a folder, not an image: give the image files in it.") from error
        if os.path.getsize(name) == 0:
            raise GamlensError(f"The image file {name!r} is empty (0 bytes): copy or download it again.") from error
        raise GamlensError(f"Cannot read {name!r} as an image: {type(error).__name__}: {error}") from error


def rgb(image: Image.Image) -> Image.Image:
    """Convert any PIL image to 8-bit RGB and turn it upright by its EXIF orientation.

    Transparent pixels are laid over white. Integer images (modes I, I;16) are divided by 65535, or by 255 if no value
    of mode I exceeds that; float images by their maximum. An upright RGB image is returned itself, not a copy.
    """
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
    """Yield the images of a uint8 array: (H,W), (H,W,1), (H,W,3) or (H,W,4), or a batch of these."""
    if array.dtype != np.uint8:
        raise GamlensError(
            f"An array of {array.dtype} is not read as an image: give an array of uint8 (H,W,3), or a preprocessed "
            "torch tensor."
        )
    if array.ndim == 4 and len(array):
        for number, item in enumerate(array):
            yield from (replace(picture, name=f"image {number}") for picture in _from_array(item))
        return
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise GamlensError(
            f"An image array has the shape (H,W), (H,W,3) or (H,W,4) and is not empty; found {array.shape}."
        )
    yield Picture("image 0", pixels=Image.fromarray(array))


def _from_batch(batch: Tensor) -> Iterator[Picture]:
    """Yield the images of a preprocessed float tensor, (B,C,H,W) or (C,H,W)."""
    if not batch.is_floating_point():
        raise GamlensError(
            f"A tensor of {batch.dtype} is not a preprocessed image: give a floating point tensor (B,C,H,W) as the "
            "model takes it, or a uint8 numpy array (H,W,3), which gamlens preprocesses."
        )
    if batch.layout != torch.strided or batch.is_meta:
        raise GamlensError(
            f"A preprocessed image is a dense tensor with values; found one with {batch.layout} on the device "
            f"'{batch.device}': give tensor.to_dense(), on the CPU or a GPU."
        )
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or 0 in batch.shape:
        raise GamlensError(
            f"A preprocessed tensor has the shape (B,C,H,W) or (C,H,W) and is not empty; found {tuple(batch.shape)}."
        )
    yield from BatchPictures(batch)


def _from_tensor(tensor: Tensor, scale: tuple[tuple[float, ...], tuple[float, ...]] | None) -> Image.Image:
    """Turn a preprocessed tensor (C,H,W) back into an RGB image.

    With a known mean and std this is x * std + mean; otherwise the values are stretched from their own minimum and
    maximum to 0 and 1. If there are neither 1 nor 3 channels, they are averaged to grey.
    """
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
