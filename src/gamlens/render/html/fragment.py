"""Panels as an HTML fragment that needs no style sheet: what a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gamlens.render.elements import Panel
from gamlens.render.html.pictures import embedded


def fragment(panels: Sequence[Panel], *, height: int = 220) -> str:
    """Pictures beside one another with their titles and captions under them."""
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
