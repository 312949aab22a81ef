"""Values of a user's table and names of files in one line of limited length, for tables and pages."""

from __future__ import annotations

from typing import Any

from gamlens.errors import printable

LONGEST_SHOWN = 60  # characters


def short(value: Any) -> str:
    """A value or a name as it is listed: in one line, cut after 60 characters.

    Control characters become escapes, also those that turn the direction of the text beside them.

    >>> short("a\\n  b"), short(0.1 + 0.2), short("\\u202egnp.exe")
    ('a b', '0.3', '\\\\u202egnp.exe')
    """
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    text = printable(" ".join(text.split()))
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
