"""Lay out a chart: turn a Chart into strokes, dots and words with coordinates.

`html.charts_and_tables` writes these marks as SVG, and `raster.chart_image` paints them with Pillow. Axes, ticks,
scales, labels and colours are decided here, for both. Coordinates are pixels (x, y) from the upper left corner.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from gamlens.render.elements import RGB, Chart, Series
from gamlens.render.inline import bare
from gamlens.render.raster.lettering import ellipsized, font

CHART_SIZE = (360, 250)
LABEL_SIZE, LONGEST_NAME = 12, 96
SLANT = 35  # the angle in degrees of names along the x axis, if they would not fit side by side
SWATCH_SIZE = (26, 10)
LABEL_DISTANCES, LABEL_TURNS = (5, 14, 24, 36), (0, 180, 90, 270, 45, 315, 135, 225)  # where a point's label may stand
AXIS, GUIDE = "axis", "guide"
PALETTE: tuple[RGB, ...] = (
    (139, 135, 146), (179, 32, 95), (31, 111, 181), (18, 138, 104), (184, 106, 0), (106, 75, 192), (91, 100, 112),
    (20, 148, 170), (176, 88, 120),
)  # fmt: skip
INKS: dict[str, RGB] = {
    AXIS: (226, 226, 230), GUIDE: (84, 84, 92), **{f"tone{tone}": colour for tone, colour in enumerate(PALETTE)},
}  # fmt: skip
DASHES: dict[str, tuple[float, ...]] = {"dashed": (6, 4), "dotted": (1, 4), "level": (6, 4)}

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Stroke:
    """A line through points. `ink` is a name of INKS; `dash` is (length of a dash, length of a gap) or empty."""

    points: tuple[Point, ...]
    ink: str
    width: float = 2.0
    dash: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dots:
    """Discs around points, or rings if `hollow`."""

    points: tuple[Point, ...]
    ink: str
    radius: float
    hollow: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Word:
    """One line of text. Its start, middle or end (`anchor`) lies at `at`, halfway up the letters.

    Slanted text rises at the angle SLANT and ends at `at`.
    """

    text: str
    at: Point
    anchor: Literal["start", "middle", "end"]
    slanted: bool = False
    ink: str = GUIDE


Mark: TypeAlias = Stroke | Dots | Word


@dataclass(frozen=True)
class Axes:
    """Converts values of a chart to coordinates of the drawing.

    Attributes:
        x: The values at the two ends of the x axis.
        y_ticks: The round numbers along the y axis, from end to end.
        rectangle: Left, top, right and bottom of the plot.
    """

    x: tuple[float, float]
    y_ticks: tuple[float, ...]
    rectangle: tuple[float, float, float, float]

    def place(self, point: Point) -> Point:
        """Return the coordinates of a point (x value, y value); a point beyond the axes is moved to their end."""
        left, top, right, bottom = self.rectangle
        shares = [
            min(1.0, max(0.0, (value - low) / (high - low)))
            for value, low, high in ((point[0], *self.x), (point[1], self.y_ticks[0], self.y_ticks[-1]))
        ]
        return left + shares[0] * (right - left), bottom - shares[1] * (bottom - top)


def lay_out(chart: Chart) -> list[tuple[str, list[Mark]]]:
    """Compute the marks of a chart in a drawing of CHART_SIZE, back to front.

    Returns:
        One group for the axes and guides, without a name; then one group per series, with the name of the series; then,
        if points have labels, one group for these, without a name.
    """
    points = [point for series in chart.series for point in finite(series.points)]
    ys = [y for _, y in points] + [0.0] * chart.zero
    ys += [end for series in chart.series for ends in series.spread for end in ends if math.isfinite(end)]
    x_ticks, y_ticks = _ticks_over(chart.x_range, [x for x, _ in points]), _ticks_over(chart.y_range, ys)
    face = font(LABEL_SIZE)
    left = max(face.getlength(number) for number in numbers(y_ticks)) + 12
    right, top = CHART_SIZE[0] - 14, 28 if chart.y else 10
    names = [ellipsized(bare(name), face, LONGEST_NAME) for name in chart.names]
    longest = max((face.getlength(name) for name in names), default=0.0)
    slanted = longest > 0.95 * (right - left) / max(1, len(names))
    below = (math.sin(math.radians(SLANT)) * longest if slanted else 0) + (40 if chart.x else 24)
    across = (-0.5, len(names) - 0.5) if names else (x_ticks[0], x_ticks[-1])
    axes = Axes(across, y_ticks, (left, top, right, CHART_SIZE[1] - below))
    labels = list(enumerate(names)) if names else list(zip(x_ticks, numbers(x_ticks), strict=True))
    frame = [*_frame(chart, axes, labels, slanted=slanted), *_guides(chart, axes)]
    groups = [(series.name, _series(series, axes, pointed=bool(names))) for series in chart.series]
    labelled = _point_labels(chart.series, axes)
    return [("", frame), *groups, *([("", labelled)] if labelled else [])]


def _ticks_over(given: tuple[float, float] | None, values: Sequence[float]) -> tuple[float, ...]:
    """Choose round numbers that cover the given range or, if it is None, the values."""
    return ticks(*given or (min(values, default=0.0), max(values, default=1.0)))


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Choose two to eight evenly spaced round numbers, from one at or below `low` to one at or above `high`.

    >>> ticks(0.02, 0.97)
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """
    span = max(high - low, 1e-6 * max(abs(high), abs(low), 1))
    power = 10 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6 + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(number * step, 12) for number in range(first, max(last, first + 1) + 1))


