"""Put a colour bar below a picture: what the colours of its map stand for."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from gamlens.render.elements import RGB, ScaleKey
from gamlens.render.raster.grid_layout import TextLines
from gamlens.render.raster.keys import ramp
from gamlens.render.raster.lettering import Font, font, line_height, wrapped
from gamlens.render.raster.rgb import ImageLike, rgb

BAR_INK: RGB = (24, 24, 28)  # texts at the bar, ticks and the line around it
UNDER_INK: RGB = (84, 84, 92)  # the caption
BAR_TEXT, BAR_TEXT_LEAST = 14, 9  # the size of letters below a picture of 480 x 360, and the smallest one
MOST_ROWS, MOST_LINES = 3, 12  # lines of a text that has rows of its own, and of a caption

BarRow: TypeAlias = tuple[list[str], list[str], list[str]]  # lines at the low end, in the middle, at the high end


class BarTexts(NamedTuple):
    """The texts below a bar: their font size, and what is written, one row below another."""

    size: float
    rows: tuple[BarRow, ...]


def with_colour_bar(
    image: ImageLike,
    *,
    cmap: str,
    low: str,
    high: str,
    middle: str = "",
    caption: str = "",
    over: bool = False,
) -> Image.Image:
    """Put a picture above a horizontal colour bar on white, with texts at both ends of the bar and at its middle.

    The width stays that of the picture. Text grows with the picture; if the three texts do not fit side by side, they
    become smaller, then two lines each, and below a narrow picture they are written one below another.

    Args:
        image: The picture.
        cmap: A name of COLORMAPS; of "diverging" the middle means zero.
        low, high: The texts at the left and the right end, such as "-0.012 lowers" and "+0.012 raises".
        middle: The text at the middle, such as "0", or "".
        caption: A sentence below, or "".
        over: Whether colours are shown as they look when laid over a grey photo, rather than alone.

    Returns:
        An RGB picture.
    """
    picture = rgb(image)
    wide, size = picture.width, _text_size(*picture.size)
    pad, thick = max(2, min(round(size / 2), wide // 12)), max(5, round(0.8 * size))
    room = max(1, wide - 2 * pad)
    texts = _fit((low, middle, high), size, room)
    letters, lines = _caption(caption, texts.size, room)
    top = picture.height + pad
    y = top + thick + pad // 2
    words: list[TextLines] = []
    for row in texts.rows:
        places = zip(row, (pad, wide / 2, wide - pad), ("la", "ma", "ra"), strict=True)
        words += [TextLines(part, (x, y), texts.size, anchor) for part, x, anchor in places]
        y += max(map(len, row)) * line_height(texts.size)
    if lines:
        y += pad // 2
        words.append(TextLines(lines, (wide / 2, y), letters, bold=False))
        y += len(lines) * line_height(letters)

    sheet = Image.new("RGB", (wide, y + pad), "white")
    sheet.paste(picture)
    sheet.paste(_bar(ScaleKey("", cmap=cmap, over=over), room, thick), (pad, top))
    pen = ImageDraw.Draw(sheet)
    _frame(pen, (pad, top, pad + room, top + thick), size, tick=bool(middle.strip()))
    for text in words:
        _write(pen, text)
    return sheet


def _text_size(width: int, height: int) -> float:
    """Return the size of letters for a picture: BAR_TEXT, larger for a large picture, smaller for a narrow one."""
    return max(BAR_TEXT_LEAST, min(BAR_TEXT, width / 10), min(width, 4 * height / 3) * BAR_TEXT / 480)


def _bar(scale: ScaleKey, width: int, height: int) -> Image.Image:
    """Draw the colours from low to high, with the first and the last one exactly at the ends."""
    colours = np.asarray(ramp(scale))[:, np.rint(np.linspace(0, 255, width)).astype(int)]
    return Image.fromarray(np.ascontiguousarray(np.repeat(colours, height, axis=0)))


def _frame(pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int], size: float, *, tick: bool) -> None:
    """Draw a line around a bar, just outside of it, and a tick below its middle."""
    x0, y0, x1, y1 = box
    line = max(1, round(size / 14))
    pen.rectangle((x0 - line, y0 - line, x1 + line - 1, y1 + line - 1), outline=BAR_INK, width=line)
    if tick:
        x = (x0 + x1 - line) // 2
        pen.rectangle((x, y1, x + line - 1, y1 + round(size / 5) + line - 1), BAR_INK)


def _fit(texts: tuple[str, str, str], size: float, room: float) -> BarTexts:
    """Find the largest letters at which three texts fit: side by side in one line or two, or else in rows."""
    for most, least in ((1, 76), (2, 60)):
        for letters in _sizes(size, least):
            row = _side_by_side(texts, font(letters), room, most)
            if not any(map(_cut_off, row)):
                return BarTexts(letters, (row,) if any(row) else ())
    for letters in _sizes(size):
        low, middle, high = (wrapped(text, font(letters), room, most=MOST_ROWS) for text in texts)
        if not any(map(_cut_off, (low, middle, high))):
            break
    rows: tuple[BarRow, ...] = ((low, [], []), ([], middle, []), ([], [], high))
    return BarTexts(letters, tuple(row for row in rows if any(row)))


def _side_by_side(texts: tuple[str, str, str], face: Font, room: float, most: int) -> BarRow:
    """Wrap three texts; what the one in the middle leaves is shared by the others."""
    apart = face.getlength("mm")
    middle = wrapped(texts[1], face, room / 3, most=most)
    taken = max(map(face.getlength, middle)) + 2 * apart if middle else apart
    low, high = (wrapped(text, face, (room - taken) / 2, most=most) for text in (texts[0], texts[2]))
    return low, middle, high


def _caption(text: str, size: float, room: float) -> tuple[float, list[str]]:
    """Return the font size and the lines of a caption."""
    for letters in _sizes(size):
        lines = wrapped(text, font(letters), room, most=MOST_LINES)
        if not _cut_off(lines):
            break
    return letters, lines


def _sizes(size: float, least: int = 60) -> Iterator[float]:
    """Yield font sizes to try, from `size` down to `least` percent of it."""
    for percent in range(100, least - 1, -8):
        yield max(size * percent / 100, BAR_TEXT_LEAST)


def _cut_off(lines: list[str]) -> bool:
    return any(line.endswith("…") for line in lines)


def _write(pen: ImageDraw.ImageDraw, text: TextLines) -> None:
    """Write lines one below another."""
    (x, y), ink = text.at, BAR_INK if text.bold else UNDER_INK
    for number, line in enumerate(text.lines):
        pen.text((x, y + number * line_height(text.size)), line, ink, font(text.size), text.anchor)
