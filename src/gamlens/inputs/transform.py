"""Turn a PIL image into the model's input, by our own `Transform` or by a user's callable (`ExternalTransform`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gamlens.errors import GamlensError, reworded, warn
from gamlens.inputs.frame import Frame, Size

Mode = Literal["squash", "crop"]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
LARGEST_RESIZE = 1 << 22  # if the whole resized image would have more pixels, only the crop is resized, to save memory
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Transform:
    """Turns a PIL image into the model's input: resize bicubically in uint8, divide by 255, normalise.

    Give one to `Lens(model, transform=...)`, or call it: it returns the input (C,H,W) and the Frame that says which
    part of the image the input shows.

    Attributes:
        size: Height and width of the model's input.
        mean: The mean of each channel, subtracted after the division by 255. With one number, images are converted to
            grey and the input has one channel.
        std: The standard deviation of each channel, by which the difference is divided.
        mode: "squash" stretches the whole image to `size`, so that the model sees all of it; "crop" resizes the short
            side to `short` and takes the centre of `size`.
        short: The length of the short side before a crop, at least as large as `size`. "squash" does not use it.

    Example:
        >>> from PIL import Image
        >>> transform = Transform(size=(224, 224), mode="crop", short=256)
        >>> tensor, frame = transform(Image.new("RGB", (512, 1024)))
        >>> tensor.shape
        torch.Size([3, 224, 224])
        >>> frame.window  # x0, y0, x1, y1 in pixels of the original image
        (32.0, 288.0, 480.0, 736.0)
    """

    size: Size = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    mode: Mode = "squash"
    short: int = 256

    def __post_init__(self) -> None:
        if self.mode not in ("squash", "crop"):
            raise GamlensError(f"The mode of a transform must be 'squash' or 'crop'; found {self.mode!r}.")
        if not isinstance(self.size, tuple | list) or len(self.size) != 2:
            raise GamlensError(f"The size of a transform is (height, width), such as (224, 224); found {self.size!r}.")
        if self.mode == "crop" and self.short < max(self.size):
            raise GamlensError(
                f"Cannot crop {self.size} from an image whose short side is {self.short}: give short= at least "
                f"{max(self.size)}."
            )
        if np.ndim(self.mean) != 1 or np.ndim(self.std) != 1:
            raise GamlensError(
                "The mean and std of a transform have one number per channel, such as mean=(0.5, 0.5, 0.5); found "
                f"mean={self.mean!r}, std={self.std!r}."
            )
        if len(self.mean) != len(self.std) or not all(self.std):
            raise GamlensError(
                "A transform has one mean and one std per channel, and no std is 0; found "
                f"mean={self.mean}, std={self.std}."
            )

    def __call__(self, image: Image.Image) -> tuple[Tensor, Frame]:
        """Transform one image.

        Args:
            image: An RGB image, or a grey one if `mean` has one number.

        Returns:
            The model's input (C,H,W) float32, and the Frame that says which part of the image it shows.
        """
        pixels, frame = self.pixels(image)
        made = np.empty((len(self.mean), *self.size), np.float32)
        self.normalise(pixels, made)
        return torch.from_numpy(made), frame

    def pixels(self, image: Image.Image) -> tuple[Pixels, Frame]:
        """Resize an image without normalising it.

        Returns:
            The pixels (H,W,C) uint8, and the Frame that says which part of the image they show.
        """
        if not isinstance(image, Image.Image):
            raise GamlensError(f"A transform takes a PIL image; found {type(image).__name__}: use PIL.Image.open.")
        if self.mode == "crop":
            small, frame = self._cropped(image)
        else:
            frame = Frame.whole((image.height, image.width), self.size)
            small = image.resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC)
        pixels = np.asarray(small).reshape(*self.size, -1)
        if pixels.shape[2] != len(self.mean):
            raise GamlensError(
                f"The transform has {len(self.mean)} channels, the image {pixels.shape[2]}: give a mean and a std for "
                "each channel of the image."
            )
        return pixels, frame

    def normalise(self, pixels: Pixels, into: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Write (x / 255 - mean) / std of every pixel x to `into`.

        numpy computes this because torch would start its own worker threads in every thread that decodes images.

        Args:
            pixels: (H,W,C) uint8.
            into: (C,H,W) float32, which is overwritten.
        """
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        np.divide(pixels.transpose(2, 0, 1), 255, out=into, dtype=np.float32)
        np.subtract(into, mean, out=into)
        np.divide(into, std, out=into)

    def table(self) -> Tensor:
        """Return the normalised value of each possible uint8 pixel: entry (c, x) is (x / 255 - mean[c]) / std[c].

        A GPU that looks pixels up in this table gets the same bits as `normalise`.

        Returns:
            (C,256) float32.
        """
        made = np.empty((len(self.mean), 1, 256), np.float32)
        self.normalise(np.arange(256, dtype=np.uint8)[None, :, None].repeat(len(self.mean), axis=2), made)
        return torch.from_numpy(made[:, 0])

    def using(self, mode: str) -> Transform:
        """Return this transform with another mode, "squash" or "crop"."""
        return replace(self, mode=cast(Mode, mode))

    def scaled(self, factor: float) -> Transform:
        """Return a transform that shows the same part of the image at `factor` times the input size.

        >>> Transform(size=(224, 224)).scaled(2).size
        (448, 448)
        """
        size = (round(self.size[0] * factor), round(self.size[1] * factor))
        return self if factor == 1 else replace(self, size=size, short=round(self.short * factor))

    def _cropped(self, image: Image.Image) -> tuple[Image.Image, Frame]:
        """Resize the short side of an image to `short` and crop the centre; return it with its frame.

        A crop at (left, top) of the resized image, which is width x height, shows the window of the original whose
        corners are the crop's, multiplied by (image.width / width, image.height / height). Where the resized image
        would be very large, Pillow resamples only this window.
        """
        (width, height), (crop_height, crop_width) = _short_side(image.size, self.short), self.size
        left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
        sx, sy = image.width / width, image.height / height
        window = (left * sx, top * sy, (left + crop_width) * sx, (top + crop_height) * sy)
        frame = Frame((image.height, image.width), self.size, window)
        if width * height > LARGEST_RESIZE:
            return image.resize((crop_width, crop_height), Image.Resampling.BICUBIC, box=window), frame
        whole = image.resize((width, height), Image.Resampling.BICUBIC)
        return whole.crop((left, top, left + crop_width, top + crop_height)), frame


