"""ResultView: the Jupyter widget that shows a result. Its page is view.js and view.css, which ask for nothing outside.

Opacity, threshold and the value under the cursor are computed in the browser. For another row, method, n, refinement or
point the browser sets `asked`, and `shown` answers, or `failed` if there was an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from gamlens.errors import GamlensError
from gamlens.notebook.viewed_result import ViewedResult, ViewRequest

if TYPE_CHECKING:
    from gamlens.explanation.origin import Origin
    from gamlens.explanation.result import Explanation


def _page(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


class ResultView(anywidget.AnyWidget):
    """The interactive view of a result. `Explanation.view` and `PairExplanation.view` make it.

    Attributes:
        opacity: How strongly the map covers the photo, from 0 to 1.
        threshold: The share of the highest map value at which regions are outlined; 0 for no outline.
        menus: What can be chosen.
        asked: What the browser asks for: number, row, method, n, refine and point.
        photos: The photos of the row that is shown.
        shown: The answer to what was asked, with its number.
        failed: The text of the last error, and the number of what was asked; {} if there was none.
    """

    _esm = _page("view.js")
    _css = _page("view.css")
    opacity = traitlets.Float(0.7, min=0, max=1).tag(sync=True)
    threshold = traitlets.Float(0.0, min=0, max=1).tag(sync=True)
    menus = traitlets.Dict().tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)
    photos: traitlets.List[Any] = traitlets.List().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)
    failed = traitlets.Dict().tag(sync=True)

    def __init__(self, sides: Sequence[Explanation], origin: Origin | None) -> None:
        self._result = ViewedResult(sides, origin)
        first = self._result.first
        asked = {"number": 0, "row": 0, "method": first.method, "n": first.n, "refine": first.refine, "point": None}
        photos = self._result.photos(0)
        shown = {"number": 0, **self._result.shown(first)}
        super().__init__(menus=self._result.menus(), asked=asked, photos=photos, shown=shown)
        self._row = 0
        self.observe(self._answer, "asked")
        self.on_msg(self._heard)

    def _answer(self, change: Any) -> None:
        """Show what the browser asks for. Every error is shown in the view: nobody would see it elsewhere."""
        number = change["new"].get("number", 0)
        try:
            asked = ViewRequest.parse(change["new"])
            photos = self.photos if asked.row == self._row else self._result.photos(asked.row)
            shown = {"number": number, **self._result.shown(asked)}
        except Exception as error:  # noqa: BLE001 - the view shows it
            text = str(error) if isinstance(error, GamlensError) else f"{type(error).__name__}: {error}"
            self.failed = {"number": number, "text": text}
            return
        self._row = asked.row
        with self.hold_sync():
            self.photos, self.shown, self.failed = photos, shown, {}

    def _heard(self, widget: Any, content: Any, buffers: Any) -> None:
        """The browser says when the view was closed: the trace is dropped, and made again if it is needed."""
        if isinstance(content, dict) and content.get("closed"):
            self._result.forget()
