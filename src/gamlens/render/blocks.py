"""Each kind of block as HTML."""

from __future__ import annotations

import base64
import io
import math
import re
from html import escape
from numbers import Integral

from PIL import Image

from gamlens.render.charts import chart
from gamlens.render.images import fitted, pixelated, rgb
from gamlens.render.keys import colours
from gamlens.render.markup import bare, inline, paragraphs
from gamlens.render.panels import Bars, Block, Cell, Chart, Charts, Grid, Heading, Line, Panel, Table, Text

LONGEST, QUALITY = 640, 88

_TICKS = {"good": "✓", "bad": "✗"}
_NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?=$|[\s%×±])", re.IGNORECASE)
_MISSING = {"", "-", "–", "—", "n/a"}


def block(part: Block) -> str:
    """The HTML of any block."""
    match part:
        case Panel():
            return f'<div class="single">{_figure(part, part.image.height / part.image.width)}</div>'
        case Grid():
            return _grid(part)
        case Bars():
            return _bars(part)
        case Table():
            return _table(part)
        case Text():
            return paragraphs(part.text)
        case Heading():
            return f"<h3>{inline(part.text)}</h3>"
        case Chart():
            return chart(part)
        case Charts():
            return f'<div class="charts">{"".join(map(chart, part.items))}</div>'


def embedded(image: Image.Image) -> tuple[str, Image.Image]:
    """The data URI of `image` and the picture in it: PNG where there are few colours, else JPEG."""
    picture = rgb(image)
    few = pixelated(picture) or picture.getcolors(256) is not None
    if max(picture.size) > LONGEST:
        picture = fitted(picture, LONGEST, LONGEST)
    stream = io.BytesIO()
    if few:
        picture.save(stream, "PNG", optimize=True)
    else:
        picture.save(stream, "JPEG", quality=QUALITY, optimize=True, progressive=True)
    return (
        f"data:image/{'png' if few else 'jpeg'};base64,{base64.b64encode(stream.getvalue()).decode()}",
        picture,
    )


def _figure(panel: Panel, tallness: float, *, where: str = "") -> str:
    """A panel in a cell of the given height over width; `where` names the cell for the enlarged view."""
    source, picture = embedded(panel.image)
    alt = panel.alt or ", ".join(filter(None, (bare(panel.title), where))) or bare(panel.caption) or "picture"
    share = 100 * min(1.0, tallness * panel.image.width / panel.image.height)
    kind = " ".join(filter(None, (panel.mark, "pixels" if pixelated(picture) else "")))
    tick = (
        f'<span class="tick {panel.mark}" role="img" aria-label="{panel.mark}">{_TICKS[panel.mark]}</span> '
        if panel.mark
        else ""
    )
    title = f"<strong>{inline(panel.title)}</strong>" if panel.title else ""
    caption = f"<span>{inline(panel.caption)}</span>" if panel.caption else ""
    words = (
        f"<figcaption>{tick}{title}{' ' if title and caption else ''}{caption}</figcaption>"
        if tick or title or caption
        else ""
    )
    return (
        f'<figure data-where="{escape(where)}"><div class="frame" style="aspect-ratio:{1 / tallness:.4f}">'
        f'<img class="{kind}" src="{source}" alt="{escape(alt)}" '
        f'width="{picture.width}" height="{picture.height}" style="width:{share:.2f}%"></div>{words}</figure>'
    )