@dataclass(frozen=True)
class ExternalTransform:
    """A user's own callable from a PIL image to a tensor (C,H,W).

    Which part of the image its output shows is computed from the torchvision transforms that it consists of. If it
    contains anything else, a warning says so, and maps are laid over the whole image.
    """

    fn: Callable[[Image.Image], Any]

    def __call__(self, image: Image.Image) -> tuple[Tensor, Frame]:
        """Transform one image: the model's input (C,H,W), and the Frame that says which part of the image it shows."""
        with reworded("The transform failed on an image"):
            tensor = self.fn(image)
        if not isinstance(tensor, Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise GamlensError(
                f"The transform must turn a PIL image into a floating point (C,H,W) tensor; it gave {found}."
            )
        size = (int(tensor.shape[1]), int(tensor.shape[2]))
        return tensor, Frame((image.height, image.width), size, self._window(image))

    def _window(self, image: Image.Image) -> tuple[float, float, float, float]:
        """Follow the resizes and crops of the callable: which part (x0, y0, x1, y1) of the image its output shows.

        (width, height) is the current size, and (left, top, seen_w, seen_h) is the part of the original image that the
        current image shows. One current pixel is therefore seen_w / width original pixels wide.
        """
        width, height, left, top = image.width, image.height, 0.0, 0.0
        seen_w, seen_h = float(width), float(height)
        for kind, value in _steps(self.fn):
            if kind == "unknown":
                warn(
                    f"The transform's {value} is not understood, so it is not known which part of the image the model "
                    "sees: maps are laid over the whole image. Use torchvision's Resize and CenterCrop, or a "
                    "gamlens.Transform."
                )
                return 0.0, 0.0, float(image.width), float(image.height)
            if kind == "crop":
                sx, sy = seen_w / width, seen_h / height
                left += _offset(width, value[1]) * sx
                top += _offset(height, value[0]) * sy
                seen_w, seen_h, width, height = value[1] * sx, value[0] * sy, value[1], value[0]
            elif len(value) == 1:
                width, height = _short_side((width, height), value[0])
            else:
                height, width = value
        return left, top, left + seen_w, top + seen_h


_HARMLESS = {  # transforms that move no pixel
    *("ToTensor", "Normalize", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Grayscale", "RGB"),
    *("MaybeToTensor", "ToPureTensor"),
}


def _steps(fn: Any) -> list[tuple[str, Any]]:
    """List what a torchvision transform does to the geometry of an image.

    Returns:
        For each step ("resize", (short side,)), ("resize", (h, w)), ("crop", (h, w)), or ("unknown", class name).
    """
    name = type(fn).__name__
    if name == "Compose":
        return [step for part in fn.transforms for step in _steps(part)]
    if name == "ImageClassification":
        return [("resize", _sides(fn.resize_size)), ("crop", _pair(fn.crop_size))]
    if name == "Resize" and getattr(fn, "max_size", None) is None:
        return [("resize", _sides(fn.size))]
    if name == "CenterCrop":
        return [("crop", _pair(fn.size))]
    return [] if name in _HARMLESS else [("unknown", name)]


def _short_side(size: Size, short: int) -> Size:
    """Scale (width, height) so that the short side is `short`; the long side is rounded down, as in torchvision."""
    width, height = size
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _offset(side: int, crop: int) -> int:
    """Return where torchvision's centre crop starts: below zero if it pads an image that is smaller than the crop."""
    return round((side - crop) / 2) if side >= crop else -((crop - side) // 2)


def _sides(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


def _pair(size: Any) -> Size:
    """Read a crop size that is given as one number or as (h, w)."""
    return _sides(size)[0], _sides(size)[-1]
