"""Charts as inline SVG: small enough for a phone, in the colours of the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gamlens.render.chart_layout import CHART_SIZE, SLANT, SWATCH_SIZE, Dots, Mark, Point, Stroke, lay_out, swatch
from gamlens.render.elements import Chart, Series
from gamlens.render.inline import bare, inline


def chart_html(chart: Chart) -> str:
    """The chart as a <figure>: title, SVG, legend (for two series or more) and caption."""
    groups = "".join(_group(name, marks) for name, marks in lay_out(chart))
    words = f"{chart.title}: {chart.y} against {chart.x}, {', '.join(series.name for series in chart.series)}"
    title = f"<h4>{inline(chart.title)}</h4>" if chart.title else ""
    legend = f'<ul class="legend">{"".join(map(series_item, chart.series))}</ul>' if len(chart.series) > 1 else ""
    caption = f"<figcaption>{inline(chart.caption)}</figcaption>" if chart.caption else ""
    return (
        f'<figure class="chart">{title}<svg viewBox="0 0 {CHART_SIZE[0]} {CHART_SIZE[1]}" role="img" '
        f'aria-label="{escape(bare(words))}">{groups}</svg>{legend}{caption}</figure>'
    )


def _group(name: str, marks: Sequence[Mark]) -> str:
    title = f"<title>{escape(bare(name))}</title>" if name else ""
    return f"<g>{title}{''.join(map(_svg, marks))}</g>" if marks else ""


def series_item(series: Series) -> str:
    """A series in a legend: a piece of it and its name, as a list item."""
    view = f"0 0 {SWATCH_SIZE[0]} {SWATCH_SIZE[1]}"
    mark = f'<svg class="piece" viewBox="{view}" aria-hidden="true">{_svg(swatch(series))}</svg>'
    return f"<li>{mark}{inline(series.name)}</li>"


def _svg(mark: Mark) -> str:
    match mark:
        case Stroke():
            dash = f' stroke-dasharray="{" ".join(f"{length:g}" for length in mark.dash)}"' if mark.dash else ""
            return f'<path class="{mark.ink} stroke" stroke-width="{mark.width:g}"{dash} d="{_path(mark.points)}"/>'
        case Dots(hollow=True):
            return "".join(
                f'<circle class="{mark.ink} ring" cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius:g}"/>'
                for x, y in mark.points
            )
        case Dots():
            lines = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in mark.points)  # round ends: a dot in a few bytes
            width, opacity = f"{2 * mark.radius:g}", f"{mark.opacity:g}"
            return f'<path class="{mark.ink} stroke" stroke-width="{width}" opacity="{opacity}" d="{lines}"/>'
        case _:
            x, y = mark.at
            turn = f' transform="rotate(-{SLANT} {x:.1f} {y:.1f})"' if mark.slanted else ""
            place = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{mark.anchor}"'
            return f"<text {place}{turn}>{escape(mark.text)}</text>"


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
