"""Write a Page as one self-contained HTML file."""

from collections.abc import Callable
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from gamlens.errors import GamlensError, warn
from gamlens.files import write_whole
from gamlens.render.elements import Bars, Block, Chart, Charts, Grid, Heading, Page, Panel, Section, Table, Text
from gamlens.render.html.charts_and_tables import bars_html, chart_html, table_html
from gamlens.render.html.pictures import grid_html, single_html
from gamlens.render.inline import bare, inline, paragraphs, slug, unique_names

PAGE_FILE = "index.html"  # the page about all results in a folder
PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@cache
def asset(name: str) -> str:
    """Read a text file beside this module: the template (page.html), the style sheet or the script of all pages."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


BLOCK_HTML: dict[type[Block], Callable[[Any], str]] = {
    Panel: single_html,
    Grid: grid_html,
    Bars: bars_html,
    Table: table_html,
    Text: lambda block: paragraphs(block.text),
    Heading: lambda block: f"<h3>{inline(block.text)}</h3>",
    Chart: chart_html,
    Charts: lambda block: f'<div class="charts">{"".join(map(chart_html, block.items))}</div>',
}


def _section(section: Section, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">',
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>',
        paragraphs(section.lead, kind="lead"),
        *(BLOCK_HTML[type(block)](block) for block in section.blocks),
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def html(page: Page) -> str:
    """Write a page as HTML5 with styles, script and pictures embedded, so that it needs no network."""
    anchors = unique_names(slug(section.title) for section in page.sections)
    links = "".join(
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, page.sections, strict=True)
    )
    return Template(asset("page.html")).substitute(
        title=escape(page.title),
        description=escape(bare(page.lead)),
        policy=PAGE_POLICY,
        style=asset("page.css"),
        lead=paragraphs(page.lead, kind="lead"),
        contents=f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if len(anchors) > 1 else "",
        sections="\n".join(map(_section, page.sections, anchors)),
        footer=f"<footer>{paragraphs(page.footer)}</footer>" if page.footer else "",
        script=asset("page.js"),
    )


def write(page: Page, path: str | Path) -> Path:
    """Write a page to a file atomically: an existing file is replaced only when the new one is complete.

    Commands share a default folder, so a page about a folder that replaces another one warns.

    Returns:
        The path of the file.
    """
    target = Path(path)
    made = html(page).encode("utf-8", "replace")
    try:
        other = target.name == PAGE_FILE and target.is_file() and target.read_bytes() != made
        write_whole(target, lambda file: file.write(made))
    except (OSError, ValueError) as error:
        raise GamlensError(
            f"Cannot write the page to {str(target)!r} ({getattr(error, 'strerror', None) or error}): check that the "
            "folder exists, that you may write to it, and that the disk is not full."
        ) from error
    if other:
        warn(f"{target} of an earlier run was replaced: give another folder to keep both.")
    return target
