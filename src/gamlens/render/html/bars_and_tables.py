"""Tables and bars as HTML."""

from __future__ import annotations

import math
import re
from numbers import Integral

from gamlens.render.elements import Bars, Table, TableCell
from gamlens.render.inline import bare, inline

_NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?=$|[\s%×±])", re.IGNORECASE)
_MISSING = {"", "-", "–", "—", "n/a"}


def bars_html(bars: Bars) -> str:
    """Horizontal bars as a list; a share beyond 0..1 is held inside its track."""
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
    """A table that the page's script makes sortable: cells of number columns carry their number."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else [() for _ in table.header]
    numeric = [_is_numeric(column) for column in columns]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{" class=num" if right else ""}>{inline(head)}</th>'
        for head, right in zip(table.header, numeric, strict=True)
    )
    body = [
        f"<tr>{''.join(_cell(cell, right) for cell, right in zip(row, numeric, strict=True))}</tr>"
        for row in table.rows
    ]
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>\n" + "\n".join(body) + "</tbody></table></div>"
    )


def _is_numeric(column: tuple[TableCell, ...]) -> bool:
    """Whether a column has numbers, and nothing else but missing values."""
    values = [_value(cell) for cell in column]
    return any(value is not None for value in values) and all(
        value is not None or _missing(cell) for value, cell in zip(values, column, strict=True)
    )


def _cell(cell: TableCell, right: bool) -> str:
    if not right:
        return f"<td>{_shown(cell)}</td>"
    value = _value(cell)
    return f'<td class="num" data-sort="{"" if value is None else repr(value)}">{_shown(cell)}</td>'


def _value(cell: TableCell) -> float | None:
    """The number a cell stands for, or None."""
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
