"""Lines over named steps, drawn with Pillow in the manner of the grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.colors import RGB
from gamlens.render.lettering import ellipsized, font, plain

PALETTE: tuple[RGB, ...] = (
    (196, 38, 46), (28, 92, 168), (22, 143, 96), (222, 132, 20), (116, 62, 152), (96, 96, 104), (20, 148, 170),
    (176, 88, 120),
)  # fmt: skip
INK, SOFT, RULE = (24, 24, 28), (84, 84, 92), (226, 226, 230)
_OVER, _TEXT, _SLANT = 3, 12, 35


@dataclass(frozen=True)
class Curve:
    """A curve: one value a step (NaN leaves a gap), dashed or not; one value alone holds everywhere."""

    name: str
    values: tuple[float, ...]
    color: RGB
    dashed: bool = False


@dataclass(frozen=True)
class _Frame:
    """Where values and steps lie, in pixels of the drawing."""

    box: tuple[float, float, float, float]
    low: float
    high: float
    steps: int

    def at(self, step: int, value: float) -> tuple[float, float]:
        left, top, right, bottom = self.box
        x = (left + right) / 2 if self.steps == 1 else left + (right - left) * step / (self.steps - 1)
        return x, bottom - (bottom - top) * (value - self.low) / (self.high - self.low)


def plot(
    lines: Sequence[Curve], steps: Sequence[str], *, width: int = 360, height: int = 250,
    low: float | None = None, high: float | None = None,
) -> Image.Image:  # fmt: skip
    """`lines` over `steps`; a line of one value is drawn across. The range is that of the values unless given."""
    values = [value for line in lines for value in line.values if math.isfinite(value)]
    if not values or not steps:
        raise GamlensError("a plot has at least one step and one finite value, found none: give some")
    for line in lines:
        if len(line.values) not in (1, len(steps)):
            raise GamlensError(f"the line {line.name!r} has {len(line.values)} values for {len(steps)} steps")
    marks = _marks(min(values) if low is None else low, max(values) if high is None else high)
    scale = _OVER
    face = font(_TEXT * scale)
    names = [ellipsized(plain(step), face, 96 * scale) for step in steps]
    left = (10 + max(face.getlength(_number(mark, marks)) for mark in marks) / scale) * scale
    slot = (width * scale - left - 14 * scale) / max(1, len(steps) - 1)
    slanted = len(steps) > 1 and max(face.getlength(name) for name in names) > 0.9 * slot
    longest = max(face.getlength(name) for name in names)
    if slanted:
        left = max(left, math.cos(math.radians(_SLANT)) * face.getlength(names[0]) + 6 * scale)
    below = (math.sin(math.radians(_SLANT)) * longest if slanted else 0) + 24 * scale
    frame = _Frame((left, 10 * scale, (width - 14) * scale, height * scale - below), marks[0], marks[-1], len(steps))
    sheet = Image.new("RGB", (width * scale, height * scale), "white")
    _axes(sheet, frame, marks, names, slanted, scale)
    pen = ImageDraw.Draw(sheet)
    for line in lines:
        _curve(pen, frame, line, scale)
    return sheet.resize((width, height), Image.Resampling.LANCZOS)


def legend(lines: Sequence[Curve], *, width: int = 720) -> Image.Image:
    """What the lines are, in as many rows as it takes."""
    scale = _OVER
    face, rows, x = font(13 * scale), 0, 0.0
    places = []
    for line in lines:
        need = face.getlength(plain(line.name)) + 54 * scale
        if x and x + need > width * scale:
            rows, x = rows + 1, 0.0
        places.append((x, rows))
        x += need
    step = 22 * scale
    sheet = Image.new("RGB", (width * scale, (rows + 1) * step), "white")
    pen = ImageDraw.Draw(sheet)
    for line, (left, row) in zip(lines, places, strict=True):
        middle = row * step + step / 2
        _stroke(pen, [(left, middle), (left + 26 * scale, middle)], line, scale)
        pen.text((left + 33 * scale, middle), plain(line.name), INK, face, "lm")
    return sheet.resize((width, sheet.height // scale), Image.Resampling.LANCZOS)


def _axes(sheet: Image.Image, frame: _Frame, marks: list[float], names: list[str], slanted: bool, scale: int) -> None:
    pen, face = ImageDraw.Draw(sheet), font(_TEXT * scale)
    left, _, right, bottom = frame.box
    for mark in marks:
        y = frame.at(0, mark)[1]
        pen.line((left, y, right, y), fill=RULE, width=scale)
        pen.text((left - 5 * scale, y), _number(mark, marks), SOFT, face, "rm")
    for step, name in enumerate(names):
        x = frame.at(step, frame.low)[0]
        pen.line((x, bottom, x, bottom + 4 * scale), fill=SOFT, width=scale)
        if not slanted:
            pen.text((min(max(x, face.getlength(name) / 2), right - face.getlength(name) / 2 + 12 * scale),
                      bottom + 7 * scale), name, SOFT, face, "ma")  # fmt: skip
            continue
        word = Image.new("L", (math.ceil(face.getlength(name)) + scale, round(1.3 * _TEXT * scale)))
        ImageDraw.Draw(word).text((0, 0), name, 255, face, "la")
        turned = word.rotate(_SLANT, expand=True, resample=Image.Resampling.BICUBIC)
        sheet.paste(SOFT, (round(x - turned.width + 6 * scale), round(bottom + 5 * scale)), turned)


def _curve(pen: ImageDraw.ImageDraw, frame: _Frame, line: Curve, scale: int) -> None:
    if len(line.values) == 1 and frame.steps > 1:
        ends = [(frame.box[0], frame.at(0, line.values[0])[1]), (frame.box[2], frame.at(0, line.values[0])[1])]
        _stroke(pen, ends, line, scale)
        return
    points = [frame.at(step, value) if math.isfinite(value) else None for step, value in enumerate(line.values)]
    for a, b in pairwise(points):
        if a and b:
            _stroke(pen, [a, b], line, scale)
    for point in points:
        if point:
            x, y, r = *point, 3 * scale
            pen.ellipse((x - r, y - r, x + r, y + r), fill="white" if line.dashed else line.color, outline=line.color,
                        width=round(1.5 * scale))  # fmt: skip


def _stroke(pen: ImageDraw.ImageDraw, ends: list[tuple[float, float]], line: Curve, scale: int) -> None:
    (x0, y0), (x1, y1) = ends
    length, dash = math.hypot(x1 - x0, y1 - y0), 5 * scale
    pieces = max(1, round(length / dash)) if line.dashed else 1
    for piece in range(0, pieces, 2):
        a, b = piece / pieces, min(1, (piece + 1) / pieces)
        pen.line((x0 + a * (x1 - x0), y0 + a * (y1 - y0), x0 + b * (x1 - x0), y0 + b * (y1 - y0)), fill=line.color,
                 width=round(2 * scale))  # fmt: skip


def _marks(low: float, high: float) -> list[float]:
    """Round numbers from below `low` to above `high`, four to seven of them.

    >>> _marks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = max(high - low, 1e-6 * max(abs(high), abs(low), 1))
    power = 10 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def _number(mark: float, marks: list[float]) -> str:
    places = max(0, -math.floor(math.log10(marks[1] - marks[0]) + 1e-9))
    return f"{mark:.{places}f}"
