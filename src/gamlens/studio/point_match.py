"""Point to point: a clicked point of one photo of a pair, and what matches it in the other photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gamlens.figures import scaled_frame
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.controls import Controls
from gamlens.studio.session import ClickedPoint
from gamlens.studio.stage_images import StageImage, explanations, where
from gamlens.studio.uploads import Photo


def point_images(pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint) -> list[StageImage]:
    """The point on its photo and what matches it on the other, x's picture first."""
    number = "xy".index(point.side)
    here, there = photos[number], photos[1 - number]
    match = point_match(pair, photos, controls, point)
    asked_frame = scaled_frame(explanations(pair, controls)[number].frames[0], here.shown)
    frame = scaled_frame(match.frame, there.shown)
    shown = replace(match, frame=frame, picture=Picture(there.name, pixels=there.shown))
    image = shown.overlay(opacity=controls.opacity, cmap=controls.cmap)
    x, y = shown.best[0] / image.width, shown.best[1] / image.height
    best = (min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))
    asked = StageImage(
        here.shown,
        "The spot you asked about",
        f"{here.name} with a mark {where(point.x, point.y)}",
        f"one of {match.cells[0]} × {match.cells[1]} positions",
        side=point.side,
        dot=(point.x, point.y),
        cell=_cell(match, asked_frame),
    )
    share = (
        f"adds {match.part:.3g} of {match.score:.3g} ({100 * match.part / match.score:.1f} %)" if match.score else ""
    )
    alt = f"{there.name}: the best match is {where(*best)}"
    answer = StageImage(image, "What matches it", alt, share, side="yx"[number], dot=best)
    return [asked, answer] if point.side == "x" else [answer, asked]


def point_match(pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint) -> Matches:
    """What matches the clicked point, in original pixels, under the chosen score."""
    width, height = photos["xy".index(point.side)].size
    return pair.matches((point.x * width, point.y * height), side=point.side, score=controls.score)


def _cell(match: Matches, frame: Frame) -> tuple[float, float, float, float]:
    """The clicked position as left, top, width, height, fractions of its picture."""
    x0, y0, x1, y1 = frame.window
    height, width = frame.original
    step = ((x1 - x0) / match.cells[1] / width, (y1 - y0) / match.cells[0] / height)
    return x0 / width + match.cell[1] * step[0], y0 / height + match.cell[0] * step[1], step[0], step[1]
