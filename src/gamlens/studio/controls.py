"""The controls of the page, which change what is drawn. None of them needs a new forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gamlens.capture.forward import BY_NETWORK
from gamlens.methods import FIGURE_METHODS, METHODS

MEAN_OF_N = "mean of n"
LINKS = "links"
VIEWS = {"one": "One map", "three": "Three methods", "evidence": "What Grad-CAM hides (Eq. 4)"}
PAIR_VIEWS = {**VIEWS, LINKS: "Links between the photos"}
CONTRAST_VIEWS = ("one", "three")  # the views that show a third photo, too; the others are about the first two
ONLY_RAISES, BOTH_SIGNS = "raises", "both"
SIGN_TITLES = {ONLY_RAISES: "What raises the score", BOTH_SIGNS: "What raises and what lowers it"}
MOST_LINKS = 24
OUTLINES = ("box", "mask")


@dataclass(frozen=True)
class Controls:
    """The values of one tab's controls.

    Attributes:
        view: What the stage shows: a key of VIEWS, on the pair tab of PAIR_VIEWS.
        method: The method of the map; "auto" for that of the network.
        n: The number of last blocks whose maps are averaged.
        block: The block whose own map is shown, or MEAN_OF_N for the mean of the last n.
        opacity: How strongly the map covers the photo, 0 to 1.
        cmap: The colour map.
        outline: Which of OUTLINES are drawn.
        threshold: The map value, 0 to 1, at which box and mask are drawn.
        score: The similarity that is explained; pair tab only.
        sharp: Whether maps are refined by the network's own self-similarity, as `Trace.explain(refine=True)` does it.
        sign: A key of SIGN_TITLES: whether maps also show what lowers the score, in a second colour.
        links: The number of links that the view LINKS draws; pair tab only.
    """

    view: str = "one"
    method: str = BY_NETWORK
    n: int = 2
    block: str = MEAN_OF_N
    opacity: float = 0.7
    cmap: str = "ember"
    outline: tuple[str, ...] = ()
    threshold: float = 0.25
    score: str = "cosine"
    sharp: bool = False
    sign: str = ONLY_RAISES
    links: int = 8

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Controls:
        """Controls from the values that the page sends, in the order of the fields; numbers are clamped."""
        found = dict(zip(CONTROL_NAMES, values, strict=False))
        found["n"] = max(1, int(found["n"]))
        found["block"] = str(found["block"] or MEAN_OF_N)
        found["outline"] = tuple(found["outline"] or ())
        found["sharp"] = bool(found["sharp"])
        found["sign"] = BOTH_SIGNS if found["sign"] == BOTH_SIGNS else ONLY_RAISES
        found["links"] = min(max(1, int(found["links"])), MOST_LINKS)
        for name in ("opacity", "threshold"):
            found[name] = min(max(float(found[name]), 0.0), 1.0)
        return cls(**found)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods whose maps are shown."""
        return FIGURE_METHODS if self.view == "three" else (self.method,)

    @property
    def map_settings(self) -> tuple[object, ...]:
        """The controls that change the maps of a pair but not the match of a clicked point."""
        return self.view, self.method, self.n, self.block, self.outline, self.threshold, self.sharp, self.sign

    @property
    def signed(self) -> bool:
        """Whether maps have a sign: this was chosen, and the method has signed maps."""
        return self.sign == BOTH_SIGNS and (self.method == BY_NETWORK or METHODS[self.method].has_sign)

    def for_trace(self, blocks: tuple[str, ...], default_method: str = BY_NETWORK) -> Controls:
        """The same controls for a model with these blocks, and with its default method in place of "auto".

        A `block` that the model does not have becomes MEAN_OF_N. `sharp` is switched off if the model has one block
        only: maps are refined by blocks before the last.
        """
        block = self.block if self.block in blocks else MEAN_OF_N
        method = default_method if self.method == BY_NETWORK else self.method
        return replace(self, method=method, block=block, sharp=self.sharp and len(blocks) > 1)


CONTROL_NAMES = tuple(field.name for field in fields(Controls))
