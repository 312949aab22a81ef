"""Extension of griffe, which reads the docstrings for the API pages: it finds the examples in them.

Griffe takes a section "Examples:" only. In the docstrings of the package it is called "Example:", or a short example
stands without a heading.
"""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

HEADING = re.compile(r"^Example:$", flags=re.MULTILINE)
BARE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)


class ExampleSections(Extension):
    """Every example becomes a section "Examples:"."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = HEADING.sub("Examples:", obj.docstring.value)
            obj.docstring.value = BARE.sub(lambda found: "Examples:\n" + textwrap.indent(found[0], "    "), text)
