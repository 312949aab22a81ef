"""A grid of panels as one picture, for print."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageColor, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.elements import RGB, Grid, Panel
from gamlens.render.raster import keys
from gamlens.render.raster.grid_layout import CAPTION_SIZE, TITLE_SIZE, GridLayout, deepest, layout, line, spans
from gamlens.render.raster.lettering import font
from gamlens.render.raster.rgb import fitted, rgb

MARK_COLOURS = {"good": (22, 143, 96), "bad": (196, 38, 46)}
RULE_COLOUR = (198, 198, 204)
COLUMN_INCHES, PAGE_INCHES = 3.5, 7.16
_PRINT_DPI = 145  # dots an inch at which scale 1 sets captions in 6.5 points and heads in 7.5


@dataclass(frozen=True)
class Ink:
    """What words are written in: the main colour and a softer one."""

    pen: ImageDraw.ImageDraw
    dark: RGB
    soft: RGB

    def write(self, lines: list[str], x: float, y: float, size: float, anchor: str, *, bold: bool = False) -> None:
        for number, text in enumerate(lines):
            self.pen.text((x, y + number * line(size)), text, self.dark if bold else self.soft, font(size), anchor,
                          stroke_width=size / 60 if bold else 0)  # fmt: skip


def draw(
    grid: Grid, *, cell: int = 240, scale: float = 1.0, background: str = "white", tight: bool = False
) -> Image.Image:
    """`grid` typeset as an RGB picture: aligned cells, pictures centred in them, words in Pillow's font."""
    place = layout(grid, cell=cell, scale=scale, tight=tight)
    try:
        ground = ImageColor.getrgb(background)[:3]
    except ValueError as error:
        raise GamlensError(f"unknown background {background!r}: give a colour name or '#rrggbb'") from error
    sheet = Image.new("RGB", place.size, ground)
    light = sum(ground) > 3 * 110
    dark, soft = ((24, 24, 28), (84, 84, 92)) if light else ((238, 238, 240), (178, 178, 186))
    ink = Ink(ImageDraw.Draw(sheet), dark, soft)
    _heads(grid, place, ink, scale)
    _labels(sheet, place, ink, tight, background)
    for number in (row for row in grid.breaks if 0 < row < len(place.cells)):
        middle = (place.space.gap + place.space.apart) // 2 + deepest(place.titles[number]) * line(CAPTION_SIZE * scale)
        above, right = place.cells[number][0][1] - middle, place.size[0] - place.space.margin
        ink.pen.line((place.cells[0][0][0], above, right, above), RULE_COLOUR, max(1, round(scale)))
    rows = zip(grid.rows, place.heights, place.cells, place.titles, place.captions, strict=True)
    for row, height, corners, above_, below in rows:
        cells = zip(row, corners, place.widths, above_, below, strict=False)
        for panel, (x, y), width, over, under in cells:
            ink.write(
                over, x + width / 2, y - line(CAPTION_SIZE * scale) - 3 * scale, CAPTION_SIZE * scale, "ma", bold=True
            )
            ink.write(under, x + width / 2, y + height + 6 * scale, CAPTION_SIZE * scale, "ma")
            if panel:
                _put(sheet, panel, (x, y), (width, height), background, scale)
    keys.put(sheet, place.keys, (place.cells[0][0][0], place.keys_top), scale, dark, soft)
    return sheet


def typeset(grid: Grid, *, inches: float | None = None, dpi: int = 200) -> Image.Image:
    """`grid` for print: as wide as a column (up to four pictures across) or a page, or `inches`, row labels upright.

    Letters have 6 to 8 points at that width; the pictures take what room is left.
    """
    if not 72 <= dpi <= 1200 or (inches is not None and not 1 <= inches <= 40):
        raise GamlensError(f"a figure is 1 to 40 inches wide at 72 to 1200 dots an inch, found {inches} at {dpi}")
    wanted = round((inches or (COLUMN_INCHES if grid.width <= 4 else PAGE_INCHES)) * dpi)
    scale = dpi / _PRINT_DPI
    cell = 0.9 * wanted / grid.width / scale
    for _ in range(6):
        found = layout(grid, cell=max(16, round(cell)), scale=scale, tight=True).size[0]
        cell += (wanted - found) / scale / (sum(grid.widths) / max(grid.widths) if grid.widths else grid.width)
    return draw(grid, cell=max(16, round(cell)), scale=scale, tight=True)


def _heads(grid: Grid, place: GridLayout, ink: Ink, scale: float) -> None:
    """The title, the heads of groups with a rule under each, the heads of columns."""
    margin, head = place.space.margin, place.head
    ink.write(place.title, margin, margin, TITLE_SIZE * scale, "la", bold=True)
    lefts = [x for x, _ in place.cells[0]]
    for (_, start, end), lines in zip(spans(grid, lefts, place.widths), place.groups, strict=True):
        ink.write(lines, (start + end) / 2, place.groups_top, head, "ma", bold=True)
        y = place.groups_top + line(head) + round(2 * scale)
        ink.pen.line((start, y, end - 1, y), RULE_COLOUR, max(1, round(scale)))
    for x, width, lines in zip(lefts, place.widths, place.heads, strict=False):
        shift = (deepest(place.heads) - len(lines)) * line(head)
        ink.write(lines, x + width / 2, place.heads_top + shift, head, "ma", bold=True)


def _labels(sheet: Image.Image, place: GridLayout, ink: Ink, tight: bool, ground: str) -> None:
    gap = place.space.gap
    for height, corners, lines in zip(place.heights, place.cells, place.labels, strict=False):
        left, top = corners[0]
        deep = len(lines) * line(place.label)
        if not tight:
            ink.write(lines, left - gap, top + (height - deep) / 2, place.label, "ra", bold=True)
        elif lines:
            strip = Image.new("RGB", (height, deep), ground)
            Ink(ImageDraw.Draw(strip), ink.dark, ink.soft).write(lines, height / 2, 0, place.label, "ma", bold=True)
            sheet.paste(strip.transpose(Image.Transpose.ROTATE_90), (left - gap - deep + gap // 4, top))


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
    pen.rectangle(frame, outline=MARK_COLOURS[panel.mark], width=line)
    right, top = min(frame[2] - 5 * scale, sheet.width - 10 * scale), max(frame[1] + 5 * scale, 10 * scale)
    _badge(pen, panel.mark, right, top, 9 * scale)


def _badge(pen: ImageDraw.ImageDraw, mark: str, x: float, y: float, radius: float) -> None:
    """A tick or a cross on a disc, so that the mark survives a grey print."""
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=MARK_COLOURS[mark])
    strokes = (
        [((-0.45, 0.05), (-0.12, 0.4), (0.48, -0.35))]
        if mark == "good"
        else [((-0.38, -0.38), (0.38, 0.38)), ((-0.38, 0.38), (0.38, -0.38))]
    )
    for stroke in strokes:
        points = [(x + dx * radius, y + dy * radius) for dx, dy in stroke]
        pen.line(points, fill="white", width=max(1, round(radius / 4)), joint="curve")