def numbers(values: Sequence[float]) -> list[str]:
    """Write ticks as text, all with as many decimal places as their spacing needs."""
    places = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [f"{value:.{places}f}" for value in values]


def finite(points: Iterable[Point]) -> list[Point]:
    """Return the points whose two numbers are both finite."""
    return [point for point in points if all(map(math.isfinite, point))]


def swatch(series: Series) -> Mark:
    """Return a sample of how a series is drawn, for a legend, in a drawing of SWATCH_SIZE."""
    ink, middle = _ink(series.tone), SWATCH_SIZE[1] / 2
    if series.kind in ("dots", "marks"):
        return Dots(((SWATCH_SIZE[0] / 2, middle),), ink, 3.5)
    return Stroke(((2, middle), (SWATCH_SIZE[0] - 2, middle)), ink, dash=DASHES.get(series.kind, ()))


def _ink(tone: int) -> str:
    """Return the ink of a tone: tone 0 is grey, the others are the rest of PALETTE, repeated from the start."""
    return f"tone{1 + (tone - 1) % (len(PALETTE) - 1) if tone else 0}"


def _frame(chart: Chart, axes: Axes, labels: Sequence[tuple[float, str]], *, slanted: bool) -> list[Mark]:
    """Make the grid lines, the numbers or names along the axes, and the names of the axes."""
    left, _, right, bottom = axes.rectangle
    marks: list[Mark] = []
    for value, text in zip(axes.y_ticks, numbers(axes.y_ticks), strict=True):
        y = axes.place((axes.x[0], value))[1]
        marks += [Stroke(((left, y), (right, y)), AXIS, 1), Word(text, (left - 6, y), "end")]
    for value, text in labels:
        x = axes.place((value, axes.y_ticks[0]))[0]
        word = Word(text, (x + 4, bottom + 9), "end", slanted) if slanted else Word(text, (x, bottom + 14), "middle")
        marks += [Stroke(((x, bottom), (x, bottom + 4)), AXIS, 1), word]
    if chart.x:
        marks.append(Word(bare(chart.x), (right, CHART_SIZE[1] - 8), "end"))
    if chart.y:
        marks.append(Word(bare(chart.y), (2, 9), "start"))
    return marks


