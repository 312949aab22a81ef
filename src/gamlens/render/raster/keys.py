"""What colours and lines mean: the keys under a drawn grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from gamlens.render.elements import RGB, LineKey, ScaleKey
from gamlens.render.raster.colormaps import lut
from gamlens.render.raster.lettering import LEADING, font, plain
from gamlens.render.raster.overlay import overlay

KEY_SIZE, BAR_WIDTH, SWATCH_WIDTH, KEY_GAP = 13, 90, 24, 16
_PHOTO_GREY = 150


def ramp(scale: ScaleKey) -> Image.Image:
    """The scale's 256 colours in a row, low to high: as they are, or over a grey photo."""
    if not scale.over:
        return Image.fromarray(np.array(lut(scale.cmap))[None])
    grey = np.full((1, 256, 3), _PHOTO_GREY, np.uint8)
    return overlay(grey, np.linspace(0, 1, 256, dtype=np.float32)[None], cmap=scale.cmap)


def extent(key: ScaleKey | LineKey, scale: float) -> float:
    """How wide a key is."""
    face = font(KEY_SIZE * scale)
    words = face.getlength(plain(key.label)) + 8 * scale
    if isinstance(key, LineKey):
        return SWATCH_WIDTH * scale + words
    return words + BAR_WIDTH * scale + sum(face.getlength(plain(end)) + 6 * scale for end in (key.low, key.high))


def arranged(keys: Sequence[ScaleKey | LineKey], room: float, scale: float) -> list[list[ScaleKey | LineKey]]:
    """The keys in lines that fit into `room`; one too wide for it has a line of its own."""
    lines: list[list[ScaleKey | LineKey]] = []
    used = 0.0
    for key in keys:
        need = extent(key, scale)
        if lines and used + KEY_GAP * scale + need <= room:
            lines[-1].append(key)
            used += KEY_GAP * scale + need
        else:
            lines.append([key])
            used = need
    return lines


def put(
    sheet: Image.Image,
    lines: list[list[ScaleKey | LineKey]],
    corner: tuple[int, int],
    scale: float,
    ink: RGB,
    soft: RGB,
) -> None:
    """Draw the keys in lines from `corner` on."""
    pen, face = ImageDraw.Draw(sheet), font(KEY_SIZE * scale)
    step = round(KEY_SIZE * scale * LEADING)
    y = corner[1]
    for keys in lines:
        x: float = corner[0]
        for key in keys:
            if isinstance(key, LineKey):
                _line(pen, key, x, y + step / 2, scale)
                pen.text((x + (SWATCH_WIDTH + 8) * scale, y + step / 2), plain(key.label), soft, face, "lm")
            else:
                _scale(sheet, pen, key, x, y, step, scale, ink, soft)
            x += extent(key, scale) + KEY_GAP * scale
        y += step + round(6 * scale)


def _scale(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, key: ScaleKey, x: float, y: int, step: int, scale: float, ink: RGB,
    soft: RGB,
) -> None:  # fmt: skip
    face, middle = font(KEY_SIZE * scale), y + step / 2
    pen.text((x, middle), plain(key.label), soft, face, "lm")
    x += face.getlength(plain(key.label)) + 8 * scale
    pen.text((x, middle), plain(key.low), ink, face, "lm")
    x += face.getlength(plain(key.low)) + 6 * scale
    height = max(4, round(0.75 * KEY_SIZE * scale))
    bar = ramp(key).resize((round(BAR_WIDTH * scale), height))
    sheet.paste(bar, (round(x), round(middle - height / 2)))
    pen.text((x + (BAR_WIDTH + 6) * scale, middle), plain(key.high), ink, face, "lm")


def _line(pen: ImageDraw.ImageDraw, key: LineKey, x: float, y: float, scale: float) -> None:
    """A piece of the line between two dark ones, as it is drawn into pictures."""
    thick, end = max(2, round(3 * scale)), x + SWATCH_WIDTH * scale
    pen.line((x, y, end, y), fill=(18, 18, 22), width=thick + 2 * max(1, thick // 2))
    piece = (end - x) / 5 if key.dashed else end - x
    for number in range(0, 5 if key.dashed else 1, 2):
        pen.line((x + number * piece, y, x + (number + 1) * piece, y), fill=key.colour, width=thick)
