"""A page as one self-contained HTML file."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from gamlens.errors import GamlensError
from gamlens.files import write_whole
from gamlens.render.elements import Bars, Block, Chart, Charts, Grid, Heading, Page, Panel, Section, Table, Text
from gamlens.render.html.pictures import grid_html, single_html
from gamlens.render.html.svg_chart import chart_html
from gamlens.render.html.tables import bars_html, table_html
from gamlens.render.inline import bare, inline, paragraphs, slug

PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@cache
def asset(name: str) -> str:
    """The text of a file that lies beside this module: the style sheet or the script of every page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def block_html(block: Block) -> str:
    """The HTML of any block."""
    match block:
        case Panel():
            return single_html(block)
        case Grid():
            return grid_html(block)
        case Bars():
            return bars_html(block)
        case Table():
            return table_html(block)
        case Text():
            return paragraphs(block.text)
        case Heading():
            return f"<h3>{inline(block.text)}</h3>"
        case Chart():
            return chart_html(block)
        case Charts():
            return f'<div class="charts">{"".join(map(chart_html, block.items))}</div>'


def _anchors(page: Page) -> list[str]:
    """One unique anchor for each section."""
    taken: dict[str, None] = {}
    for section in page.sections:
        wanted, number = slug(section.title), 2
        anchor = wanted
        while anchor in taken:
            anchor, number = f"{wanted}-{number}", number + 1
        taken[anchor] = None
    return list(taken)


def _section(section: Section, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">',
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>',
        paragraphs(section.lead, kind="lead"),
        *map(block_html, section.blocks),
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def html(page: Page) -> str:
    """`page` as HTML5 that needs no network: styles, script and pictures are inside."""
    anchors = _anchors(page)
    links = "".join(
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, page.sections, strict=True)
    )
    contents = f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if len(anchors) > 1 else ""
    sections = "\n".join(map(_section, page.sections, anchors))
    footer = f"<footer>{paragraphs(page.footer)}</footer>" if page.footer else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{escape(bare(page.lead))}">
<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}</style>
</head>
<body>
<header>
<h1>{escape(page.title)}</h1>
{paragraphs(page.lead, kind="lead")}
{contents}
</header>
<main>
{sections}
</main>
{footer}
<script>
{asset("page.js")}</script>
</body>
</html>
"""


def write(page: Page, path: str | Path) -> Path:
    """Write `page` to `path`, which it returns: the whole file or nothing, and an earlier file stays until then."""
    target = Path(path)
    text = html(page)
    try:
        write_whole(target, lambda file: file.write(text.encode("utf-8", "replace")))
    except (OSError, ValueError) as error:
        raise GamlensError(
            f"could not write the page to {str(target)!r} ({getattr(error, 'strerror', None) or error}): "
            "check that the folder exists, may be written, and has room"
        ) from error
    return target
