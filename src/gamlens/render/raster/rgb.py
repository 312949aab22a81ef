"""Convert pictures to 8-bit RGB, resize them, and put them side by side or one below another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gamlens.errors import GamlensError

ImageLike = Image.Image | NDArray[Any]


def rgb(image: ImageLike) -> Image.Image:
    """Convert a PIL image or a uint8 array, (H, W) or (H, W, 1|3|4), to an RGB picture; transparency becomes white."""
    picture = image if isinstance(image, Image.Image) else _from_array(image)
    if picture.mode[0] in "IF":
        raise GamlensError(
            f"A picture must have 8 bits per channel; found mode {picture.mode!r}: scale it to uint8 first."
        )
    if picture.width == 0 or picture.height == 0:
        raise GamlensError(
            f"A picture must have at least one pixel; found {picture.width} x {picture.height}: check how it was "
            "cropped."
        )
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.new("RGB", layer.size, "white")
        picture.paste(layer, mask=layer.getchannel("A"))
    return picture.convert("RGB")


def pixelated(image: Image.Image) -> bool:
    """Tell whether a picture is so small that its pixels should be shown as squares when it is enlarged."""
    return max(image.size) <= 64


def fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an image to the largest size inside `width` x `height`, keeping its aspect ratio."""
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    grows = pixelated(image) and ratio > 1
    return image.resize(size, Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS)


def thumbnail(image: Image.Image, side: int) -> Image.Image:
    """Return a copy of an image, shrunk so that it is at most `side` pixels wide and high."""
    copy = image.copy()
    copy.thumbnail((side, side))
    return copy


def beside(pictures: Sequence[Image.Image], *, gap: int = 12) -> Image.Image:
    """Put pictures side by side on white, with `gap` pixels between them, all at the height of the lowest one."""
    height = min(picture.height for picture in pictures)
    scaled = [picture.resize((max(1, round(picture.width * height / picture.height)), height)) for picture in pictures]
    row = Image.new("RGB", (sum(picture.width for picture in scaled) + gap * (len(scaled) - 1), height), "white")
    left = 0
    for picture in scaled:
        row.paste(picture, (left, 0))
        left += picture.width + gap
    return row


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Put pictures one below another on white."""
    size = max(picture.width for picture in pictures), sum(picture.height for picture in pictures)
    sheet = Image.new("RGB", size, "white")
    top = 0
    for picture in pictures:
        sheet.paste(picture, (0, top))
        top += picture.height
    return sheet


def _from_array(array: object) -> Image.Image:
    if not isinstance(array, np.ndarray):
        raise GamlensError(
            f"A picture must be a PIL image or a uint8 array; found {type(array).__name__}: convert it first."
        )
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not shaped:
        raise GamlensError(
            f"An image array must be uint8 of shape (H, W) or (H, W, 1|3|4); found {array.dtype} {array.shape}: move "
            "channels last and scale values to 0..255."
        )
    flat = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return Image.fromarray(np.ascontiguousarray(flat))
