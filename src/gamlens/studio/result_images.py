"""The pictures of the stage, made from a trace and the controls: no forward, no page, nothing remembered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures import draw_evidence, scaled_frame
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.controls import MEAN_OF_N, Controls
from gamlens.studio.session import ClickedPoint
from gamlens.studio.uploads import Photo
from gamlens.trace import HIDDEN_SHARE, Guess, Trace

EVIDENCE_TITLES = ("P: adds", "N: takes away", "Hidden: |N| ≥ P")
SAME_EMBEDDING = (
    "Both photos have the same embedding, so the cosine is at its maximum and has no gradient: look at the dot product."
)


@dataclass(frozen=True, eq=False)
class StageImage:
    """A picture of the stage with its words.

    Where `side` is "x" or "y" the picture can be clicked. `dot` (x, y) and `cell` (left, top, width, height) are marks
    on it, as fractions of its size.
    """

    image: Image.Image
    title: str
    alt: str
    caption: str = ""
    side: str = ""
    dot: tuple[float, float] | None = None
    cell: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, eq=False)
class Shown:
    """What a tab shows under its controls: a class of one photo, or a pair of photos and perhaps a point of one."""

    source: Trace | PairTrace
    photos: Sequence[Photo]
    controls: Controls
    point: ClickedPoint | None = None

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The trace of the class, or the two of the pair under the chosen score."""
        return (self.source,) if isinstance(self.source, Trace) else self.source.sides(self.controls.score)

    @cached_property
    def results(self) -> list[Explanation]:
        """The class's explanation, or x's and y's. Their maps are the mean of the last n blocks, or one block's own."""
        method, block, blocks = self.controls.method, self.controls.block, self.source.blocks
        single = block != MEAN_OF_N and METHODS[method].kind == "block"
        if single and block not in blocks:
            raise GamlensError(f"There is no block {block!r} in this model; there are {', '.join(blocks)}.")
        n = len(blocks) - blocks.index(block) if single else min(self.controls.n, len(blocks))
        if isinstance(self.source, Trace):
            found = [self.source.explain(method, n)]
        else:
            both = self.source.explain(method, n, score=self.controls.score)
            found = [both.x, both.y]
        return [replace(result, maps=result.blocks[block]) for result in found] if single else found


def stage_images(shown: Shown) -> list[StageImage]:
    """Why this class, or why similar (x and y in turn): a map, three methods, what Grad-CAM hides, a point's match."""
    source, controls = shown.source, shown.controls
    if shown.point is not None and isinstance(source, PairTrace):
        return _point_images(source, shown.photos, controls, shown.point)
    reason = f"why {source.explain('gam', 1).names[0]}" if isinstance(source, Trace) else "why similar"
    sides = ("",) if isinstance(source, Trace) else ("x", "y")
    images = []
    for name in controls.methods:
        one = replace(shown, controls=replace(controls, method=name))
        for side, photo, result, trace in zip(sides, shown.photos, one.results, one.traces, strict=True):
            frame = scaled_frame(result.frames[0], photo.shown)
            small = replace(result, pictures=(Picture(photo.name, pixels=photo.shown),), frames=(frame,))
            if controls.view == "evidence":
                images += _evidence_images(trace, small, controls, reason, side)
            else:
                images.append(_map_image(small, one.controls, reason, side))
    return images


def draw(result: Explanation, controls: Controls) -> Image.Image:
    """The first map over its picture, with the box and the outline at the threshold where they are asked for."""
    full = result.full(0).cpu().numpy()
    boxes = result.boxes(controls.threshold).tolist() if "box" in controls.outline else []
    boxes = [box for box in boxes if any(box)]
    mask = full >= controls.threshold if "mask" in controls.outline else None
    return render.overlay(result.image(0), full, opacity=controls.opacity, cmap=controls.cmap, boxes=boxes, mask=mask)


def _map_image(result: Explanation, controls: Controls, reason: str, side: str) -> StageImage:
    title = METHODS[controls.method].title
    blocks = controls.block
    if blocks == MEAN_OF_N:
        blocks = f"last {len(result.blocks)} blocks" if len(result.blocks) > 1 else "last block"
    alt = f"{result.pictures[0].name}: {title}, {reason}, {_peak(result.full(0).cpu().numpy())}"
    return StageImage(draw(result, controls), title, alt, blocks, side)


