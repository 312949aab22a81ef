"""Draw a grid of panels as one picture, for print."""

from dataclasses import replace

from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.elements import Grid, Panel
from gamlens.render.raster.grid_layout import GridLayout, TextLines
from gamlens.render.raster.keys import draw_keys
from gamlens.render.raster.lettering import font, line_height
from gamlens.render.raster.rgb import fitted, rgb

MARK_COLOURS = {"good": (22, 143, 96), "bad": (196, 38, 46)}
BADGE_STROKES: dict[str, list[tuple[tuple[float, float], ...]]] = {  # a tick or a cross, in units of the disc's radius
    "good": [((-0.45, 0.05), (-0.12, 0.4), (0.48, -0.35))],
    "bad": [((-0.38, -0.38), (0.38, 0.38)), ((-0.38, 0.38), (0.38, -0.38))],
}
HEAD_INK, CAPTION_INK, RULE_INK = (24, 24, 28), (84, 84, 92), (198, 198, 204)
COLUMN_INCHES, PAGE_INCHES = 3.5, 7.16
PRINT_DPI = 145  # dots per inch at which scale 1 sets captions in 6.5 points and heads in 7.5


def draw(grid: Grid, *, cell: int = 240, scale: float = 1.0, tight: bool = False) -> Image.Image:
    """Draw a grid on white.

    Args:
        grid: The grid.
        cell: The largest width and height of a picture at scale 1, in pixels.
        scale: A factor for everything: pictures, text and gaps.
        tight: Whether to use little space between pictures and let row labels run upwards, as for print.

    Returns:
        An RGB picture.
    """
    place = GridLayout(grid, cell=cell, scale=scale, tight=tight)
    sheet = Image.new("RGB", place.size, "white")
    pen = ImageDraw.Draw(sheet)
    for left, right, y in place.rules:
        pen.line((left, y, right, y), RULE_INK, max(1, round(scale)))
    for text in place.texts:
        _write(sheet, text)
    for row, cells in zip(grid.rows, place.cells, strict=True):
        for panel, box in zip(row, cells, strict=False):
            if panel:
                _put(sheet, panel, box, scale)
    draw_keys(sheet, place.keys, (place.lefts[0], place.keys_top), scale, CAPTION_INK)
    return sheet


def typeset(grid: Grid, *, inches: float | None = None, dpi: int = 200) -> Image.Image:
    """Draw a grid for print at a given width, with text of 6 to 8 points; the pictures take the remaining space.

    The width of the drawing depends on the cell size only roughly linearly (text is wrapped, sizes are rounded), so the
    cell size is corrected a few times until the width is right.

    Args:
        grid: The grid.
        inches: The width; by default that of a column of a paper for up to four columns of pictures, else of a page.
        dpi: Dots per inch.
    """
    if not 72 <= dpi <= 1200 or (inches is not None and not 1 <= inches <= 40):
        raise GamlensError(
            f"A figure is 1 to 40 inches wide and has 72 to 1200 dots per inch; found {dpi} dots per inch"
            f"{'' if inches is None else f' and {inches} inches'}."
        )
    wanted = round((inches or (COLUMN_INCHES if grid.width <= 4 else PAGE_INCHES)) * dpi)
    scale = dpi / PRINT_DPI
    cell = 0.9 * wanted / grid.width / scale
    for _ in range(6):
        found = GridLayout(grid, cell=max(16, round(cell)), scale=scale, tight=True).size[0]
        cell += (wanted - found) / scale / (sum(grid.widths) / max(grid.widths) if grid.widths else grid.width)
    return draw(grid, cell=max(16, round(cell)), scale=scale, tight=True)


def _write(sheet: Image.Image, text: TextLines) -> None:
    """Write lines of text on the sheet. Text that runs upwards is written on a strip, which is then turned."""
    if text.upwards:
        strip = Image.new("RGB", (text.upwards, len(text.lines) * line_height(text.size)), "white")
        _write(strip, replace(text, at=(text.upwards / 2, 0), upwards=0))
        sheet.paste(strip.transpose(Image.Transpose.ROTATE_90), (round(text.at[0]), round(text.at[1])))
        return
    pen, face, (x, y) = ImageDraw.Draw(sheet), font(text.size), text.at
    ink, stroke = (HEAD_INK, text.size / 60) if text.bold else (CAPTION_INK, 0)
    for number, line in enumerate(text.lines):
        pen.text((x, y + number * line_height(text.size)), line, ink, face, text.anchor, stroke_width=stroke)


def _put(sheet: Image.Image, panel: Panel, box: tuple[int, int, int, int], scale: float) -> None:
    """Paste a panel's picture into the middle of its cell `box` (left, top, width, height), and draw its mark.

    A mark is a coloured frame just outside the picture, with a badge at its upper right corner.
    """
    left, top, width, height = box
    picture = fitted(rgb(panel.image), width, height)
    x, y = left + (width - picture.width) // 2, top + (height - picture.height) // 2
    sheet.paste(picture, (x, y))
    if panel.mark:
        pen, thick = ImageDraw.Draw(sheet), max(2, round(3 * scale))
        x1, y0 = x + picture.width + thick - 1, y - thick
        frame = (x - thick, y0, x1, y + picture.height + thick - 1)
        pen.rectangle(frame, outline=MARK_COLOURS[panel.mark], width=thick)
        corner = min(x1 - 5 * scale, sheet.width - 10 * scale), max(y0 + 5 * scale, 10 * scale)
        _badge(pen, panel.mark, *corner, 9 * scale)


def _badge(pen: ImageDraw.ImageDraw, mark: str, x: float, y: float, radius: float) -> None:
    """Draw a tick or a cross on a disc, so that the mark is readable in greyscale."""
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=MARK_COLOURS[mark])
    for stroke in BADGE_STROKES[mark]:
        points = [(x + dx * radius, y + dy * radius) for dx, dy in stroke]
        pen.line(points, fill="white", width=max(1, round(radius / 4)), joint="curve")
