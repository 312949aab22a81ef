"""Text for drawn figures, in the one font that Pillow carries."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from PIL import ImageFont

from gamlens.render.inline import bare

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
LEADING = 1.3

_SPELLED = {"–": "-", "—": "-", "−": "-", "×": "x", "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "µ": "u",
            "✓": "+", "✗": "x", "ß": "ss", "ł": "l", "ø": "o", "æ": "ae", "œ": "oe"}  # fmt: skip


@cache
def font(size: float) -> Font:
    """Pillow's own font at `size` pixels."""
    return ImageFont.load_default(size=size)


def line_height(size: float) -> int:
    """The height of a line of letters of that size."""
    return round(size * LEADING)


@cache
def _drawable(letter: str) -> bool:
    face = font(20)
    return letter.isspace() or bytes(face.getmask(letter)) != bytes(face.getmask("\uffff"))


def plain(text: str) -> str:
    """`text` without inline markup, respelled where Pillow's font (little more than ASCII) lacks a letter."""
    return "".join(letter if _drawable(letter) else _respelled(letter) for letter in bare(text))


def _respelled(letter: str) -> str:
    if letter in _SPELLED:
        return _SPELLED[letter]
    parts = unicodedata.normalize("NFKD", letter)
    return "".join(part for part in parts if not unicodedata.combining(part) and _drawable(part)) or "?"


def ellipsized(text: str, face: Font, width: float) -> str:
    """`text`, cut and ended with an ellipsis where it is wider than `width`."""
    if face.getlength(text) <= width:
        return text
    keep = len(text)
    while keep and face.getlength(text[:keep].rstrip() + "…") > width:
        keep -= 1
    return text[:keep].rstrip() + "…"


def wrapped(text: str, face: Font, width: float, *, most: int) -> list[str]:
    """`text` in at most `most` lines no wider than `width`; the last one ellipsized."""
    lines: list[str] = []
    for word in plain(text).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (len(lines) == most or face.getlength(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(word)
    return [ellipsized(line, face, width) for line in lines]


def fitting(texts: Sequence[str], rooms: Sequence[float], size: float) -> float:
    """The size at which every text fits into its room: on one line from 85 %, on two from 70 % of the given size."""
    for most, least in ((1, 85), (2, 70)):
        for percent in range(100, least - 1, -5):
            face = font(size * percent / 100)
            lines = (wrapped(text, face, room, most=most) for text, room in zip(texts, rooms, strict=False))
            if not any(line.endswith("…") for text in lines for line in text):
                return size * percent / 100
    return size * 0.7
