"""Draw a saliency map over its photo, and boxes and outlines into pictures."""

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
_STRIP = 1 << 18  # how many pixels `_mix` converts to float32 at once; it limits the memory


class Blend(NamedTuple):
    """The tables of an overlay style, indexed by the map's value as a level from 0 to 255.

    A pixel of the result is photo * keep + grey * luma + colour, where grey is the brightness of the photo's pixel.
    """

    keep: NDArray[Any]  # (256, 1)
    luma: NDArray[Any]  # (256, 3)
    colour: NDArray[Any]  # (256, 3)


def _heat(cmap: str, opacity: float) -> Blend:
    """Colour the salient pixels; darken and desaturate the photo where the map is low.

    With saliency s (0 to 1), the colour covers the photo by alpha = opacity * s. As q = opacity * (1 - s) grows, the
    photo loses up to 35 % of its brightness and all of its saturation. The colour is multiplied by
    0.82 + 0.32 * (brightness of the photo, 0 to 1), so that details of the photo show in it.
    """
    colour, salient = lut(cmap).astype(np.float32), strength(cmap)[:, None]
    alpha = opacity * salient
    quiet = opacity * (1 - salient)
    photo = (1 - alpha) * (1 - 0.35 * quiet)
    grey = photo * np.minimum(1.4 * quiet, 1)
    glow = alpha * colour
    return Blend(photo - grey, grey + 0.32 / 255 * glow, 0.82 * glow)


def _spotlight(cmap: str, opacity: float) -> Blend:
    """Multiply the photo by the map."""
    return Blend(strength(cmap)[:, None], np.zeros((256, 3)), np.zeros((256, 3)))


def _flat(cmap: str, opacity: float) -> Blend:
    """Mix photo and colours with the same opacity everywhere."""
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
    """Draw a map over an image.

    Args:
        image: A PIL image, or a uint8 array (H, W) or (H, W, 3).
        map: (H, W) in [0, 1], of the image's size.
        opacity: How strongly the map covers the image, from 0 to 1. "spotlight" ignores it.
        cmap: A name of COLORMAPS.
        boxes: Boxes to draw, half-open (x0, y0, x1, y1) in pixels.
        mask: A region to outline, (H, W) bool.
        style: "heat" (colours where the map is high, a dimmed photo elsewhere), "spotlight" (photo times map) or "flat"
            (colours everywhere).

    Returns:
        An RGB image of the same size.
    """
    if not 0 <= opacity <= 1:
        raise GamlensError(f"opacity must lie in [0, 1]; found {opacity!r}: try 0.7.")
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
            f"The {what} must have the image's size {(photo.height, photo.width)} (H, W); found {shape}: resize it "
            "first."
        )


def _mix(photo: NDArray[np.uint8], level: NDArray[np.uint8], blend: Blend) -> NDArray[np.uint8]:
    """Apply a Blend to a photo (H, W, 3) with map levels (H, W), a few rows at a time."""
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
    """Return a line width in pixels: `thick` times a 180th of the picture's shorter side, but at least 1."""
    return max(1, round(thick * min(picture.size) / 180))


def boxed(
    image: ImageLike,
    boxes: Iterable[BoxCorners],
    *,
    colour: RGB = OUTLINE_LIGHT,
    dashed: bool = False,
    thick: float = 1,
) -> Image.Image:
    """Draw boxes into a copy of an image.

    Each line lies inside its box, between two dark lines, so that it is visible on any background. A side of a box that
    lies outside the picture is drawn at the picture's edge.

    Args:
        image: The image.
        boxes: Half-open (x0, y0, x1, y1) in pixels.
        colour: The colour of the lines.
        dashed: Whether the lines are dashed.
        thick: A factor for the line width; 1 is a 180th of the picture's shorter side.
    """
    picture = rgb(image)
    draw, light = ImageDraw.Draw(picture), _thickness(picture, thick)
    dark = max(1, light // 2)
    for box in boxes:
        x0, y0, x1, y1 = (float(side) for side in box)
        if not (np.isfinite((x0, y0, x1, y1)).all() and x0 < x1 and y0 < y1):
            raise GamlensError(
                f"A box must be four finite numbers (x0, y0, x1, y1) with x0 < x1 and y0 < y1; found {box!r}: check "
                "the order of its numbers."
            )
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
    """Draw the outline of a mask (H, W) into a copy of an image: a line along the inside of its border, and a dark
    line inside of that.
    """
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
    """Turn a box line of width `light` into dashes, by dark pieces over each side that leave the corners free."""
    x0, y0, x1, y1 = corners
    piece = 5 * light
    for first, last, upright in ((x0, x1, False), (y0, y1, True)):
        for start in range(first + piece, last - piece, 2 * piece):
            end = min(start + piece, last - piece) - 1
            for edge in (x0, x1 - light + 1) if upright else (y0, y1 - light + 1):
                far = edge + light - 1
                draw.rectangle((edge, start, far, end) if upright else (start, edge, end, far), fill=OUTLINE_DARK)


def _eroded(mask: NDArray[np.bool_], times: int) -> NDArray[np.bool_]:
    """Remove the border pixels of a mask (H, W), `times` times over."""
    for _ in range(times):
        wide = np.pad(mask, 1)
        mask = wide[1:-1, 1:-1] & wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:]
    return mask
