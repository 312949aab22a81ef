"""Convert text with simple markup to safe HTML or plain text, and titles to anchors."""

import re
import unicodedata
from collections.abc import Iterable
from html import escape

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<name>[^\[\]]+)\]\((?P<target>#?[\w.][\w./#%-]*)\)",
    re.DOTALL,
)


def inline(text: str) -> str:
    """Escape text for HTML, and turn **bold**, `code` and [links](#anchor) into elements.

    A link may lead to an anchor of the page or to a relative path.
    """
    return _INLINE.sub(_element, escape(text))


def _element(found: re.Match[str]) -> str:
    """Return the HTML of one piece of markup, whose text is escaped already."""
    if found["code"] is not None:
        return f"<code>{found['code']}</code>"
    if found["bold"] is not None:
        return f"<strong>{_INLINE.sub(_element, found['bold'])}</strong>"
    return f'<a href="{found["target"]}">{found["name"]}</a>'


def bare(text: str) -> str:
    """Remove the inline markup from text; the result is not escaped."""
    return _INLINE.sub(lambda found: found["code"] or bare(found["bold"] or found["name"]), text)


def paragraphs(text: str, *, kind: str = "") -> str:
    """Make one <p> element, of CSS class `kind` if given, for each paragraph of text; blank lines separate them."""
    opening = f'<p class="{kind}">' if kind else "<p>"
    return "\n".join(f"{opening}{inline(part.strip())}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique, ignoring case: the second "a" becomes "a-2", the third "a-3".

    >>> unique_names(["a", "b", "A"])
    ['a', 'b', 'A-2']
    """
    taken: dict[str, str] = {}
    for name in names:
        wanted, number = name, 2
        while name.lower() in taken:
            name, number = f"{wanted}-{number}", number + 1
        taken[name.lower()] = name
    return list(taken.values())


def slug(text: str) -> str:
    """Turn text into an HTML anchor: lower case, with hyphens between words.

    >>> slug("Why two images match")
    'why-two-images-match'
    """
    ascii_only = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-") or "section"
