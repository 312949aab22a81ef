"""Draw charts as pictures with Pillow."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.chart_layout import CHART_SIZE, INKS, LABEL_SIZE, SLANT, Mark, Point, Stroke, Word, finite, lay_out
from gamlens.render.elements import Chart
from gamlens.render.raster.lettering import font, plain

OVERSAMPLING = 3


def draw_chart(chart: Chart) -> Image.Image:
    """Draw a chart on white. Its title, caption and legend are left to the grid that shows it."""
    if not any(finite(series.points) for series in chart.series):
        raise GamlensError("A chart must have at least one finite point to be drawn; found none: give one.")
    sheet = Image.new("RGB", (CHART_SIZE[0] * OVERSAMPLING, CHART_SIZE[1] * OVERSAMPLING), "white")
    for _, marks in lay_out(chart):
        for mark in marks:
            paint(sheet, mark, OVERSAMPLING)
    return sheet.resize(CHART_SIZE, Image.Resampling.LANCZOS)


def paint(sheet: Image.Image, mark: Mark, scale: float) -> None:
    """Draw one mark on the sheet, with its coordinates and sizes multiplied by `scale`."""
    if isinstance(mark, Word):
        _write(sheet, mark, scale)
        return
    pen, ink = ImageDraw.Draw(sheet), INKS[mark.ink]
    points = [(x * scale, y * scale) for x, y in mark.points]
    if isinstance(mark, Stroke):
        for piece in dashes(points, [length * scale for length in mark.dash]):
            pen.line(piece, ink, round(mark.width * scale), joint="curve")
        return
    faint = tuple(round(255 - mark.opacity * (255 - value)) for value in ink)
    radius = mark.radius * scale
    for x, y in points:
        corners = (x - radius, y - radius, x + radius, y + radius)
        if mark.hollow:
            pen.ellipse(corners, "white", ink, round(1.5 * scale))
        else:
            pen.ellipse(corners, faint)


def _write(sheet: Image.Image, word: Word, scale: float) -> None:
    face, text, ink = font(LABEL_SIZE * scale), plain(word.text), INKS[word.ink]
    x, y = (value * scale for value in word.at)
    if not word.slanted:
        anchor = {"start": "lm", "middle": "mm", "end": "rm"}[word.anchor]
        ImageDraw.Draw(sheet).text((x, y), text, ink, face, anchor)
        return
    strip = Image.new("L", (math.ceil(face.getlength(text)), round(1.3 * LABEL_SIZE * scale)))
    ImageDraw.Draw(strip).text((0, strip.height / 2), text, 255, face, "lm")
    turned = strip.rotate(SLANT, expand=True, resample=Image.Resampling.BICUBIC)
    above = math.cos(math.radians(SLANT)) * strip.height / 2
    sheet.paste(ink, (round(x - turned.width), round(y - above)), turned)


def dashes(points: Sequence[Point], dash: Sequence[float]) -> Iterator[list[Point]]:
    """Yield the line through `points`, or its dashes if `dash` is (length of a dash, length of a gap).

    Lengths are measured along the line, so that a dash may go around a corner.
    """
    if not dash:
        yield list(points)
        return
    at = [0.0, *accumulate(math.dist(start, end) for start, end in pairwise(points))]
    xs, ys = zip(*points, strict=True)
    for begin in np.arange(0, at[-1], sum(dash)):
        end = min(begin + dash[0], at[-1])
        along = [begin, *(corner for corner in at if begin < corner < end), end]
        yield list(zip(np.interp(along, at, xs).tolist(), np.interp(along, at, ys).tolist(), strict=True))
