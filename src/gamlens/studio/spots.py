"""Point to point: a spot of one photo of a pair, and what matches it on the other."""

from __future__ import annotations

from dataclasses import replace

from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.state import Photo, Spot
from gamlens.studio.views import Controls, Shot, where


def spot_shots(pair: PairTrace, photos: tuple[Photo, Photo], controls: Controls, spot: Spot) -> list[Shot]:
    """The spot on its photo, and what matches it on the other."""
    here, there = photos if spot.side == "x" else photos[::-1]
    match = spot_match(pair, here, controls, spot)
    frame, whole = there.on_screen(match.frame), here.on_screen(pair.origins["xy".index(spot.side)].frames[0])
    shown = replace(match, frame=frame, picture=Picture(there.name, pixels=there.shown))
    image = shown.overlay(opacity=controls.opacity, cmap=controls.cmap)
    x, y = shown.best[0] / image.width, shown.best[1] / image.height
    best = (min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))
    asked = Shot(
        *(here.shown, "The spot you asked about", f"{here.name} with a mark {where(spot.x, spot.y)}"),
        f"one of {match.cells[0]} × {match.cells[1]} positions",
        *(spot.side, (spot.x, spot.y), _cell(match, whole)),
    )
    answer = Shot(
        *(image, "What matches it", f"{there.name}: the best match is {where(*best)}"),
        f"adds {match.part:.3g} of {match.score:.3g} ({100 * match.part / match.score:.1f} %)" if match.score else "",
        *("y" if spot.side == "x" else "x", best),
    )
    return [asked, answer] if spot.side == "x" else [answer, asked]


def spot_match(pair: PairTrace, here: Photo, controls: Controls, spot: Spot) -> Matches:
    point = (spot.x * here.size[0], spot.y * here.size[1])
    return pair.matches(point, side=spot.side, score=controls.score)


def _cell(match: Matches, frame: Frame) -> tuple[float, float, float, float]:
    """The asked position as left, top, width, height in shares of its picture."""
    x0, y0, x1, y1 = frame.window
    height, width = frame.original
    step = ((x1 - x0) / match.cells[1] / width, (y1 - y0) / match.cells[0] / height)
    return x0 / width + match.cell[1] * step[0], y0 / height + match.cell[0] * step[1], step[0], step[1]
