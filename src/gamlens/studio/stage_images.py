"""The pictures of the stage, made from a trace and the controls: no forward, no page, nothing remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from gamlens import methods, render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures import draw_evidence, scaled_frame
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.controls import MEAN_OF_N, Controls
from gamlens.studio.uploads import Photo
from gamlens.trace import HIDDEN_SHARE, Guess, Trace

EVIDENCE_TITLES = ("P: adds", "N: takes away", "Hidden: |N| ≥ P")


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


def stage_images(source: Trace | PairTrace, photos: Sequence[Photo], controls: Controls) -> list[StageImage]:
    """Why this class, or why similar (x and y in turn): one map, three methods, or what Grad-CAM hides."""
    reason = f"why {source.explain('gam', 1).names[0]}" if isinstance(source, Trace) else "why similar"
    sides = ("",) if isinstance(source, Trace) else ("x", "y")
    images = []
    for one in [replace(controls, method=name) for name in controls.methods]:
        results, traces = explanations(source, one), traces_of(source, one)
        for side, photo, result, trace in zip(sides, photos, results, traces, strict=True):
            frame = scaled_frame(result.frames[0], photo.shown)
            small = replace(result, pictures=(Picture(photo.name, pixels=photo.shown),), frames=(frame,))
            if controls.view == "evidence":
                images += _evidence_images(trace, small, controls, reason, side)
            else:
                images.append(_map_image(small, one, reason, side))
    return images


def explanations(source: Trace | PairTrace, controls: Controls) -> list[Explanation]:
    """One class's explanation, or x's and y's. Its maps are the mean of the last n blocks, or one block's own map."""
    method, blocks = controls.method, source.blocks
    single = controls.block != MEAN_OF_N and methods.find(method).kind == "block"
    if single and controls.block not in blocks:
        raise GamlensError(f"There is no block {controls.block!r} in this model; there are {', '.join(blocks)}.")
    n = len(blocks) - blocks.index(controls.block) if single else min(controls.n, len(blocks))
    if isinstance(source, Trace):
        found = [source.explain(method, n)]
    else:
        both = source.explain(method, n, score=controls.score)
        found = [both.x, both.y]
    return [replace(result, maps=result.blocks[controls.block]) for result in found] if single else found


def traces_of(source: Trace | PairTrace, controls: Controls) -> tuple[Trace, ...]:
    """The trace of a class, or the two of a pair under the chosen score."""
    return (source,) if isinstance(source, Trace) else source.sides(controls.score)


def draw(result: Explanation, controls: Controls) -> Image.Image:
    """The first map over its picture, with the box and the outline at the threshold where they are asked for."""
    full = result.full(0).cpu().numpy()
    boxes = result.boxes(controls.threshold).tolist() if "box" in controls.outline else []
    return render.overlay(
        result.image(0),
        full,
        opacity=controls.opacity,
        cmap=controls.cmap,
        boxes=[box for box in boxes if any(box)],
        mask=full >= controls.threshold if "mask" in controls.outline else None,
    )


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


def notes(traces: Sequence[Trace], results: Sequence[Explanation], controls: Controls) -> list[str]:
    """What a person should know before trusting the picture."""
    said = []
    if any(result.about.get("weights") == "random" for result in results):
        said.append("The model's weights are random: it has learned nothing, and its maps mean nothing.")
    if any(float(result.maps.max()) == 0 for result in results):
        alike = controls.score == "cosine" and len(traces) == 2 and float(traces[0].scores[0]) > 1 - 1e-5
        said.append(
            "Both photos have the same embedding, so the cosine is at its maximum and has no gradient: look at the "
            "dot product."
            if alike
            else "The map is flat: this method finds nothing here to point at."
        )
    hides = max(float(trace.evidence().hidden_share[0]) for trace in traces)
    if "grad_cam" in controls.methods and controls.view != "evidence" and hides > HIDDEN_SHARE:
        said.append(
            f"Grad-CAM hides {100 * hides:.0f} % of the positive evidence under negative gradients: see Eq. 4, or use "
            "GAM."
        )
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
