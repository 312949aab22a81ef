"""What the view of a result shows, in plain values: menus, photos, maps and matches. Nothing here knows of widgets."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gamlens import render
from gamlens.capture.forward import BY_NETWORK
from gamlens.errors import GamlensError
from gamlens.methods import METHODS, Kind, names
from gamlens.refine import Refinement
from gamlens.render.html.pictures import embedded

if TYPE_CHECKING:
    from gamlens.explanation.origin import Origin
    from gamlens.explanation.result import Explanation
    from gamlens.pairs.correspondence import Matches

LONGER_SIDE = 448  # the pictures of a view are shrunk to this many pixels
ROWS_LISTED = 100  # how many rows the menu of a view lists
HIGHEST_LEVEL = 65535  # the level that stands for the highest value of a map


@dataclass(frozen=True)
class PointOfPair:
    """A point of a pair whose matches are asked for: the side, "x" or "y", and fractions of its width and height."""

    side: str
    x: float
    y: float


@dataclass(frozen=True)
class ViewRequest:
    """What a view is asked to show.

    Attributes:
        row: The row of the result.
        method: A name of METHODS.
        n: How many blocks, or attention layers, the map is made of.
        refine: Whether the map is refined by the network's own self-similarity.
        point: A point of a pair, whose matches are shown in place of maps.
    """

    row: int
    method: str
    n: int
    refine: bool
    point: PointOfPair | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> ViewRequest:
        """Read what the page sends; fractions are clamped."""
        try:
            point = values.get("point")
            if point is not None:
                x, y = (min(max(float(point[axis]), 0.0), 1.0) for axis in "xy")
                point = PointOfPair("y" if point["side"] == "y" else "x", x, y)
            method, n = str(values["method"]), max(1, int(values["n"]))
            return cls(int(values["row"]), method, n, bool(values["refine"]), point)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GamlensError(
                f"A view is asked for row, method, n and refine; found {dict(values)!r:.200}."
            ) from error


class ViewedResult:
    """A result, and the maps of its rows by any method, made when they are asked for.

    The first forward runs when a map is asked for that the result does not have. Its trace serves every method that
    reads blocks or attention, every n, refinement and point, until another row is shown or `forget` is called. A method
    that reads pixels needs a forward of its own.

    Args:
        sides: One Explanation for classes; those of x and y for pairs.
        origin: The lens that made the result. None if it is not known: there are the result's own maps only.
    """

    def __init__(self, sides: Sequence[Explanation], origin: Origin | None) -> None:
        self.sides, self.origin = tuple(sides), origin
        if len(self.sides[0]) == 0:
            raise GamlensError("There is nothing to view: the result has no row.")
        about = self.sides[0].about
        self._method, self._n = str(about.get("method", "")), int(about.get("n", 1))
        self._refined = about.get("refine")
        self._row, self._rows = -1, tuple(self.sides)
        self._sizes: list[tuple[int, int]] = []
        self._traces: dict[str, Any] = {}
        self._lock = threading.RLock()

    @property
    def is_pair(self) -> bool:
        return len(self.sides) == 2

    @property
    def first(self) -> ViewRequest:
        """What is shown at first: the first row as the result has it."""
        return ViewRequest(0, self._method, self._n, self._refined is not None)

    def menus(self) -> dict[str, Any]:
        """What can be chosen: rows and methods and, for each method, the largest and the usual n."""
        rows = range(min(len(self.sides[0]), ROWS_LISTED))
        labels = []
        for row in rows:
            pictures = " and ".join(dict.fromkeys(side.picture(row).name for side in self.sides))
            labels.append(pictures if self.is_pair else f"{pictures}: {self.sides[0].names[row]}")
        return {
            "pair": self.is_pair,
            "rows": labels,
            "more_rows": len(self.sides[0]) - len(labels),
            "methods": self._methods(),
            "fixed": self.origin is None,
        }

    def _methods(self) -> list[dict[str, Any]]:
        if self.origin is None:
            entry = METHODS.get(self._method)
            title = entry.title if entry is not None else self._method
            return [{"name": self._method, "title": title, "kind": "", "most": self._n, "usual": self._n}]
        lens, kinds = self.origin.lens, ["block", "pair", "input"] if self.is_pair else ["block", "input"]
        depths = {"block": len(lens.blocks), "attention": len(lens.attention_layers), "pair": len(lens.blocks)}
        if depths["attention"]:
            kinds.insert(1, "attention")
        usual = {"block": min(2, depths["block"]), "attention": depths["attention"]}
        chosen: list[Kind] = [kind for kind in ("block", "attention", "pair", "input") if kind in kinds]
        found = []
        for name in names(*chosen):
            entry = METHODS[name]
            if self.sides[0].about.get("sign") is not None and not entry.has_sign:
                continue
            found.append(
                {
                    "name": name,
                    "title": entry.title,
                    "kind": entry.kind,
                    "most": depths.get(entry.kind, 1),
                    "usual": usual.get(entry.kind, 1),
                    "refines": entry.kind != "input" and depths["block"] > 1,
                }
            )
        return found

    def photos(self, row: int) -> list[dict[str, Any]]:
        """The photos of a row, shrunk: the data URI, its size, the size of the original, and the name of each."""
        with self._lock:
            self._show(row)
            found, self._sizes = [], []
            for side in self._rows:
                source, small = embedded(render.thumbnail(side.image(), LONGER_SIDE))
                height, width = side.frames[0].original
                self._sizes.append((small.height, small.width))
                found.append(
                    {
                        "source": source,
                        "size": [small.width, small.height],
                        "original": [width, height],
                        "name": side.picture().name,
                    }
                )
            return found

    def shown(self, asked: ViewRequest) -> dict[str, Any]:
        """The maps, or the matches of a point, on the photos that `photos` gave last: one entry per side, and texts."""
        with self._lock:
            self._show(asked.row)
            if len(self._sizes) != len(self.sides):
                self.photos(asked.row)
            return self._maps(asked) if asked.point is None else self._matches(asked, asked.point)

    def forget(self) -> None:
        """Drop the traces; the next map that is asked for needs a forward again."""
        with self._lock:
            self._traces.clear()

    def _show(self, row: int) -> None:
        if row == self._row:
            return
        if not 0 <= row < len(self.sides[0]):
            raise GamlensError(f"There is no row {row}: there are {len(self.sides[0])}, numbered from 0.")
        self._row, self._rows, self._sizes = row, tuple(side[row] for side in self.sides), []
        self._traces.clear()

    def _trace(self, method: str) -> Any:
        """The trace of the shown row that serves a method: its Trace, or its PairTrace."""
        origin = self.origin
        if origin is None:
            raise GamlensError(
                "This result does not know its lens, because it was loaded, selected or joined: explain the image "
                "again by the lens."
            )
        kind = METHODS[method].kind
        common = kind in ("block", "pair") or (
            kind == "attention" and METHODS[origin.lens.default_method].kind == "attention"
        )
        key = BY_NETWORK if common else method
        if key not in self._traces:
            self._traces[key] = origin.trace_rows(self._rows, key)
        return self._traces[key]

    def _explained(self, asked: ViewRequest) -> tuple[Explanation, ...]:
        if (asked.method, asked.n, asked.refine) == (self._method, self._n, self._refined is not None):
            return self._rows
        trace, refine = self._trace(asked.method), Refinement() if asked.refine else None
        if asked.refine and self._refined is not None:
            refine = Refinement(len(self._refined["blocks"]), self._refined["keep"])
        assert self.origin is not None
        return self.origin.explain(self._rows, trace, asked.method, asked.n, refine)

    def _maps(self, asked: ViewRequest) -> dict[str, Any]:
        found = self._explained(asked)
        title = METHODS[asked.method].title if asked.method in METHODS else asked.method
        flat = [row.picture().name for row in found if float(row.maps.abs().max()) == 0]
        note = f"The map is flat: {title} marks no pixel of {' and '.join(flat)}." if flat else ""
        name, score = found[0].names[0], float(found[0].scores[0])
        blocks = found[0].about["blocks"]
        used = blocks[0] if len(blocks) == 1 else f"{len(blocks)} layers, {blocks[0]} to {blocks[-1]}"
        used = "the pixels" if asked.method in names("input") else used
        return {
            "title": f"Why similar? {name} {score:.4g}" if self.is_pair else f"Why {name}? score {score:.4g}",
            "caption": f"{title} of {used}{', refined' if asked.refine else ''}",
            "note": note,
            "sides": [drawn(row, size) for row, size in zip(found, self._sizes, strict=True)],
        }

    def _matches(self, asked: ViewRequest, point: PointOfPair) -> dict[str, Any]:
        if not self.is_pair:
            raise GamlensError("Points are matched in pairs of images; this result explains classes.")
        number, trace = "xy".index(point.side), self._trace("gam")
        assert self.origin is not None
        here, there = self._rows[number].frames[0], self._rows[1 - number].frames[0]
        place = (point.x * here.original[1], point.y * here.original[0])
        found: Matches = trace.matches(place, side=point.side, score=self.origin.scored["score"])
        height, width = there.original
        best = [min(max(found.best[0] / width, 0.0), 1.0), min(max(found.best[1] / height, 0.0), 1.0)]
        share = f" ({100 * found.part / abs(found.score):.1f} %)" if found.score else ""
        asked_side = {"cell": here.cell_box(found.cell, found.cells), "spot": [point.x, point.y]}
        full = replace(found, frame=found.frame.scaled(self._sizes[1 - number])).full().cpu().numpy()
        answer = {
            **levels_of(full, 0.0, 1.0, "ember"),
            "bar": {"low": "0", "high": "1", "middle": "", "caption": "match: 1 is the best place"},
            "spot": best,
        }
        sides = [asked_side, answer] if number == 0 else [answer, asked_side]
        return {
            "title": "What matches the point?",
            "caption": f"This position is one of {found.cells[0]} × {found.cells[1]}. It adds {found.part:.3g} of "
            f"{found.score:.3g}{share}.",
            "note": "" if full.any() else "No place of the other image matches this point.",
            "sides": sides,
        }


def drawn(row: Explanation, size: tuple[int, int]) -> dict[str, Any]:
    """The map of a single row at `size`, (height, width) of a copy of its image, with its colours and colour bar."""
    small = replace(row, frames=(row.frames[0].scaled(size),))
    peak = float(row.maps.abs().max()) or 1.0
    low, high = (-peak, peak) if row.signed else (0.0, 1.0)
    bar = row.bar()
    worth = [float(scale[0]) for scale in row.scales.values() if np.isfinite(float(scale[0]))]
    return {
        **levels_of(small.full().cpu().numpy(), low, high, bar.cmap),
        "bar": {"low": bar.low, "high": bar.high, "middle": bar.middle, "caption": bar.caption},
        "worth": worth[0] if len(row.scales) == len(worth) == 1 else None,
        "unit": str(row.about.get("score", "score")),
    }


def levels_of(full: NDArray[Any], low: float, high: float, cmap: str) -> dict[str, Any]:
    """A map (H,W) as 16-bit levels from `low` to `high`, and the 256 colours of a colour map, red, green, blue."""
    share = (np.clip(full, low, high) - low) / (high - low)
    return {
        "values": np.rint(share * HIGHEST_LEVEL).astype("<u2").tobytes(),
        "low": low,
        "high": high,
        "signed": cmap in render.SIGNED_COLORMAPS,
        "colours": render.lut(cmap).tobytes(),
    }
