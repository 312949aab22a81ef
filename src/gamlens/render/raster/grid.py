"""A grid of panels as one picture, for print."""

from __future__ import annotations

from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.elements import Grid, Panel
from gamlens.render.raster.grid_layout import CAPTION_SIZE, TITLE_SIZE, GridLayout, deepest, layout, line
from gamlens.render.raster.keys import draw_keys
from gamlens.render.raster.lettering import font
from gamlens.render.raster.rgb import fitted, rgb

MARK_COLOURS = {"good": (22, 143, 96), "bad": (196, 38, 46)}
HEAD_INK, CAPTION_INK, RULE_INK = (24, 24, 28), (84, 84, 92), (198, 198, 204)
COLUMN_INCHES, PAGE_INCHES = 3.5, 7.16
PRINT_DPI = 145  # dots per inch at which scale 1 sets captions in 6.5 points and heads in 7.5


def draw(grid: Grid, *, cell: int = 240, scale: float = 1.0, tight: bool = False) -> Image.Image:
    """`grid` on white as an RGB picture: aligned cells, pictures centred in them, words in Pillow's font.

    Pictures are at most `cell` x `cell` pixels, everything is multiplied by `scale`, and `tight` is for print.
    """
    place = layout(grid, cell=cell, scale=scale, tight=tight)
    sheet = Image.new("RGB", place.size, "white")
    pen, size, step = ImageDraw.Draw(sheet), CAPTION_SIZE * scale, line(CAPTION_SIZE * scale)
    left, right = place.cells[0][0][0], place.size[0] - place.space.margin
    _heads(pen, place, scale)
    _labels(sheet, place, tight)
    for number in (row for row in grid.breaks if 0 < row < len(place.cells)):
        middle = (place.space.gap + place.space.apart) // 2 + deepest(place.titles[number]) * step
        above = place.cells[number][0][1] - middle
        pen.line((left, above, right, above), RULE_INK, max(1, round(scale)))
    for row, height, corners, titles, captions in zip(
        grid.rows, place.heights, place.cells, place.titles, place.captions, strict=True
    ):
        for panel, (x, y), width, title, caption in zip(row, corners, place.widths, titles, captions, strict=False):
            _write(pen, title, (x + width / 2, y - step - 3 * scale), size, bold=True)
            _write(pen, caption, (x + width / 2, y + height + 6 * scale), size)
            if panel:
                _put(sheet, panel, (x, y), (width, height), scale)
    draw_keys(sheet, place.keys, (left, place.keys_top), scale, CAPTION_INK)
    return sheet


def typeset(grid: Grid, *, inches: float | None = None, dpi: int = 200) -> Image.Image:
    """`grid` for print: as wide as a column (up to four pictures across) or a page, or `inches`; labels run upwards.

    Letters have 6 to 8 points at that width; the pictures take what room is left.
    """
    if not 72 <= dpi <= 1200 or (inches is not None and not 1 <= inches <= 40):
        raise GamlensError(f"a figure is 1 to 40 inches wide at 72 to 1200 dots an inch, found {inches} at {dpi}")
    wanted = round((inches or (COLUMN_INCHES if grid.width <= 4 else PAGE_INCHES)) * dpi)
    scale = dpi / PRINT_DPI
    cell = 0.9 * wanted / grid.width / scale
    for _ in range(6):
        found = layout(grid, cell=max(16, round(cell)), scale=scale, tight=True).size[0]
        cell += (wanted - found) / scale / (sum(grid.widths) / max(grid.widths) if grid.widths else grid.width)
    return draw(grid, cell=max(16, round(cell)), scale=scale, tight=True)


def _write(
    pen: ImageDraw.ImageDraw, lines: list[str], at: tuple[float, float], size: float, anchor: str = "ma",
    *, bold: bool = False,
) -> None:  # fmt: skip
    """Lines of text below one another, from `at` (x, y) on."""
    for number, text in enumerate(lines):
        pen.text((at[0], at[1] + number * line(size)), text, HEAD_INK if bold else CAPTION_INK, font(size), anchor,
                 stroke_width=size / 60 if bold else 0)  # fmt: skip


def _heads(pen: ImageDraw.ImageDraw, place: GridLayout, scale: float) -> None:
    """The title, the heads of groups with a rule under each, the heads of columns."""
    margin, size = place.space.margin, place.head
    _write(pen, place.title, (margin, margin), TITLE_SIZE * scale, "la", bold=True)
    for lines, start, end in place.groups:
        _write(pen, lines, ((start + end) / 2, place.groups_top), size, bold=True)
        y = place.groups_top + line(size) + round(2 * scale)
        pen.line((start, y, end - 1, y), RULE_INK, max(1, round(scale)))
    for (x, _), width, lines in zip(place.cells[0], place.widths, place.heads, strict=False):
        shift = (deepest(place.heads) - len(lines)) * line(size)
        _write(pen, lines, (x + width / 2, place.heads_top + shift), size, bold=True)


def _labels(sheet: Image.Image, place: GridLayout, tight: bool) -> None:
    """The labels of rows: to the left of their pictures, or running upwards where `tight`."""
    gap, size = place.space.gap, place.label
    for height, corners, lines in zip(place.heights, place.cells, place.labels, strict=False):
        left, top = corners[0]
        deep = len(lines) * line(size)
        if not tight:
            _write(ImageDraw.Draw(sheet), lines, (left - gap, top + (height - deep) / 2), size, "ra", bold=True)
        elif lines:
            strip = Image.new("RGB", (height, deep), "white")
            _write(ImageDraw.Draw(strip), lines, (height / 2, 0), size, bold=True)
            sheet.paste(strip.transpose(Image.Transpose.ROTATE_90), (left - gap - deep + gap // 4, top))


def _put(sheet: Image.Image, panel: Panel, corner: tuple[int, int], cell: tuple[int, int], scale: float) -> None:
    """Paste a panel's picture in the middle of its cell; a mark is a frame just outside the picture."""
    picture = fitted(rgb(panel.image), *cell)
    x, y = corner[0] + (cell[0] - picture.width) // 2, corner[1] + (cell[1] - picture.height) // 2
    sheet.paste(picture, (x, y))
    if not panel.mark:
        return
    pen, thick = ImageDraw.Draw(sheet), max(2, round(3 * scale))
    frame = (x - thick, y - thick, x + picture.width + thick - 1, y + picture.height + thick - 1)
    pen.rectangle(frame, outline=MARK_COLOURS[panel.mark], width=thick)
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
