"""From the original image to the model's input, and back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from gamlens.errors import GamlensError, GamlensWarning

Size = tuple[int, int]
Mode = Literal["squash", "crop"]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
LARGEST = 1 << 22
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Frame:
    """Where the model's input lies in the original image.

    `window` is the part (x0, y0, x1, y1), in original pixels, that the model saw, stretched to `size`.
    """

    original: Size
    size: Size
    window: tuple[float, float, float, float]

    @classmethod
    def whole(cls, original: Size, size: Size) -> Frame:
        return cls(original, size, (0.0, 0.0, float(original[1]), float(original[0])))

    def boxes(self, boxes: Tensor) -> Tensor:
        """(N,4) boxes x0,y0,x1,y1 in input pixels -> the same in original pixels, clipped."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([(x1 - x0) / self.size[1], (y1 - y0) / self.size[0]]).repeat(2)
        moved = boxes * scale + boxes.new_tensor([x0, y0, x0, y0])
        limit = boxes.new_tensor([self.original[1], self.original[0]]).repeat(2)
        return torch.minimum(moved.clamp(min=0), limit)

    def boxes_in(self, boxes: Tensor) -> Tensor:
        """(N,4) boxes in original pixels -> the same in input pixels, clipped to what the model saw."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([self.size[1] / (x1 - x0), self.size[0] / (y1 - y0)]).repeat(2)
        moved = (boxes - boxes.new_tensor([x0, y0, x0, y0])) * scale
        limit = boxes.new_tensor([self.size[1], self.size[0]]).repeat(2)
        return torch.minimum(moved.clamp(min=0), limit)

    def mask_in(self, mask: Tensor) -> Tensor:
        """(H,W) bool at the original's size -> (H,W) bool at input size, by nearest; False outside the image."""
        x0, y0, x1, y1 = self.window
        rows = y0 + (torch.arange(self.size[0]) + 0.5) * (y1 - y0) / self.size[0]
        columns = x0 + (torch.arange(self.size[1]) + 0.5) * (x1 - x0) / self.size[1]
        inside = ((rows >= 0) & (rows < len(mask)))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))[None]
        y, x = rows.long().clamp(0, len(mask) - 1), columns.long().clamp(0, mask.shape[1] - 1)
        return mask[y][:, x] & inside

    def map(self, map: Tensor) -> Tensor:
        """(H,W) at input size -> (H,W) at the original's size; zero where the model did not look."""
        x0, x1 = _span(self.window[0], self.window[2], self.original[1])
        y0, y1 = _span(self.window[1], self.window[3], self.original[0])
        part = F.interpolate(map[None, None].float(), size=(y1 - y0, x1 - x0), mode="bilinear", antialias=True)[0, 0]
        canvas = part.new_zeros(self.original)
        top, left, bottom, right = max(y0, 0), max(x0, 0), min(y1, self.original[0]), min(x1, self.original[1])
        canvas[top:bottom, left:right] = part[top - y0 : bottom - y0, left - x0 : right - x0]
        return canvas.clamp(0, 1)


