"""Write panels and grids of panels as HTML with embedded pictures, for pages and for notebooks (`fragment`)."""

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from gamlens.render.elements import Grid, LineKey, Panel, Series
from gamlens.render.html.charts_and_tables import series_item
from gamlens.render.inline import bare, inline
from gamlens.render.raster.keys import ramp
from gamlens.render.raster.rgb import fitted, pixelated, rgb

EMBEDDED_SIDE, JPEG_QUALITY = 640, 88

_TICKS = {"good": "✓", "bad": "✗"}


def embedded(image: Image.Image) -> tuple[str, Image.Image]:
    """Encode an image, shrunk to EMBEDDED_SIDE if it is larger, as a data URI: PNG if it has few colours, else JPEG.

    Returns:
        The data URI, and the picture that was encoded.
    """
    picture = rgb(image)
    few = pixelated(picture) or picture.getcolors(256) is not None
    if max(picture.size) > EMBEDDED_SIDE:
        picture = fitted(picture, EMBEDDED_SIDE, EMBEDDED_SIDE)
    stream = io.BytesIO()
    if few:
        picture.save(stream, "PNG", optimize=True)
    else:
        picture.save(stream, "JPEG", quality=JPEG_QUALITY, optimize=True, progressive=True)
    data = base64.b64encode(stream.getvalue()).decode()
    return f"data:image/{'png' if few else 'jpeg'};base64,{data}", picture


def single_html(panel: Panel) -> str:
    """Write a panel that stands alone."""
    return f'<div class="single">{_figure(panel, panel.tallness)}</div>'


def fragment(panels: Sequence[Panel], *, height: int = 220) -> str:
    """Write panels side by side, each `height` pixels high with its title and caption below, for notebooks.

    All styles are inline, so that the HTML needs no style sheet.
    """
    cells = []
    for panel in panels:
        source, _ = embedded(panel.image)
        words = " ".join(filter(None, (f"<b>{escape(panel.title)}</b>" if panel.title else "", escape(panel.caption))))
        cells.append(
            f'<figure style="margin:0 12px 12px 0;text-align:center"><img src="{source}" '
            f'alt="{escape(panel.alt or panel.title)}" style="height:{height}px;border-radius:6px">'
            f'<figcaption style="font-size:90%">{words}</figcaption></figure>'
        )
    return f'<div style="display:flex;flex-wrap:wrap">{"".join(cells)}</div>'


def grid_html(grid: Grid) -> str:
    """Write a grid: as a table if it has heads or labels, else as pictures in as many columns as fit."""
    title = f"<h3>{inline(grid.title)}</h3>" if grid.title else ""
    if not grid.columns and not grid.labels:
        rows = zip(grid.rows, grid.tallness, strict=True)
        figures = "".join(_figure(panel, tall) for row, tall in rows for panel in row if panel)
        return f'{title}<div class="gallery" style="--n:{max(1, grid.width)}">{figures}</div>{_keys(grid)}'
    lines = [*_heads(grid), *(_row(grid, number, tall) for number, tall in enumerate(grid.tallness))]
    body = "\n".join(f'<div class="row" role="row">{line}</div>' for line in lines)
    name = escape(bare(grid.title) or "Pictures")
    kind = "grid labelled" if grid.labels else "grid"
    return (
        f'{title}<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
        f'<div class="{kind}" role="table" style="--n:{grid.width}">\n{body}</div></div>{_keys(grid)}'
    )


def _figure(panel: Panel, tallness: float, *, where: str = "") -> str:
    """Write a panel as a <figure>.

    Args:
        panel: The panel.
        tallness: The height of its cell divided by the width.
        where: The row and column of the cell, which the enlarged view shows.
    """
    source, picture = embedded(panel.image)
    alt = panel.alt or ", ".join(filter(None, (bare(panel.title), where))) or bare(panel.caption) or "picture"
    share = 100 * min(1.0, tallness / panel.tallness)
    kind = " ".join(filter(None, (panel.mark, "pixels" if pixelated(picture) else "")))
    tick = f'<span class="tick {panel.mark}" role="img" aria-label="{panel.mark}">{_TICKS.get(panel.mark)}</span>'
    words = (
        tick if panel.mark else "",
        f"<strong>{inline(panel.title)}</strong>" if panel.title else "",
        f"<span>{inline(panel.caption)}</span>" if panel.caption else "",
    )
    caption = f"<figcaption>{' '.join(filter(None, words))}</figcaption>" if any(words) else ""
    return (
        f'<figure data-where="{escape(where)}"><div class="frame" style="aspect-ratio:{1 / tallness:.4f}">'
        f'<img class="{kind}" src="{source}" alt="{escape(alt)}" '
        f'width="{picture.width}" height="{picture.height}" style="width:{share:.2f}%"></div>{caption}</figure>'
    )


def _heads(grid: Grid) -> list[str]:
    """Write the heads of groups and the heads of columns, one row of HTML each, if there are any."""
    corner = '<div class="corner" role="cell"></div>' if grid.labels else ""
    groups = "".join(
        f'<div class="head group" role="columnheader" aria-colspan="{span}" style="grid-column:span {span}">'
        f"{inline(text)}</div>"
        for text, span in grid.groups
    )
    heads = "".join(f'<div class="head" role="columnheader">{inline(head)}</div>' for head in grid.columns)
    return [corner + line for line in (groups, heads) if line]


def _row(grid: Grid, number: int, tall: float) -> str:
    row, label = grid.rows[number], grid.labels[number] if grid.labels else ""
    cells = [f'<div class="label" role="rowheader">{inline(label)}</div>' if grid.labels else ""]
    for column in range(grid.width):
        panel = row[column] if column < len(row) else None
        where = " · ".join(bare(name) for name in (label, *grid.columns[column : column + 1]) if name)
        cells.append(f'<div role="cell">{_figure(panel, tall, where=where) if panel else ""}</div>')
    return "".join(cells)


def _keys(grid: Grid) -> str:
    """Write the legends under a grid: what its colours, lines and series mean."""
    parts = []
    for key in grid.keys:
        if isinstance(key, LineKey):
            css = f"border-top:3px {'dashed' if key.dashed else 'solid'} rgb{key.colour}"
            parts.append(f'<li><i class="swatch"><b style="{css}"></b></i>{inline(key.label)}</li>')
        elif isinstance(key, Series):
            parts.append(series_item(key))
        else:
            colours = ramp(key)
            stops = ",".join(f"rgb{colours.getpixel((at, 0))}" for at in range(0, 256, 15))
            bar = f'<i class="ramp" style="background:linear-gradient(90deg,{stops})"></i>'
            parts.append(f"<li>{inline(key.label)} {inline(key.low)} {bar} {inline(key.high)}</li>")
    return f'<ul class="keys">{"".join(parts)}</ul>' if parts else ""
