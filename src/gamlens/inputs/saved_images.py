"""Read what a saved explanation or gallery says about an image.

The file may have been damaged or edited, so every value is checked: a ValueError says which one is wrong, and the
caller adds the name of the file.
"""

import math
from collections.abc import Mapping
from typing import Any

from gamlens.inputs.frame import Frame, Size

MOST_SAVED_PIXELS = 1 << 32  # a whole image of more pixels cannot have been decoded


def saved_frame(item: Mapping[str, Any]) -> Frame:
    """The frame of an image, from the entries original, size and window of its record."""
    window = item["window"]
    if not isinstance(window, list) or len(window) != 4 or not all(_is_finite(value) for value in window):
        raise ValueError(f"window is {window!r:.60}, not four numbers")
    x0, y0, x1, y1 = map(float, window)
    if x0 >= x1 or y0 >= y1:
        raise ValueError(f"the window {window} is empty")
    return Frame(saved_size(item["original"]), saved_size(item["size"]), (x0, y0, x1, y1))


def saved_size(value: Any) -> Size:
    """A height and a width."""
    if not isinstance(value, list) or len(value) != 2 or not all(type(side) is int and side > 0 for side in value):
        raise ValueError(f"a size is {value!r:.60}, not a height and a width")
    if value[0] * value[1] > MOST_SAVED_PIXELS:
        raise ValueError(f"a size is {value}, which is too large for an image")
    return value[0], value[1]


def saved_text(value: Any) -> str:
    """A name or a path."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"a name or path is {value!r:.60}, not a text")
    return value


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e9 and math.isfinite(value)
