"""A grid of panels as one picture, for print."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageColor, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.images import fitted, rgb
from gamlens.render.lettering import Font, font, wrapped
from gamlens.render.panels import Grid, Panel

MARKS = {"good": (22, 143, 96), "bad": (196, 38, 46)}

_MARGIN, _GAP = 16, 14
_TITLE, _HEAD, _CAPTION = 19, 15, 13
_LEADING = 1.3


@dataclass(frozen=True)
class Layout:
    """Where things go, in pixels: `cells[row][column]` is the (left, top) of a cell's picture area.

    All cells are `width` wide; those of a row are `heights[row]` high.
    """

    size: tuple[int, int]
    width: int
    heights: tuple[int, ...]
    cells: tuple[tuple[tuple[int, int], ...], ...]
    heads_top: int
    title: list[str]
    heads: list[list[str]]
    labels: list[list[str]]
    captions: list[list[list[str]]]
    titles: list[list[list[str]]]


def _panel_text(grid: Grid, field: str, face: Font, width: int, most: int) -> list[list[list[str]]]:
    return [[wrapped(getattr(panel, field), face, width, most=most) if panel else [] for panel in row]
            for row in grid.rows]  # fmt: skip


def _line(size: float) -> int:
    return round(size * _LEADING)


def _deepest(texts: list[list[str]]) -> int:
    return max((len(lines) for lines in texts), default=0)


def layout(grid: Grid, *, cell: int = 240, scale: float = 1.0) -> Layout:
    """The geometry of `grid` with pictures at most `cell` x `cell`, everything multiplied by `scale`."""
    if not grid.width or not grid.rows:
        raise GamlensError("a grid to draw has at least one row and one column, found none: add a panel")
    if cell < 16 or scale <= 0:
        raise GamlensError(f"a cell is at least 16 pixels at a positive scale, found {cell} x {scale}: enlarge it")
    margin, gap, pad = round(_MARGIN * scale), round(_GAP * scale), round(6 * scale)
    width = round(cell * scale)
    heights = tuple(max(1, round(cell * scale * tall)) for tall in grid.tallness)
    title, head, caption = _TITLE * scale, _HEAD * scale, _CAPTION * scale
    labels = [wrapped(label, font(head), 0.6 * width, most=3) for label in grid.labels]
    longest = max((font(head).getlength(line) for lines in labels for line in lines), default=0)
    left = margin + (round(longest) + gap if longest else 0)
    right = left + grid.width * width + (grid.width - 1) * gap + margin
    name = wrapped(grid.title, font(title), right - 2 * margin, most=2)
    heads = [wrapped(text, font(head), width, most=2) for text in grid.columns]
    captions = _panel_text(grid, "caption", font(caption), width, 3)
    titles = _panel_text(grid, "title", font(caption), width, 1)

    heads_top = margin + (len(name) * _line(title) + pad if name else 0)
    top = heads_top + (_deepest(heads) * _line(head) + pad if _deepest(heads) else 0)
    cells = []
    for height, above, below in zip(heights, titles, captions, strict=True):
        top += _deepest(above) * _line(caption) + (pad // 2 if _deepest(above) else 0)
        cells.append(tuple((left + i * (width + gap), top) for i in range(grid.width)))
        top += height + (_deepest(below) * _line(caption) + pad if _deepest(below) else 0) + gap
    size = (right, top - gap + margin)
    return Layout(size, width, heights, tuple(cells), heads_top, name, heads, labels, captions, titles)


def draw(grid: Grid, *, cell: int = 240, scale: float = 1.0, background: str = "white") -> Image.Image:
    """`grid` typeset as an RGB picture: equal cells, pictures centred in them, words in Pillow's font."""
    place = layout(grid, cell=cell, scale=scale)
    try:
        ground = ImageColor.getrgb(background)[:3]
    except ValueError as error:
        raise GamlensError(f"unknown background {background!r}: give a colour name or '#rrggbb'") from error
    sheet = Image.new("RGB", place.size, ground)
    pen = ImageDraw.Draw(sheet)
    ink = (24, 24, 28) if sum(ground) > 3 * 110 else (238, 238, 240)
    soft = (84, 84, 92) if sum(ground) > 3 * 110 else (178, 178, 186)
    width = place.width
    title, head, caption = _TITLE * scale, _HEAD * scale, _CAPTION * scale

    def write(lines: list[str], x: float, y: float, size: float, anchor: str, *, bold: bool = False) -> None:
        for number, line in enumerate(lines):
            pen.text((x, y + number * _line(size)), line, ink if bold else soft, font(size), anchor,
                     stroke_width=size / 60 if bold else 0)  # fmt: skip

    write(place.title, round(_MARGIN * scale), round(_MARGIN * scale), title, "la", bold=True)
    for (x, _), lines in zip(place.cells[0], place.heads, strict=False):
        shift = (_deepest(place.heads) - len(lines)) * _line(head)
        write(lines, x + width / 2, place.heads_top + shift, head, "ma", bold=True)
    for height, corners, lines in zip(place.heights, place.cells, place.labels, strict=False):
        middle = corners[0][1] + (height - len(lines) * _line(head)) / 2
        write(lines, corners[0][0] - round(_GAP * scale), middle, head, "ra", bold=True)
    rows = zip(grid.rows, place.heights, place.cells, place.titles, place.captions, strict=True)
    for row, height, corners, above, below in rows:
        for panel, (x, y), over, under in zip(row, corners, above, below, strict=False):
            write(over, x + width / 2, y - _line(caption) - 3 * scale, caption, "ma", bold=True)
            write(under, x + width / 2, y + height + 6 * scale, caption, "ma")
            if panel:
                _put(sheet, panel, (x, y), (width, height), background, scale)
    return sheet


def _put(
    sheet: Image.Image,
    panel: Panel,
    corner: tuple[int, int],
    cell: tuple[int, int],
    background: str,
    scale: float,
) -> None:
    """Paste a panel's picture in the middle of its cell; a mark is a frame just outside the picture."""
    picture = fitted(rgb(panel.image, background=background), *cell)
    x, y = corner[0] + (cell[0] - picture.width) // 2, corner[1] + (cell[1] - picture.height) // 2
    sheet.paste(picture, (x, y))
    if not panel.mark:
        return
    pen, line = ImageDraw.Draw(sheet), max(2, round(3 * scale))
    frame = (x - line, y - line, x + picture.width + line - 1, y + picture.height + line - 1)
    pen.rectangle(frame, outline=MARKS[panel.mark], width=line)
    _badge(pen, panel.mark, frame[2] - 5 * scale, frame[1] + 5 * scale, 9 * scale)


def _badge(pen: ImageDraw.ImageDraw, mark: str, x: float, y: float, radius: float) -> None:
    """A tick or a cross on a disc, so that the mark survives a grey print."""
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=MARKS[mark])
    strokes = (
        [((-0.45, 0.05), (-0.12, 0.4), (0.48, -0.35))]
        if mark == "good"
        else [((-0.38, -0.38), (0.38, 0.38)), ((-0.38, 0.38), (0.38, -0.38))]
    )
    for stroke in strokes:
        points = [(x + dx * radius, y + dy * radius) for dx, dy in stroke]
        pen.line(points, fill="white", width=max(1, round(radius / 4)), joint="curve")