def _evidence_images(trace: Trace, result: Explanation, controls: Controls, reason: str, side: str) -> list[StageImage]:
    """Eq. 4: P and |N| on one scale, and the pixels that Grad-CAM hides, dimmed and outlined."""
    found = trace.evidence(None if controls.block == MEAN_OF_N else controls.block)
    cmaps, name = (controls.cmap, "ocean"), result.pictures[0].name
    drawn = draw_evidence(found, result.image(0), result.frames[0], opacity=controls.opacity, cmaps=cmaps)
    words = [f"{title} {reason}, {_peak(full)}" for title, full in zip(EVIDENCE_TITLES, drawn.maps, strict=False)]
    share = f"{100 * float(found.hidden_share[0]):.0f} % of the positive evidence"
    words.append(f"Grad-CAM hides {share}, dimmed here")
    return [
        StageImage(image, title, f"{name}: {text}", caption, side)
        for image, title, text, caption in zip(drawn[:3], EVIDENCE_TITLES, words, ("", "", share), strict=True)
    ]


def _point_images(
    pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint
) -> list[StageImage]:
    """The point on its photo and what matches it on the other, x's picture first."""
    number = "xy".index(point.side)
    here, there = photos[number], photos[1 - number]
    match = point_match(pair, photos, controls, point)
    frame = scaled_frame(match.frame, there.shown)
    shown = replace(match, frame=frame, picture=Picture(there.name, pixels=there.shown))
    image = shown.overlay(opacity=controls.opacity, cmap=controls.cmap)
    x, y = shown.best[0] / image.width, shown.best[1] / image.height
    best = (min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))
    alt = f"{here.name} with a mark {where(point.x, point.y)}"
    count = f"one of {match.cells[0]} × {match.cells[1]} positions"
    cell = _cell(match, pair.provenances[number].frames[0])
    asked = StageImage(here.shown, "The spot you asked about", alt, count, point.side, (point.x, point.y), cell)
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


def notes(shown: Shown) -> list[str]:
    """What a person should know before trusting the picture."""
    traces, controls, said = shown.traces, shown.controls, []
    if any(result.about.get("weights") == "random" for result in shown.results):
        said.append("The model's weights are random: it has learned nothing, and its maps mean nothing.")
    if any(float(result.maps.max()) == 0 for result in shown.results):
        alike = controls.score == "cosine" and len(traces) == 2 and float(traces[0].scores[0]) > 1 - 1e-5
        said.append(SAME_EMBEDDING if alike else "The map is flat: this method finds nothing here to point at.")
    hides = max(float(trace.evidence().hidden_share[0]) for trace in traces)
    hiding = [METHODS[name].title for name in controls.methods if METHODS[name].hides_evidence]
    if hiding and controls.view != "evidence" and hides > HIDDEN_SHARE:
        under = "of the positive evidence under negative gradients"
        said.append(f"{hiding[0]} hides {100 * hides:.0f} % {under}: see Eq. 4, or use GAM.")
    return said


def guesses(trace: Trace, most: int = 5) -> list[Guess]:
    """The best classes, and the explained class where it is not among them."""
    best, target = trace.top(most)[0], int(trace.targets[0])
    if all(guess.index != target for guess in best):
        every = trace.top(trace.output.shape[1] if trace.output is not None else most)[0]
        best += [guess for guess in every if guess.index == target]
    return best


def _peak(full: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    """Where a map (H,W) is strongest, in words."""
    if float(full.max()) == 0:
        return "flat"
    row, column = divmod(int(full.argmax()), full.shape[1])
    return f"strongest {where(column / full.shape[1], row / full.shape[0])}"


def where(x: float, y: float) -> str:
    """A place in a picture in words.

    >>> where(0.1, 0.9), where(0.5, 0.5)
    ('at the lower left', 'in the middle')
    """
    words = [("upper", "", "lower")[min(int(3 * y), 2)], ("left", "", "right")[min(int(3 * x), 2)]]
    place = " ".join(filter(None, words))
    return f"at the {place}" if place else "in the middle"