def _guides(chart: Chart, axes: Axes) -> list[Mark]:
    """Make the lines y = x (`chart.diagonal`) and y = 0 (`chart.zero`)."""
    ends = []
    if chart.diagonal:
        low, high = max(axes.x[0], axes.y_ticks[0]), min(axes.x[1], axes.y_ticks[-1])
        ends.append(((low, low), (high, high)))
    if chart.zero:
        ends.append(((axes.x[0], 0.0), (axes.x[1], 0.0)))
    return [Stroke((axes.place(start), axes.place(end)), GUIDE, 1, (2, 3)) for start, end in ends]


def _series(series: Series, axes: Axes, *, pointed: bool) -> list[Mark]:
    """Make the marks of one series.

    A line has a gap where a point is not finite. `pointed` puts a dot on every point of a line; otherwise only a point
    between two gaps gets one.
    """
    ink, points = _ink(series.tone), finite(series.points)
    places = tuple(axes.place(point) for point in points)
    if not points:
        return []
    if series.kind == "dots":
        return [Dots(places, ink, 2, opacity=0.75 if len(places) < 150 else 0.5 if len(places) < 500 else 0.35)]
    if series.kind == "level":
        return [Stroke(((axes.rectangle[0], places[0][1]), (axes.rectangle[2], places[0][1])), ink, 2, DASHES["level"])]
    if series.kind == "marks":
        whiskers = [
            Stroke((axes.place((x, low)), axes.place((x, high))), ink, 1.5)
            for (x, y), (low, high) in zip(series.points, series.spread, strict=False)
            if all(map(math.isfinite, (x, y, low, high)))
        ]
        return [*whiskers, Dots(places, ink, 3.5)]
    runs = [
        tuple(axes.place(point) for point in run)
        for is_finite, run in groupby(series.points, key=lambda point: all(map(math.isfinite, point)))
        if is_finite
    ]
    marks: list[Mark] = [Stroke(run, ink, 2, DASHES.get(series.kind, ())) for run in runs if len(run) > 1]
    alone = places if pointed else tuple(run[0] for run in runs if len(run) == 1)
    if alone:
        marks.append(Dots(alone, ink, 3, hollow=series.kind != "line"))
    if series.ring is not None and finite([series.points[series.ring]]):
        marks.append(Dots((axes.place(series.points[series.ring]),), ink, 4, hollow=True))
    return marks


def _point_labels(series: Sequence[Series], axes: Axes) -> list[Mark]:
    """Make the labels of points, each where it covers no point and no other label, as far as there is room.

    A label that had to go further away is joined with its point by a thin line.
    """
    face, (left, top, right, bottom) = font(LABEL_SIZE), axes.rectangle
    named = [
        (axes.place(point), text)
        for one in series
        for point, text in zip(one.points, one.labels, strict=False)
        if text and finite([point])
    ]
    taken = [(x - 4, y - 4, x + 4, y + 4) for (x, y), _ in named]
    marks: list[Mark] = []
    for (x, y), text in named:
        wide, high = face.getlength(bare(text)) / 2 + 1, 0.4 * LABEL_SIZE
        choices = []
        for far in LABEL_DISTANCES:
            for turn in LABEL_TURNS:
                across, down = math.cos(math.radians(turn)), -math.sin(math.radians(turn))
                middle = x + across * (far + wide), y + down * (far + high)
                box = (middle[0] - wide, middle[1] - high, middle[0] + wide, middle[1] + high)
                outside = box[0] < left or box[2] > right + 12 or box[1] < top - 6 or box[3] > bottom
                covered = sum(map(_overlap, taken, [box] * len(taken))) + 1000 * outside
                choices.append((covered, far, middle, box))
        _, far, middle, box = min(choices, key=lambda choice: choice[0])
        if far > LABEL_DISTANCES[0]:
            share = 4 / math.dist((x, y), middle)  # the line starts at the edge of the point
            marks.append(Stroke(((x + share * (middle[0] - x), y + share * (middle[1] - y)), middle), AXIS, 1))
        marks.append(Word(bare(text), middle, "middle"))
        taken.append(box)
    return marks


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    """The area that two rectangles (left, top, right, bottom) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
