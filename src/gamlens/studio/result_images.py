"""The pictures of the stage, drawn from a trace and the controls. Nothing here runs the model or keeps state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image

from gamlens import render
from gamlens.capture.forward import BY_NETWORK
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures import draw_evidence, scaled_frame
from gamlens.fuse import Fusion, at_least_float32
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.pair_trace import PairTrace
from gamlens.scores import PAIR_SCORES
from gamlens.studio.controls import MEAN_OF_N, Controls
from gamlens.studio.session import ClickedPoint
from gamlens.studio.uploads import Photo
from gamlens.trace import HIDDEN_SHARE, Guess, Trace

EVIDENCE_TITLES = ("P: adds", "N: takes away", "Hidden: |N| ≥ P")
FLAT_MAP = "The map is flat: this method marks no pixel here."


@dataclass(frozen=True, eq=False)
class StageImage:
    """A picture of the stage.

    Attributes:
        image: The picture.
        title: The bold text below it.
        alt: A description for people who do not see it.
        caption: Further text below it.
        side: "x" or "y" for a photo of a pair, which can be clicked; otherwise "".
        dot: A mark at (x, y), as fractions of width and height.
        cell: A marked rectangle (left, top, width, height), as fractions of width and height.
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
    """Everything that determines what a tab shows: a class of one photo, or a pair and perhaps a clicked point."""

    source: Trace | PairTrace
    photos: Sequence[Photo]
    controls: Controls
    point: ClickedPoint | None = None

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The trace of the class, or the two traces of the pair for the chosen score."""
        return (self.source,) if isinstance(self.source, Trace) else self.source.sides(self.controls.score)

    @cached_property
    def results(self) -> list[Explanation]:
        """The explanation of the class, or those of x and y; maps are the mean of the last n blocks, or one block's.

        With the control `sharp` they are refined, also the map of one block.
        """
        method, block, blocks = self.controls.method, self.controls.block, self.source.blocks
        single = block != MEAN_OF_N and METHODS[method].kind == "block"
        if single and block not in blocks:
            raise GamlensError(f"This model has no block {block!r}: choose one of {', '.join(blocks)}.")
        n = len(blocks) - blocks.index(block) if single else min(self.controls.n, len(blocks))
        fuse: Fusion = "mean"
        if single:  # all weight on the first of these n blocks
            fuse = [1.0, *(0.0,) * (n - 1)]
        refine = self.controls.sharp
        depth: int | str = BY_NETWORK if METHODS[method].kind == "attention" else n  # attention: all layers
        if isinstance(self.source, Trace):
            return [self.source.explain(method, depth, fuse, refine=refine)]
        both = self.source.explain(method, depth, fuse, score=self.controls.score, refine=refine)
        return [both.x, both.y]


def stage_images(shown: Shown) -> list[StageImage]:
    """The pictures of the chosen view, or of a clicked point and its match. For a pair, x and y alternate."""
    source, controls = shown.source, shown.controls
    if shown.point is not None and isinstance(source, PairTrace):
        return _point_images(source, shown.photos, controls, shown.point)
    reason = f"why {source.explain('gam', 1).names[0]}" if isinstance(source, Trace) else "why similar"
    clickable = isinstance(source, PairTrace) and PAIR_SCORES[controls.score].sums_over_positions
    sides = ("x", "y") if clickable else ("",) * len(shown.photos)
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
    """Draw the first map over its picture, and the box and the outline at the threshold if they are switched on."""
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
    if METHODS[controls.method].kind == "attention":
        blocks = f"{result.about['n']} attention layers"
    sharp = ", sharp" if controls.sharp else ""
    blocks += sharp
    alt = f"{result.pictures[0].name}: {title}{sharp}, {reason}, {_peak(result.full(0).cpu().numpy())}"
    return StageImage(draw(result, controls), title, alt, blocks, side)


def _evidence_images(trace: Trace, result: Explanation, controls: Controls, reason: str, side: str) -> list[StageImage]:
    """Three pictures of Eq. 4: P and |N| on one scale, and the pixels that Grad-CAM hides, dimmed and outlined."""
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
    """Two pictures, x first: the clicked point on its photo, and what matches it on the other photo."""
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
    asked = StageImage(here.shown, "The spot you clicked", alt, count, point.side, (point.x, point.y), cell)
    share = (
        f"adds {match.part:.3g} of {match.score:.3g} ({100 * match.part / match.score:.1f} %)" if match.score else ""
    )
    alt = f"{there.name}: the best match is {where(*best)}"
    answer = StageImage(image, "What matches it", alt, share, side="yx"[number], dot=best)
    return [asked, answer] if point.side == "x" else [answer, asked]


def point_match(pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint) -> Matches:
    """The matches of the clicked point for the chosen score, in pixels of the original photos."""
    width, height = photos["xy".index(point.side)].size
    return pair.matches((point.x * width, point.y * height), side=point.side, score=controls.score)


def _cell(match: Matches, frame: Frame) -> tuple[float, float, float, float]:
    """The cell of the clicked position as (left, top, width, height), as fractions of its picture."""
    x0, y0, x1, y1 = frame.window
    height, width = frame.original
    step = ((x1 - x0) / match.cells[1] / width, (y1 - y0) / match.cells[0] / height)
    return x0 / width + match.cell[1] * step[0], y0 / height + match.cell[0] * step[1], step[0], step[1]


def notes(shown: Shown) -> list[str]:
    """Remarks that a visitor should read before trusting the pictures."""
    traces, controls, said = shown.traces, shown.controls, []
    if any(result.about.get("weights") == "random" for result in shown.results):
        said.append("The model's weights are random: it has learned nothing, and its maps mean nothing.")
    if any(float(result.maps.max()) == 0 for result in shown.results):
        said.append(_no_gradient(shown) or FLAT_MAP)
    hides = max(float(trace.evidence().hidden_share[0]) for trace in traces)
    hiding = [METHODS[name].title for name in controls.methods if METHODS[name].hides_evidence]
    if hiding and controls.view != "evidence" and hides > HIDDEN_SHARE:
        under = "of the positive evidence under negative gradients"
        said.append(f"{hiding[0]} hides {100 * hides:.0f} % {under}: see Eq. 4, or use GAM.")
    if controls.sharp and controls.view == "evidence":
        said.append("Sharp refines maps. These pictures show the parts that Grad-CAM adds up, which stay as they are.")
    return said


def _no_gradient(shown: Shown) -> str:
    """Why the score of a pair has no gradient, and what to look at instead; empty where it has one."""
    if isinstance(shown.source, Trace):
        return ""
    score = PAIR_SCORES[shown.controls.score]
    x, y = (at_least_float32(embedding.detach()) for embedding in shown.source.embeddings)
    if not bool(score.saturated_pairs(shown.traces[0].scores, x, y).any()):
        return ""
    because = f"The map is flat: {score.saturated_because}."
    return f"{because} Choose the similarity {PAIR_SCORES[score.instead].title}." if score.instead else because


def guesses(trace: Trace, most: int = 5) -> list[Guess]:
    """The `most` best classes, and the explained class if it is not among them."""
    best, target = trace.top(most)[0], int(trace.targets[0])
    if all(guess.index != target for guess in best):
        every = trace.top(trace.output.shape[1] if trace.output is not None else most)[0]
        best += [guess for guess in every if guess.index == target]
    return best


def _peak(full: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    """Where a map (H,W) has its maximum, in words."""
    if float(full.max()) == 0:
        return "flat"
    row, column = divmod(int(full.argmax()), full.shape[1])
    return f"strongest {where(column / full.shape[1], row / full.shape[0])}"


def where(x: float, y: float) -> str:
    """Describe a position, given as fractions of width and height, in words.

    >>> where(0.1, 0.9), where(0.5, 0.5)
    ('at the lower left', 'in the middle')
    """
    words = [("upper", "", "lower")[min(int(3 * y), 2)], ("left", "", "right")[min(int(3 * x), 2)]]
    place = " ".join(filter(None, words))
    return f"at the {place}" if place else "in the middle"
