"""Measure and wrap text for drawn figures, in the font that comes with Pillow."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from PIL import ImageFont

from gamlens.render.inline import bare

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
LEADING = 1.3

# ASCII replacements for characters that the font lacks and that Unicode does not decompose.
_SPELLED = {"–": "-", "—": "-", "−": "-", "×": "x", "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "µ": "u",
            "✓": "+", "✗": "x", "ß": "ss", "ł": "l", "ø": "o", "æ": "ae", "œ": "oe"}  # fmt: skip


@cache
def font(size: float) -> Font:
    """Return Pillow's own font at `size` pixels."""
    return ImageFont.load_default(size=size)


def line_height(size: float) -> int:
    """Return the distance between two lines of text of this font size, in pixels."""
    return round(size * LEADING)


@cache
def _drawable(letter: str) -> bool:
    """Tell whether the font has a glyph for a character: a missing one looks like U+FFFF, which never has a glyph."""
    face = font(20)
    return letter.isspace() or bytes(face.getmask(letter)) != bytes(face.getmask("\uffff"))


def plain(text: str) -> str:
    """Remove inline markup from text, and respell characters that Pillow's font (little more than ASCII) lacks."""
    return "".join(letter if _drawable(letter) else _respelled(letter) for letter in bare(text))


def _respelled(letter: str) -> str:
    """Replace a character by ASCII: by `_SPELLED`, by its letter without accents, or by a question mark."""
    if letter in _SPELLED:
        return _SPELLED[letter]
    parts = unicodedata.normalize("NFKD", letter)
    return "".join(part for part in parts if not unicodedata.combining(part) and _drawable(part)) or "?"


def ellipsized(text: str, face: Font, width: float) -> str:
    """Shorten text that is wider than `width` pixels and end it with an ellipsis."""
    if face.getlength(text) <= width:
        return text
    keep = len(text)
    while keep and face.getlength(text[:keep].rstrip() + "…") > width:
        keep -= 1
    return text[:keep].rstrip() + "…"


def wrapped(text: str, face: Font, width: float, *, most: int) -> list[str]:
    """Wrap text into at most `most` lines of at most `width` pixels; a line that is too wide ends with an ellipsis."""
    lines: list[str] = []
    for word in plain(text).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (len(lines) == most or face.getlength(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(word)
    return [ellipsized(line, face, width) for line in lines]


def fitting(texts: Sequence[str], rooms: Sequence[float], size: float) -> float:
    """Find the largest font size at which every text fits into its width.

    Sizes from 100 % down to 85 % of `size` are tried with one line per text, then sizes down to 70 % with two.

    Args:
        texts: The texts.
        rooms: The width of each text in pixels.
        size: The font size to start from.
    """
    for most, least in ((1, 85), (2, 70)):
        for percent in range(100, least - 1, -5):
            face = font(size * percent / 100)
            lines = (wrapped(text, face, room, most=most) for text, room in zip(texts, rooms, strict=False))
            if not any(line.endswith("…") for text in lines for line in text):
                return size * percent / 100
    return size * 0.7