@dataclass(frozen=True)
class Transform:
    """PIL image -> (C,H,W), resized bicubically on uint8, then normalised.

    `squash` shows the model the whole image, stretched to `size`; `crop` resizes the short side to `short` and
    takes the centre.
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
        pixels, frame = self.pixels(image)
        made = np.empty((len(self.mean), *self.size), np.float32)
        self.normalise(pixels, made)
        return torch.from_numpy(made), frame

    def pixels(self, image: Image.Image) -> tuple[Pixels, Frame]:
        """The resized image as PIL has it: (H,W,C) uint8."""
        frame = Frame.whole((image.height, image.width), self.size)
        if self.mode == "squash":
            small = image.resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC)
        else:
            width, height, left, top = self._crop(image.width, image.height)
            sx, sy = image.width / width, image.height / height
            window = (left * sx, top * sy, (left + self.size[1]) * sx, (top + self.size[0]) * sy)
            if width * height <= LARGEST:
                whole = image.resize((width, height), Image.Resampling.BICUBIC)
                small = whole.crop((left, top, left + self.size[1], top + self.size[0]))
            else:
                small = image.resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC, box=window)
            frame = Frame(frame.original, self.size, window)
        pixels = np.asarray(small).reshape(*self.size, -1)
        if pixels.shape[2] != len(self.mean):
            raise GamlensError(f"The transform has {len(self.mean)} channels, the image {pixels.shape[2]}.")
        return pixels, frame

    def normalise(self, pixels: Pixels, into: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """(x / 255 - mean) / std of (H,W,C), written to (C,H,W). By numpy: torch would start threads of its own in
        every thread that decodes."""
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        np.divide(pixels.transpose(2, 0, 1), 255, out=into, dtype=np.float32)
        np.subtract(into, mean, out=into)
        np.divide(into, std, out=into)

    def table(self) -> Tensor:
        """What each value of a uint8 pixel becomes: (C,256). By it a device normalises to the same bits."""
        made = np.empty((len(self.mean), 1, 256), np.float32)
        self.normalise(np.arange(256, dtype=np.uint8)[None, :, None].repeat(len(self.mean), axis=2), made)
        return torch.from_numpy(made[:, 0])

    def using(self, mode: str) -> Transform:
        """The same input, squashed or cropped."""
        chosen: Any = mode
        return replace(self, mode=chosen)

    def scaled(self, factor: float) -> Transform:
        """The same view of the image at another input size."""
        size = (round(self.size[0] * factor), round(self.size[1] * factor))
        return self if factor == 1 else replace(self, size=size, short=round(self.short * factor))

    def _crop(self, width: int, height: int) -> tuple[int, int, int, int]:
        if width <= height:
            width, height = self.short, int(self.short * height / width)
        else:
            width, height = int(self.short * width / height), self.short
        return width, height, round((width - self.size[1]) / 2), round((height - self.size[0]) / 2)


@dataclass(frozen=True)
class ExternalTransform:
    """A user's own callable on PIL images; the geometry is read from its torchvision parts."""

    fn: Callable[[Image.Image], Any]

    def __call__(self, image: Image.Image) -> tuple[Tensor, Frame]:
        try:
            tensor = self.fn(image)
        except Exception as error:
            raise GamlensError(f"The transform failed on an image: {type(error).__name__}: {error}") from error
        if not isinstance(tensor, Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise GamlensError(f"The transform must turn a PIL image into a (C,H,W) tensor; it gave {found}.")
        size = (int(tensor.shape[1]), int(tensor.shape[2]))
        return tensor, Frame((image.height, image.width), size, self._window(image, size))

    def _window(self, image: Image.Image, size: Size) -> tuple[float, float, float, float]:
        width, height, left, top = image.width, image.height, 0.0, 0.0
        seen_w, seen_h = float(width), float(height)
        for step in _steps(self.fn):
            kind, value = step
            if kind == "resize" and isinstance(value, int):
                short = min(width, height)
                width, height = int(value * width / short), int(value * height / short)
            elif kind == "resize":
                height, width = value
            elif kind == "crop":
                sx, sy = seen_w / width, seen_h / height
                left += _offset(width, value[1]) * sx
                top += _offset(height, value[0]) * sy
                seen_w, seen_h, width, height = value[1] * sx, value[0] * sy, value[1], value[0]
            else:
                warnings.warn(
                    f"The transform's {value} is not understood: maps are laid over the whole image.",
                    GamlensWarning,
                    stacklevel=4,
                )
                return 0.0, 0.0, float(image.width), float(image.height)
        return left, top, left + seen_w, top + seen_h


_HARMLESS = {
    *("ToTensor", "Normalize", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Grayscale", "RGB"),
    *("MaybeToTensor", "ToPureTensor"),
}


def _steps(fn: Any) -> list[tuple[str, Any]]:
    """What a torchvision transform does to the geometry: ("resize", size), ("crop", (h, w)), ("unknown", name)."""
    name = type(fn).__name__
    if name == "Compose":
        return [step for part in fn.transforms for step in _steps(part)]
    if name == "ImageClassification":
        side = _pair(fn.crop_size)
        return [*_resize(fn.resize_size), ("crop", side)]
    if name == "Resize" and getattr(fn, "max_size", None) is None:
        return _resize(fn.size)
    if name == "CenterCrop":
        return [("crop", _pair(fn.size))]
    return [] if name in _HARMLESS else [("unknown", name)]


def _offset(side: int, crop: int) -> int:
    """Where torchvision's centre crop starts; it pads an image that is smaller than the crop."""
    return round((side - crop) / 2) if side >= crop else -((crop - side) // 2)


def _span(start: float, end: float, length: int) -> tuple[int, int]:
    """Whole pixels of a window, at least one, inside the image where the window is."""
    first, last = round(start), round(end)
    if last <= first:
        first = min(max(int(start), 0), length - 1)
        last = first + 1
    return first, last


def _resize(size: Any) -> list[tuple[str, Any]]:
    sides = [size] if isinstance(size, int) else list(size)
    return [("resize", sides[0] if len(sides) == 1 else (sides[0], sides[1]))]


def _pair(size: Any) -> Size:
    sides = [size] if isinstance(size, int) else list(size)
    return (sides[0], sides[-1])
