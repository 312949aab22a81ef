"""Write bars, tables and charts as HTML. Charts are inline SVG; their colours come from the style sheet."""

import math
import re
from collections.abc import Sequence
from html import escape
from numbers import Integral

from gamlens.render.chart_layout import CHART_SIZE, SLANT, SWATCH_SIZE, Dots, Mark, Point, Stroke, lay_out, swatch
from gamlens.render.elements import Bars, Chart, Series, Table, TableCell
from gamlens.render.inline import bare, inline

_NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?=$|[\s%×±])", re.IGNORECASE)
_MISSING = {"", "-", "–", "—", "n/a"}
_STRONGEST = 62  # how much of the colour the strongest shade of a cell has, in percent: text on it stays readable
_PINNED = "position:sticky;left:0;z-index:1;background:var(--paper);min-width:min(13.5rem,36vw);max-width:36vw"
_DENSE = "padding:.38rem .5rem"  # of the cells of tables with many columns: those that are shaded or pinned
_UPRIGHT, _LONG_HEAD = "writing-mode:sideways-lr;text-align:left;padding-block:.5rem", 2  # heads of narrow columns


def bars_html(bars: Bars) -> str:
    """Write horizontal bars as a list. A length below 0 or above 1 is drawn as 0 or 1."""
    items = []
    for label, share, text in bars.items:
        width = 100 * min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
        items.append(
            f"<li><span>{inline(label)}</span>"
            f'<span class="track" aria-hidden="true"><i style="width:{width:.2f}%"></i></span>'
            f"<span>{inline(text)}</span></li>"
        )
    return f'<ul class="bars">{"".join(items)}</ul>'


def table_html(table: Table) -> str:
    """Write a table. The cells of number columns carry their value in data-sort, by which the page's script sorts."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else [() for _ in table.header]
    numeric = [_is_numeric(column) for column in columns]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{" class=num" if right else ""}{_head_style(table, at)}>{inline(head)}</th>'
        for at, (head, right) in enumerate(zip(table.header, numeric, strict=True))
    )
    body = [
        f"<tr>{''.join(_cell(cell, numeric[at], _cell_style(table, line, at)) for at, cell in enumerate(row))}</tr>"
        for line, row in enumerate(table.rows)
    ]
    small = ' style="font-size:.88rem"' if table.shades or table.pinned else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="sortable"{small}>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n" + "\n".join(body) + "</tbody></table></div>"
    )


def _is_numeric(column: tuple[TableCell, ...]) -> bool:
    """Tell whether a column has at least one number, and otherwise only missing values."""
    values = [_value(cell) for cell in column]
    return any(value is not None for value in values) and all(
        value is not None or _missing(cell) for value, cell in zip(values, column, strict=True)
    )


def _cell(cell: TableCell, right: bool, style: str = "") -> str:
    if not right:
        return f"<td{style}>{_shown(cell)}</td>"
    value = _value(cell)
    return f'<td class="num" data-sort="{"" if value is None else repr(value)}"{style}>{_shown(cell)}</td>'


def _head_style(table: Table, column: int) -> str:
    """Write the style of a head. Heads of an upright table run upwards, where the browser can write so."""
    if table.pinned and column == 0:
        return _style([_DENSE, _PINNED])
    upright = table.upright and column > 0 and len(bare(table.header[column])) > _LONG_HEAD
    return _style([_DENSE if table.shades or table.pinned else "", _UPRIGHT if upright else ""])


def _cell_style(table: Table, line: int, column: int) -> str:
    """Write the style of a cell: its shade, blue above 0 and orange below, and whether it stays in view."""
    shade = table.shades[line][column] if table.shades else 0.0
    share = round(_STRONGEST * min(1.0, abs(shade))) if math.isfinite(shade) else 0
    colour = f"background:color-mix(in srgb,var(--c{2 if shade > 0 else 4}) {share}%,transparent)" if share else ""
    pin = _PINNED if table.pinned and column == 0 else ""
    return _style([_DENSE if table.shades or table.pinned else "", pin, colour])


def _style(parts: Sequence[str]) -> str:
    text = ";".join(filter(None, parts))
    return f' style="{text}"' if text else ""


def _value(cell: TableCell) -> float | None:
    """Return the number that a cell holds or that its text begins with, or None."""
    if not isinstance(cell, str):
        return float(cell) if math.isfinite(cell) and not isinstance(cell, bool) else None
    found = _NUMBER.match(bare(cell).strip().replace("−", "-"))
    return float(found[0].replace(",", "")) if found else None


def _missing(cell: TableCell) -> bool:
    return cell.strip() in _MISSING if isinstance(cell, str) else not math.isfinite(cell)


def _shown(cell: TableCell) -> str:
    if isinstance(cell, str):
        return inline(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Integral):
        return f"{cell:,}"
    if _missing(cell):
        return "–"
    return f"{cell:.3f}" if abs(cell) < 100 else f"{cell:,.1f}"


def chart_html(chart: Chart) -> str:
    """Write a chart as a <figure> with its title, SVG, caption and, for two series or more, a legend."""
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
    """Write the legend entry of a series as a list item: a sample of how it is drawn, and its name."""
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
            lines = "".join(
                f"M{x:.1f} {y:.1f}h0" for x, y in mark.points
            )  # zero-length lines with round caps: fewer bytes than circles
            width, opacity = f"{2 * mark.radius:g}", f"{mark.opacity:g}"
            return f'<path class="{mark.ink} stroke" stroke-width="{width}" opacity="{opacity}" d="{lines}"/>'
        case _:
            x, y = mark.at
            turn = f' transform="rotate(-{SLANT} {x:.1f} {y:.1f})"' if mark.slanted else ""
            place = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{mark.anchor}"'
            return f"<text {place}{turn}>{escape(mark.text)}</text>"


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
