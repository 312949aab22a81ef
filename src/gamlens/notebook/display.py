"""How a result is displayed: as an interactive view in a notebook that can show one, as a picture elsewhere.

anywidget is imported only here, when a view is opened, because it belongs to the extra `gamlens[notebook]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from gamlens.data.reading import import_extra

if TYPE_CHECKING:
    from gamlens.explanation.origin import Origin
    from gamlens.explanation.result import Explanation
    from gamlens.notebook.result_view import ResultView


class Displayed(Protocol):
    """What `mime_bundle` shows: an Explanation or a PairExplanation."""

    def view(self) -> ResultView: ...

    def _repr_html_(self) -> str: ...


def open_view(sides: Sequence[Explanation], origin: Origin | None) -> ResultView:
    """Open the interactive view of a result.

    Args:
        sides: One Explanation for classes; those of x and y for pairs.
        origin: The lens that made the result; None if it is not known, and the maps stay as they are.

    Raises:
        GamlensError: If anywidget is missing; it names the extra that installs it.
    """
    import_extra("anywidget", "The interactive view of a result", extra="notebook")
    from gamlens.notebook.result_view import ResultView

    return ResultView(sides, origin)


def mime_bundle(result: Displayed) -> dict[str, Any]:
    """What a notebook is given to display: text, HTML with pictures and, if it can show one, an interactive view.

    A frontend takes the richest form that it can show. The HTML stays in the saved notebook, so that pages without a
    kernel (GitHub, nbconvert) show the pictures.
    """
    bundle: dict[str, Any] = {"text/plain": repr(result), "text/html": result._repr_html_()}
    if runs_in_kernel() and find_spec("anywidget") is not None:
        shown = result.view()._repr_mimebundle_()
        own = shown[0] if isinstance(shown, tuple) else shown
        bundle |= {kind: data for kind, data in (own or {}).items() if kind not in bundle}
    return bundle


def runs_in_kernel() -> bool:
    """Whether a Jupyter kernel runs this code, and not a terminal or a plain script, where no view can be shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
