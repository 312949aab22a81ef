"""A saliency map laid over its photo."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gamlens.errors import GamlensError, Registry
from gamlens.render.elements import RGB, BoxCorners
from gamlens.render.raster.colormaps import levels, lut, strength
from gamlens.render.raster.rgb import ImageLike, rgb

OUTLINE_LIGHT: RGB = (255, 255, 255)
OUTLINE_DARK: RGB = (18, 18, 22)
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_STRIP = 1 << 18


class Blend(NamedTuple):
    """out = photo * keep + grey * luma + colour, each looked up by the map's level."""

    keep: NDArray[Any]  # (256, 1)
    luma: NDArray[Any]  # (256, 3)
    colour: NDArray[Any]  # (256, 3)


def _heat(cmap: str, opacity: float) -> Blend:
    colour, salient = lut(cmap).astype(np.float32), strength(cmap)[:, None]
    alpha = opacity * salient
    quiet = opacity * (1 - salient)
    photo = (1 - alpha) * (1 - 0.35 * quiet)
    grey = photo * np.minimum(1.4 * quiet, 1)
    glow = alpha * colour
    return Blend(photo - grey, grey + 0.32 / 255 * glow, 0.82 * glow)


def _spotlight(cmap: str, opacity: float) -> Blend:
    return Blend(strength(cmap)[:, None], np.zeros((256, 3)), np.zeros((256, 3)))


def _flat(cmap: str, opacity: float) -> Blend:
    return Blend(np.full((256, 1), 1 - opacity), np.zeros((256, 3)), opacity * lut(cmap).astype(np.float32))


STYLES: dict[str, Callable[[str, float], Blend]] = Registry(
    "overlay style", {"heat": _heat, "spotlight": _spotlight, "flat": _flat}
)


def overlay(
    image: ImageLike,
    map: NDArray[Any],
    *,
    opacity: float = 0.7,
    cmap: str = "ember",
    boxes: Iterable[BoxCorners] = (),
    mask: NDArray[np.bool_] | None = None,
    style: str = "heat",
) -> Image.Image:
    """`map` (H, W) in [0, 1] shown on `image` (H, W): "heat", "spotlight" (photo x map) or "flat".

    `boxes` are half-open (x0, y0, x1, y1) in pixels; `mask` (H, W) is outlined. "spotlight" needs no opacity.
    """
    if not 0 <= opacity <= 1:
        raise GamlensError(f"opacity must lie in [0, 1], found {opacity!r}: try 0.7")
    photo = rgb(image)
    level = levels(map)
    _same_size("map", level.shape, photo)
    picture = Image.fromarray(_mix(np.asarray(photo), level, STYLES[style](cmap, opacity)))
    if mask is not None:
        picture = outlined(picture, mask)
    return boxed(picture, boxes)


def _same_size(what: str, shape: tuple[int, ...], photo: Image.Image) -> None:
    if shape != (photo.height, photo.width):
        raise GamlensError(
            f"the {what} must have the image's size {(photo.height, photo.width)} (H, W), "
            f"found {shape}: resize it first"
        )


def _mix(photo: NDArray[np.uint8], level: NDArray[np.uint8], blend: Blend) -> NDArray[np.uint8]:
    keep, luma, colour = (table.astype(np.float32) for table in blend)
    out = np.empty_like(photo)
    rows = max(1, _STRIP // photo.shape[1])
    for top in range(0, len(photo), rows):
        part, index = photo[top : top + rows].astype(np.float32), level[top : top + rows]
        grey = part @ _LUMA
        part *= keep[index]
        if luma.any():
            part += luma[index] * grey[..., None]
        if colour.any():
            part += colour[index]
        part += 0.5
        out[top : top + rows] = np.minimum(part, 255, out=part).astype(np.uint8)
    return out


def _thickness(picture: Image.Image, thick: float) -> int:
    """The width of a line in pixels: usually (`thick` = 1) a 180th of the shorter side."""
    return max(1, round(thick * min(picture.size) / 180))


def boxed(
    image: ImageLike,
    boxes: Iterable[BoxCorners],
    *,
    colour: RGB = OUTLINE_LIGHT,
    dashed: bool = False,
    thick: float = 1,
) -> Image.Image:
    """A copy of `image` with boxes drawn into it: in a colour, dashed or not, `thick` times the usual line.

    A line lies between two dark ones, inside its box; a side outside the picture moves to its edge.
    """
    picture = rgb(image)
    draw, light = ImageDraw.Draw(picture), _thickness(picture, thick)
    dark = max(1, light // 2)
    for box in boxes:
        x0, y0, x1, y1 = (float(side) for side in box)
        if not (np.isfinite((x0, y0, x1, y1)).all() and x0 < x1 and y0 < y1):
            raise GamlensError(f"a box is finite (x0, y0, x1, y1) with x0 < x1 and y0 < y1, found {box!r}: reorder it")
        left, top = max(0, int(np.floor(x0))), max(0, int(np.floor(y0)))
        right, bottom = min(picture.width, int(np.ceil(x1))) - 1, min(picture.height, int(np.ceil(y1))) - 1
        for inset, paint, width in ((0, OUTLINE_DARK, light + 2 * dark), (dark, colour, light)):
            corners = (left + inset, top + inset, right - inset, bottom - inset)
            if corners[0] <= corners[2] and corners[1] <= corners[3]:
                draw.rectangle(corners, outline=paint, width=width)
                if dashed and paint is colour:
                    _cut(draw, corners, light)
    return picture


def outlined(
    image: ImageLike, mask: NDArray[np.bool_], *, colour: RGB = OUTLINE_LIGHT, thick: float = 1
) -> Image.Image:
    """A copy of `image` with the inner border of `mask` (H, W) drawn into it: a light line, a dark one inside it."""
    picture = rgb(image)
    _same_size("mask", np.shape(mask), picture)
    if not np.any(mask):
        return picture.copy()
    pixels, mask = np.array(picture), np.asarray(mask, dtype=bool)
    down, across = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    window = np.s_[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
    light = _thickness(picture, thick)
    outer = mask[window]
    middle = _eroded(outer, light)
    inner = _eroded(middle, max(1, light // 2))
    pixels[window][outer & ~middle] = colour
    pixels[window][middle & ~inner] = OUTLINE_DARK
    return Image.fromarray(pixels)


def _cut(draw: ImageDraw.ImageDraw, corners: tuple[int, int, int, int], light: int) -> None:
    """Turn a line of that width into dashes: dark pieces across each side, none at a corner."""
    x0, y0, x1, y1 = corners
    piece = 5 * light
    for first, last, upright in ((x0, x1, False), (y0, y1, True)):
        for start in range(first + piece, last - piece, 2 * piece):
            end = min(start + piece, last - piece) - 1
            for edge in (x0, x1 - light + 1) if upright else (y0, y1 - light + 1):
                far = edge + light - 1
                draw.rectangle((edge, start, far, end) if upright else (start, edge, end, far), fill=OUTLINE_DARK)


def _eroded(mask: NDArray[np.bool_], times: int) -> NDArray[np.bool_]:
    for _ in range(times):
        wide = np.pad(mask, 1)
        mask = wide[1:-1, 1:-1] & wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:]
    return mask
