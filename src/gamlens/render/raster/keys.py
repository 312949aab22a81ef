"""Draw the legends ("keys") under a grid: what its colours, lines and series mean."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from gamlens.render.chart_layout import SWATCH_SIZE, swatch
from gamlens.render.elements import RGB, GridKey, LineKey, ScaleKey, Series
from gamlens.render.raster.chart_image import paint
from gamlens.render.raster.colormaps import lut
from gamlens.render.raster.lettering import font, line_height, plain
from gamlens.render.raster.overlay import OUTLINE_DARK, overlay

KEY_SIZE, BAR_WIDTH, PIECE_GAP, KEY_GAP = 13, 90, 7, 16
PHOTO_GREY = 150

PlacedPiece: TypeAlias = tuple[float, str | Image.Image]  # x within a line, and the text or RGBA picture to draw there


def ramp(scale: ScaleKey) -> Image.Image:
    """Draw the 256 colours of a colour map in a row, low to high; if `scale.over`, as they look over a grey photo."""
    if not scale.over:
        return Image.fromarray(np.array(lut(scale.cmap))[None])
    grey = np.full((1, 256, 3), PHOTO_GREY, np.uint8)
    return overlay(grey, np.linspace(0, 1, 256, dtype=np.float32)[None], cmap=scale.cmap)


def arranged(keys: Sequence[GridKey], room: float, scale: float) -> list[list[PlacedPiece]]:
    """Arrange the legends in lines that are at most `room` pixels wide; a wider legend gets a line of its own."""
    lines: list[list[PlacedPiece]] = []
    x, face = 0.0, font(KEY_SIZE * scale)
    for key in keys:
        pieces = _pieces(key, scale)
        widths = [face.getlength(piece) if isinstance(piece, str) else piece.width for piece in pieces]
        if not lines or x + sum(widths) + (len(pieces) - 1) * PIECE_GAP * scale > room:
            lines.append([])
            x = 0.0
        for piece, width in zip(pieces, widths, strict=True):
            lines[-1].append((x, piece))
            x += width + PIECE_GAP * scale
        x += (KEY_GAP - PIECE_GAP) * scale
    return lines


def draw_keys(
    sheet: Image.Image, lines: list[list[PlacedPiece]], corner: tuple[int, int], scale: float, ink: RGB
) -> None:
    """Draw arranged legends, starting at `corner` (left, top)."""
    pen, face = ImageDraw.Draw(sheet), font(KEY_SIZE * scale)
    step = line_height(KEY_SIZE * scale)
    for number, line in enumerate(lines):
        middle = corner[1] + step / 2 + number * (step + round(6 * scale))
        for x, piece in line:
            if isinstance(piece, str):
                pen.text((corner[0] + x, middle), piece, ink, face, "lm")
            else:
                sheet.paste(piece, (round(corner[0] + x), round(middle - piece.height / 2)), piece)


def _pieces(key: GridKey, scale: float) -> list[str | Image.Image]:
    """Return the texts and the pictures (RGBA) of a legend, from left to right."""
    if isinstance(key, ScaleKey):
        bar = ramp(key).resize((round(BAR_WIDTH * scale), max(4, round(0.75 * KEY_SIZE * scale)))).convert("RGBA")
        return [plain(key.label), plain(key.low), bar, plain(key.high)]
    picture = Image.new("RGBA", (round(SWATCH_SIZE[0] * scale), round(SWATCH_SIZE[1] * scale)))
    if isinstance(key, Series):
        paint(picture, swatch(key), scale)
        return [picture, plain(key.name)]
    _line(picture, key, scale)
    return [picture, plain(key.label)]


def _line(picture: Image.Image, key: LineKey, scale: float) -> None:
    """Draw a sample of a line between two dark lines, as `boxed` draws it into photos."""
    pen, thick, y = ImageDraw.Draw(picture), max(2, round(3 * scale)), picture.height / 2
    pen.line((0, y, picture.width, y), OUTLINE_DARK, thick + 2 * max(1, thick // 2))
    dashes = 5 if key.dashed else 1
    for number in range(0, dashes, 2):
        ends = (picture.width * at / dashes for at in (number, number + 1))
        pen.line([(x, y) for x in ends], key.colour, thick)
