"""From a PIL image to the model's input: our own transform, and a user's callable whose geometry is read from it."""

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
LARGEST_RESIZE = 1 << 22  # pixels: a whole image larger than this is not made before its centre is cropped
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Transform:
    """PIL image -> (C,H,W), resized bicubically on uint8, then normalised.

    Attributes:
        size: Height and width of the model's input.
        mean, std: One number per channel; one channel makes the image grey.
        mode: "squash" shows the model the whole image, stretched to `size`; "crop" resizes the short side to `short`
            and takes the centre.
        short: The short side before a crop.
    """

    size: Size = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    mode: Mode = "squash"
    short: int = 256

    def __post_init__(self) -> None:
        if self.mode not in ("squash", "crop"):
            raise GamlensError(f"A transform is 'squash' or 'crop', not {self.mode!r}.")
        if self.mode == "crop" and self.short < max(self.size):
            raise GamlensError(f"Cannot crop {self.size} from an image whose short side is {self.short}.")

    def __call__(self, image: Image.Image) -> tuple[Tensor, Frame]:
        """The model's input (C,H,W) and where it lies in the image."""
        pixels, frame = self.pixels(image)
        made = np.empty((len(self.mean), *self.size), np.float32)
        self.normalise(pixels, made)
        return torch.from_numpy(made), frame

    def pixels(self, image: Image.Image) -> tuple[Pixels, Frame]:
        """The resized image as (H,W,C) uint8, and where it lies in the original."""
        if self.mode == "crop":
            small, frame = self._cropped(image)
        else:
            frame = Frame.whole((image.height, image.width), self.size)
            small = image.resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC)
        pixels = np.asarray(small).reshape(*self.size, -1)
        if pixels.shape[2] != len(self.mean):
            raise GamlensError(f"The transform has {len(self.mean)} channels, the image {pixels.shape[2]}.")
        return pixels, frame

    def normalise(self, pixels: Pixels, into: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Write (x / 255 - mean) / std of `pixels` (H,W,C) to `into` (C,H,W).

        It is done by numpy because torch would start threads of its own in every thread that decodes images.
        """
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        np.divide(pixels.transpose(2, 0, 1), 255, out=into, dtype=np.float32)
        np.subtract(into, mean, out=into)
        np.divide(into, std, out=into)

    def table(self) -> Tensor:
        """What each value of a uint8 pixel becomes: (C,256). With it a GPU normalises to the same bits as numpy."""
        made = np.empty((len(self.mean), 1, 256), np.float32)
        self.normalise(np.arange(256, dtype=np.uint8)[None, :, None].repeat(len(self.mean), axis=2), made)
        return torch.from_numpy(made[:, 0])

    def using(self, mode: str) -> Transform:
        """The same input, squashed or cropped."""
        return replace(self, mode=cast(Mode, mode))

    def scaled(self, factor: float) -> Transform:
        """The same view of the image at another input size."""
        size = (round(self.size[0] * factor), round(self.size[1] * factor))
        return self if factor == 1 else replace(self, size=size, short=round(self.short * factor))

    def _cropped(self, image: Image.Image) -> tuple[Image.Image, Frame]:
        """The centre of the image whose short side is resized to `short`."""
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
    """A user's own callable on PIL images; where its output lies in the image is read from its torchvision parts."""

    fn: Callable[[Image.Image], Any]

    def __call__(self, image: Image.Image) -> tuple[Tensor, Frame]:
        """The model's input (C,H,W) and where it lies in the image."""
        with reworded("The transform failed on an image"):
            tensor = self.fn(image)
        if not isinstance(tensor, Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise GamlensError(f"The transform must turn a PIL image into a (C,H,W) tensor; it gave {found}.")
        size = (int(tensor.shape[1]), int(tensor.shape[2]))
        return tensor, Frame((image.height, image.width), size, self._window(image))

    def _window(self, image: Image.Image) -> tuple[float, float, float, float]:
        """The part (x0, y0, x1, y1) of the image that the callable's steps leave."""
        width, height, left, top = image.width, image.height, 0.0, 0.0
        seen_w, seen_h = float(width), float(height)
        for kind, value in _steps(self.fn):
            if kind == "unknown":
                warn(f"The transform's {value} is not understood: maps are laid over the whole image.")
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


_HARMLESS = {
    *("ToTensor", "Normalize", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Grayscale", "RGB"),
    *("MaybeToTensor", "ToPureTensor"),
}


def _steps(fn: Any) -> list[tuple[str, Any]]:
    """What a torchvision transform does to the geometry: ("resize", (side,) or (h, w)), ("crop", (h, w)), or
    ("unknown", name)."""
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
    """(width, height) scaled so that the short side is `short`; the long side is rounded down, as torchvision does."""
    width, height = size
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _offset(side: int, crop: int) -> int:
    """Where torchvision's centre crop starts; it pads an image that is smaller than the crop."""
    return round((side - crop) / 2) if side >= crop else -((crop - side) // 2)


def _sides(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


def _pair(size: Any) -> Size:
    return _sides(size)[0], _sides(size)[-1]
