"""Plain words to safe HTML, to anchors, and to names that are unique."""

import re
import unicodedata
from collections.abc import Iterable
from html import escape

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<name>[^\[\]]+)\]\((?P<target>#?[\w.][\w./#%-]*)\)",
    re.DOTALL,
)


def inline(text: str) -> str:
    """`text` escaped, with **bold**, `code` and [links](#anchor) to anchors or neighbouring files."""
    return _INLINE.sub(_element, escape(text))


def _element(found: re.Match[str]) -> str:
    """The HTML of one piece of markup in text that is escaped already."""
    if found["code"] is not None:
        return f"<code>{found['code']}</code>"
    if found["bold"] is not None:
        return f"<strong>{_INLINE.sub(_element, found['bold'])}</strong>"
    return f'<a href="{found["target"]}">{found["name"]}</a>'


def bare(text: str) -> str:
    """`text` without its inline markup, not escaped."""
    return _INLINE.sub(lambda found: found["code"] or bare(found["bold"] or found["name"]), text)


def paragraphs(text: str, *, kind: str = "") -> str:
    """One <p> for each part of `text` between blank lines."""
    opening = f'<p class="{kind}">' if kind else "<p>"
    return "\n".join(f"{opening}{inline(part.strip())}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, with -2, -3, ... after those that came before, in whichever case."""
    taken: dict[str, str] = {}
    for name in names:
        wanted, number = name, 2
        while name.lower() in taken:
            name, number = f"{wanted}-{number}", number + 1
        taken[name.lower()] = name
    return list(taken.values())


def slug(text: str) -> str:
    """`text` as an anchor: lower case, hyphens between words."""
    ascii_only = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-") or "section"
