"""Extension of griffe, which reads the docstrings for the API pages: an "Example:" is an "Examples:" section, too."""

import re
from typing import Any

from griffe import Extension, Object


class OneExample(Extension):
    """Docstrings of the package have one example each and call it so; griffe knows only the plural as a section."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