def _grid(grid: Grid) -> str:
    title = f"<h3>{inline(grid.title)}</h3>" if grid.title else ""
    if not grid.columns and not grid.labels:
        figures = [
            _figure(panel, tall) for row, tall in zip(grid.rows, grid.tallness, strict=True) for panel in row if panel
        ]
        return f'{title}<div class="gallery" style="--n:{max(1, grid.width)}">{"".join(figures)}</div>{_keys(grid)}'
    lines = []
    if grid.groups:
        corner = '<div class="corner" role="cell"></div>' if grid.labels else ""
        over = "".join(
            f'<div class="head group" role="columnheader" aria-colspan="{span}" style="grid-column:span {span}">'
            f"{inline(text)}</div>"
            for text, span in grid.groups
        )
        lines.append(f'<div class="row" role="row">{corner}{over}</div>')
    if grid.columns:
        corner = '<div class="corner" role="cell"></div>' if grid.labels else ""
        heads = "".join(f'<div class="head" role="columnheader">{inline(head)}</div>' for head in grid.columns)
        lines.append(f'<div class="row" role="row">{corner}{heads}</div>')
    for number, (row, tall) in enumerate(zip(grid.rows, grid.tallness, strict=True)):
        label = grid.labels[number] if grid.labels else ""
        start = f'<div class="label" role="rowheader">{inline(label)}</div>' if grid.labels else ""
        cells = []
        for column in range(grid.width):
            panel = row[column] if column < len(row) else None
            where = " · ".join(bare(name) for name in (label, *grid.columns[column : column + 1]) if name)
            cells.append(f'<div role="cell">{_figure(panel, tall, where=where) if panel else ""}</div>')
        lines.append(f'<div class="row" role="row">{start}{"".join(cells)}</div>')
    name = escape(bare(grid.title) or "Pictures")
    kind = "grid labelled" if grid.labels else "grid"
    return (
        f'{title}<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
        f'<div class="{kind}" role="table" style="--n:{grid.width}">\n' + "\n".join(lines) + "</div></div>"
    ) + _keys(grid)


def _keys(grid: Grid) -> str:
    """What colours and lines mean, in a row under the grid."""
    parts = []
    for key in grid.keys:
        if isinstance(key, Line):
            css = f"border-top:3px {'dashed' if key.dashed else 'solid'} rgb{key.colour}"
            parts.append(f'<li><i class="swatch"><b style="{css}"></b></i>{inline(key.label)}</li>')
        else:
            stops = [colours(key).getpixel((at, 0)) for at in range(0, 256, 15)]
            css = f"background:linear-gradient(90deg,{','.join(f'rgb{stop}' for stop in stops)})"
            ends = (inline(key.low), inline(key.high))
            parts.append(f'<li>{inline(key.label)} {ends[0]} <i class="ramp" style="{css}"></i> {ends[1]}</li>')
    return f'<ul class="keys">{"".join(parts)}</ul>' if parts else ""


def _bars(bars: Bars) -> str:
    items = []
    for label, share, text in bars.items:
        width = 100 * min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
        items.append(
            f"<li><span>{inline(label)}</span>"
            f'<span class="track" aria-hidden="true"><i style="width:{width:.2f}%"></i></span>'
            f"<span>{inline(text)}</span></li>"
        )
    return f'<ul class="bars">{"".join(items)}</ul>'


def _value(cell: Cell) -> float | None:
    """The number a cell stands for, or None."""
    if not isinstance(cell, str):
        return float(cell) if math.isfinite(cell) and not isinstance(cell, bool) else None
    found = _NUMBER.match(bare(cell).strip().replace("−", "-"))
    return float(found[0].replace(",", "")) if found else None


def _missing(cell: Cell) -> bool:
    return cell.strip() in _MISSING if isinstance(cell, str) else not math.isfinite(cell)


def _shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return inline(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Integral):
        return f"{cell:,}"
    if _missing(cell):
        return "–"
    return f"{cell:.3f}" if abs(cell) < 100 else f"{cell:,.1f}"


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) if table.rows else [() for _ in table.header]
    numeric = [
        any(_value(cell) is not None for cell in column)
        and all(_value(cell) is not None or _missing(cell) for cell in column)
        for column in columns
    ]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{" class=num" if right else ""}>{inline(head)}</th>'
        for head, right in zip(table.header, numeric, strict=True)
    )
    body = []
    for row in table.rows:
        cells = []
        for cell, right in zip(row, numeric, strict=True):
            value = _value(cell)
            key = "" if value is None else f"{value!r}"
            cells.append(
                f'<td class="num" data-sort="{key}">{_shown(cell)}</td>' if right else f"<td>{_shown(cell)}</td>"
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>\n" + "\n".join(body) + "</tbody></table></div>"
    )
