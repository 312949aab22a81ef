"""Hook of mkdocs: equations between dollar signs become MathML while the site is built: no script draws them.

The extension `pymdownx.arithmatex` finds the equations and leaves code and prices alone.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FUNCTION = re.compile(r"<mo>([A-Za-z]{2,})</mo>(?=(?:<mrow>)?<mo[^>]*>(?:\(|&#x00028;))")  # ReLU( and the like
EQUATION = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', flags=re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the equations of a page."""
    return EQUATION.sub(mathml, content)


def mathml(found: re.Match[str]) -> str:
    """One equation: a line of its own, or within a sentence."""
    kind, within, alone = found.groups()
    latex = html.unescape(within if within is not None else alone).strip()
    shown = convert(latex, display="inline" if within is not None else "block")
    shown = FUNCTION.sub(r"<mi>\1</mi>", shown)  # the name of a function: no space before its parenthesis
    return shown if kind == "span" else f'<div class="equation" tabindex="0">{shown}</div>'
