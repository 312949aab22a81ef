"""Charts as inline SVG: small enough for a phone, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from gamlens.render.markup import bare, inline
from gamlens.render.panels import Chart, Series

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 24, 36
TONES = 7


@dataclass(frozen=True)
class _Axes:
    """From values to places in the picture."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """A point's place, held inside the plot."""
        share = [
            min(1.0, max(0.0, (value - low) / (high - low)))
            for value, (low, high) in zip(point, (self.x, self.y), strict=True)
        ]
        return LEFT + share[0] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share[1] * (HEIGHT - TOP - BOTTOM)


def chart(part: Chart) -> str:
    """The chart as a figure: title, SVG, legend, caption."""
    series = [_finite(one) for one in part.series]
    axes = _axes(part, series)
    lines = [_frame(part, axes)]
    if part.diagonal:
        low, high = max(axes.x[0], axes.y[0]), min(axes.x[1], axes.y[1])
        lines.append(f'<path class="guide" d="{_path([axes.at((low, low)), axes.at((high, high))])}"/>')
    if part.zero:
        lines.append(f'<path class="guide" d="{_path([axes.at((axes.x[0], 0.0)), axes.at((axes.x[1], 0.0))])}"/>')
    lines += [_drawn(one, axes) for one in series if one.points]
    words = f"{part.title}: {part.y} against {part.x}, {', '.join(one.name for one in part.series)}"
    title = f"<h4>{inline(part.title)}</h4>" if part.title else ""
    caption = f"<figcaption>{inline(part.caption)}</figcaption>" if part.caption else ""
    return (
        f'<figure class="chart">{title}<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(bare(words))}">{"".join(lines)}</svg>{_legend(part)}{caption}</figure>'
    )


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers between low and high, at most `most` + 1 of them.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(step * number, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _finite(series: Series) -> Series:
    """The series without points that are no numbers."""
    keep = [number for number, point in enumerate(series.points) if all(map(math.isfinite, point))]
    spread = tuple(series.spread[number] for number in keep) if series.spread else ()
    ring = keep.index(series.ring) if series.ring in keep else None
    return Series(series.name, tuple(series.points[n] for n in keep), series.kind, series.tone, spread, ring)


def _axes(part: Chart, series: Sequence[Series]) -> _Axes:
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    ys += [end for one in series for pair in one.spread for end in pair if math.isfinite(end)]
    ys += [0.0] if part.zero else []
    x = (-0.5, len(part.names) - 0.5) if part.names else part.x_range or _range(xs)
    return _Axes(x, part.y_range or _range(ys))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values need."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _frame(part: Chart, axes: _Axes) -> str:
    """Grid lines, numbers and the names of the axes."""
    bottom = HEIGHT - BOTTOM
    lines = []
    for value in ticks(*axes.y):
        y = axes.at((axes.x[0], value))[1]
        lines.append(f'<path class="axis" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{value:g}</text>')
    marks = list(enumerate(part.names)) if part.names else [(value, f"{value:g}") for value in ticks(*axes.x)]
    for value, text in marks:
        x = axes.at((value, axes.y[0]))[0]
        lines.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(text)}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{escape(bare(part.x))}</text>')
    lines.append(f'<text x="2" y="11">{escape(bare(part.y))}</text>')
    return "".join(lines)


def _drawn(series: Series, axes: _Axes) -> str:
    places = [axes.at(point) for point in series.points]
    tone = f"t{series.tone % TONES}"
    draw: dict[str, Callable[[], str]] = {
        "dots": lambda: f'<path class="{tone} dots" style="opacity:{_ink(len(places))}" d="{_specks(places)}"/>',
        "marks": lambda: _marks(series, places, axes, tone),
    }
    name = f"<title>{escape(bare(series.name))}</title>"
    if series.kind in draw:
        return f"<g>{name}{draw[series.kind]()}</g>"
    band = _band(series, axes, tone)
    kind = "" if series.kind == "line" else f" {series.kind}"
    curve = f'<path class="{tone} curve{kind}" d="{_path(places)}"/>'
    ring = ""
    if series.ring is not None:
        x, y = places[series.ring]
        ring = f'<circle class="{tone} ring" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    return f"<g>{name}{band}{curve}{ring}</g>"


def _band(series: Series, axes: _Axes, tone: str) -> str:
    if not series.spread:
        return ""
    xs = [x for x, _ in series.points]
    low = [axes.at((x, ends[0])) for x, ends in zip(xs, series.spread, strict=True)]
    high = [axes.at((x, ends[1])) for x, ends in zip(xs, series.spread, strict=True)]
    return f'<path class="{tone} band" d="{_path([*low, *reversed(high)])}Z"/>'


def _marks(series: Series, places: list[tuple[float, float]], axes: _Axes, tone: str) -> str:
    whiskers = ""
    for (x, _), ends in zip(series.points, series.spread, strict=False):
        if all(map(math.isfinite, ends)):
            whiskers += _path([axes.at((x, ends[0])), axes.at((x, ends[1]))])
    return f'<path class="{tone} whisker" d="{whiskers}"/><path class="{tone} marks" d="{_specks(places)}"/>'


def _ink(count: int) -> float:
    """Fewer dots may be darker."""
    return 0.75 if count < 150 else 0.5 if count < 500 else 0.35


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _specks(places: Sequence[tuple[float, float]]) -> str:
    """Round dots as lines of no length: a few bytes each."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)


def _legend(part: Chart) -> str:
    if len(part.series) < 2:
        return ""
    items = []
    for one in part.series:
        kind = {"dashed": " dashed", "dotted": " dotted"}.get(one.kind, "")
        shape = "M13 5h0" if one.kind in ("dots", "marks") else "M2 5H24"
        style = "marks" if one.kind in ("dots", "marks") else f"curve{kind}"
        swatch = f'<svg viewBox="0 0 26 10" aria-hidden="true"><path class="t{one.tone % TONES} {style}" d="{shape}"/>'
        items.append(f"<li>{swatch}</svg>{inline(one.name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'
