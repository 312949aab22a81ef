"""A page as one self-contained HTML file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from gamlens.errors import GamlensError
from gamlens.files import write_whole
from gamlens.render.assets import CSS, JS
from gamlens.render.blocks import block
from gamlens.render.markup import bare, paragraphs, slug
from gamlens.render.panels import Page, Section

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


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
        *map(block, section.blocks),
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def html(page: Page) -> str:
    """`page` as HTML5 that needs no network: styles, script and pictures inside."""
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
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
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
<script>{JS}</script>
</body>
</html>
"""


def write(page: Page, path: str | Path) -> Path:
    """Write `page` to `path`: the whole file or nothing; an earlier file stays until then."""
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
