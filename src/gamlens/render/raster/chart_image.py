"""Charts and their legends as pictures, drawn with Pillow in the manner of the grids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.chart_layout import (
    AXIS,
    CHART_SIZE,
    GUIDE,
    LABEL_SIZE,
    SLANT,
    SWATCH_SIZE,
    TONES,
    Area,
    Mark,
    Point,
    Stroke,
    Word,
    finite,
    lay_out,
    swatch,
)
from gamlens.render.elements import RGB, Chart, Series
from gamlens.render.raster.lettering import font, plain

PALETTE: tuple[RGB, ...] = (
    (139, 135, 146), (179, 32, 95), (31, 111, 181), (18, 138, 104), (184, 106, 0), (106, 75, 192), (91, 100, 112),
    (20, 148, 170), (176, 88, 120),
)  # fmt: skip
INKS: dict[str, RGB] = {
    AXIS: (226, 226, 230), GUIDE: (84, 84, 92), **{f"tone{tone}": PALETTE[tone] for tone in range(TONES + 1)},
}  # fmt: skip
LABEL_INK, LEGEND_INK = (84, 84, 92), (24, 24, 28)
LEGEND_SIZE, LEGEND_STEP = 13, 22
OVERSAMPLING = 3


def draw_chart(chart: Chart, *, width: int = CHART_SIZE[0], height: int = CHART_SIZE[1]) -> Image.Image:
    """`chart` on white, without its title, caption and legend: those belong to the grid around it."""
    if not any(finite(series.points) for series in chart.series):
        raise GamlensError("a chart to draw has at least one finite point, found none: give some")
    sheet = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), "white")
    for _, marks in lay_out(chart, (width, height)):
        for mark in marks:
            _paint(sheet, mark, (0, 0))
    return sheet.resize((width, height), Image.Resampling.LANCZOS)


def draw_legend(series: Sequence[Series], *, width: int = 720) -> Image.Image:
    """What the series of charts are called, in as many lines as it takes."""
    face, line, x = font(LEGEND_SIZE * OVERSAMPLING), 0, 0.0
    corners = []
    for one in series:
        need = face.getlength(plain(one.name)) / OVERSAMPLING + SWATCH_SIZE[0] + 28
        if x and x + need > width:
            line, x = line + 1, 0.0
        corners.append((x, line * LEGEND_STEP))
        x += need
    height = (line + 1) * LEGEND_STEP
    sheet = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), "white")
    pen = ImageDraw.Draw(sheet)
    for one, (left, top) in zip(series, corners, strict=True):
        _paint(sheet, swatch(one), (left, top + (LEGEND_STEP - SWATCH_SIZE[1]) / 2))
        place = ((left + SWATCH_SIZE[0] + 7) * OVERSAMPLING, (top + LEGEND_STEP / 2) * OVERSAMPLING)
        pen.text(place, plain(one.name), LEGEND_INK, face, "lm")
    return sheet.resize((width, height), Image.Resampling.LANCZOS)


def _paint(sheet: Image.Image, mark: Mark, corner: Point) -> None:
    """One mark onto the large sheet, moved by `corner`."""
    pen = ImageDraw.Draw(sheet)
    if isinstance(mark, Word):
        _write(sheet, pen, mark)
        return
    points = [((x + corner[0]) * OVERSAMPLING, (y + corner[1]) * OVERSAMPLING) for x, y in mark.points]
    ink = INKS[mark.ink]
    if isinstance(mark, Stroke):
        for piece in _pieces(points, [length * OVERSAMPLING for length in mark.dash]):
            pen.line(piece, ink, round(mark.width * OVERSAMPLING), joint="curve")
        return
    faint = tuple(round(255 - mark.opacity * (255 - value)) for value in ink)
    if isinstance(mark, Area):
        pen.polygon(points, faint)
        return
    radius = mark.radius * OVERSAMPLING
    for x, y in points:
        box = (x - radius, y - radius, x + radius, y + radius)
        if mark.hollow:
            pen.ellipse(box, "white", ink, round(1.5 * OVERSAMPLING))
        else:
            pen.ellipse(box, faint)


def _write(sheet: Image.Image, pen: ImageDraw.ImageDraw, word: Word) -> None:
    face, text = font(LABEL_SIZE * OVERSAMPLING), plain(word.text)
    x, y = (value * OVERSAMPLING for value in word.at)
    if not word.slanted:
        pen.text((x, y), text, LABEL_INK, face, {"start": "lm", "middle": "mm", "end": "rm"}[word.anchor])
        return
    strip = Image.new("L", (math.ceil(face.getlength(text)), round(1.3 * LABEL_SIZE * OVERSAMPLING)))
    ImageDraw.Draw(strip).text((0, strip.height / 2), text, 255, face, "lm")
    turned = strip.rotate(SLANT, expand=True, resample=Image.Resampling.BICUBIC)
    above = math.cos(math.radians(SLANT)) * strip.height / 2
    sheet.paste(LABEL_INK, (round(x - turned.width), round(y - above)), turned)


def _pieces(points: Sequence[Point], dash: Sequence[float]) -> Iterator[list[Point]]:
    """The line through `points`, or every other piece of it where `dash` gives the lengths of a piece and a gap."""
    if not dash:
        yield list(points)
        return
    at = [0.0, *accumulate(math.dist(start, end) for start, end in pairwise(points))]
    xs, ys = zip(*points, strict=True)
    for begin in np.arange(0, at[-1], sum(dash)):
        end = min(begin + dash[0], at[-1])
        along = [begin, *(corner for corner in at if begin < corner < end), end]
        yield list(zip(np.interp(along, at, xs).tolist(), np.interp(along, at, ys).tolist(), strict=True))
