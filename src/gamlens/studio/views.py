"""A trace and the controls make pictures: no forward, no page, nothing remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from PIL import Image

from gamlens import fuse, methods, render, scores
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.state import Photo
from gamlens.trace import HIDDEN_SHARE, Guess, Trace

THREE = ("gam", "grad_cam", "grad_cam_pp")
MEAN = "mean of n"
Side = Literal["", "x", "y"]


@dataclass(frozen=True)
class Controls:
    """Everything that can be turned without a new forward. `block` is one block's own map, or MEAN of the last n."""

    view: str = "one"
    method: str = "gam"
    n: int = 2
    block: str = MEAN
    opacity: float = 0.7
    cmap: str = "ember"
    outline: tuple[str, ...] = ()
    threshold: float = 0.25
    score: str = "cosine"


VIEWS = {"one": "One map", "three": "Three methods", "evidence": "What Grad-CAM hides (Eq. 4)"}
OUTLINES = ("box", "mask")


@dataclass(frozen=True, eq=False)
class Shot:
    """A picture with its words. Where `side` is set it can be clicked; `dot` and `cell` are marks in shares of it."""

    image: Image.Image
    title: str
    alt: str
    caption: str = ""
    side: Side = ""
    dot: tuple[float, float] | None = None
    cell: tuple[float, float, float, float] | None = None


def class_shots(trace: Trace, photo: Photo, controls: Controls) -> list[Shot]:
    """Why this class: one map, three methods, or what Grad-CAM hides."""
    what = f"why {trace.explain('gam', 1).names[0]}"
    if controls.view == "evidence":
        return evidence_shots(trace.rows, photo, controls, what)
    names = THREE if controls.view == "three" else (controls.method,)
    return [
        _shot(result, photo, controls, name, what)
        for name in names
        for result in picked(trace, replace(controls, method=name))
    ]


def pair_shots(pair: PairTrace, photos: tuple[Photo, Photo], controls: Controls) -> list[Shot]:
    """Why similar: x and y by turns; for Eq. 4 x's three pictures, then y's."""
    what = "why similar"
    if controls.view == "evidence":
        rows = pair.sides(controls.score)
        left = evidence_shots(rows[0], photos[0], controls, what, side="x")
        return left + evidence_shots(rows[1], photos[1], controls, what, side="y")
    shots = []
    for name in THREE if controls.view == "three" else (controls.method,):
        x, y = picked(pair, replace(controls, method=name))
        shots.append(_shot(x, photos[0], controls, name, what, side="x"))
        shots.append(_shot(y, photos[1], controls, name, what, side="y"))
    return shots


def evidence_shots(rows: Trace, photo: Photo, controls: Controls, what: str, *, side: Side = "") -> list[Shot]:
    """Eq. 4: P and |N| on one scale, and the pixels that Grad-CAM hides, dimmed and outlined."""
    found = rows.evidence(None if controls.block == MEAN else controls.block)
    frame = photo.on_screen(rows.origin.frames[0])
    top = torch.maximum(found.positive.max(), found.negative.abs().max()).clamp(min=1e-12)
    shots = []
    for part, title, cmap in ((found.positive, "P: adds", controls.cmap), (-found.negative, "N: takes away", "ocean")):
        full = frame.map(fuse.resize(part / top, rows.size)[0].clamp(0, 1)).cpu().numpy()
        image = render.overlay(photo.shown, full, opacity=controls.opacity, cmap=cmap)
        shots.append(Shot(image, title, f"{photo.name}: {title} {what}, {peak(full)}", side=side))
    near = torch.nn.functional.interpolate(found.hidden[:, None].float(), size=rows.size, mode="nearest")[0, 0]
    hidden = (frame.map(near) >= 0.5).cpu().numpy()
    pixels = np.where(hidden[:, :, None], np.asarray(photo.shown) // 3, np.asarray(photo.shown)).astype(np.uint8)
    image = render.overlay(pixels, np.zeros(hidden.shape, np.float32), opacity=0.0, mask=hidden)
    share = f"{100 * float(found.hidden_share[0]):.0f} % of the positive evidence"
    title = "Hidden: |N| ≥ P"
    shots.append(Shot(image, title, f"{photo.name}: Grad-CAM hides {share}, dimmed here", share, side))
    return shots


def notes(rows: Sequence[Trace], results: Sequence[Explanation], controls: Controls) -> list[str]:
    """What a person should know before trusting the picture."""
    said = []
    if any(part.origin.about.get("weights") == "random" for part in rows):
        said.append("The model's weights are random: it has learned nothing, and its maps mean nothing.")
    if any(float(result.maps.max()) == 0 for result in results):
        alike = controls.score == "cosine" and len(rows) == 2 and float(rows[0].scores[0]) > 1 - 1e-5
        said.append(
            "Both photos have the same embedding, so the cosine is at its maximum and has no gradient: look at the "
            "dot product."
            if alike
            else "The map is flat: this method finds nothing here to point at."
        )
    shown = THREE if controls.view == "three" else (controls.method,)
    hides = max(float(part.evidence().hidden_share[0]) for part in rows)
    if "grad_cam" in shown and controls.view != "evidence" and hides > HIDDEN_SHARE:
        said.append(
            f"Grad-CAM hides {100 * hides:.0f} % of the positive evidence under negative gradients: see Eq. 4, or use "
            "GAM."
        )
    return said


def guesses(trace: Trace, most: int = 5) -> list[Guess]:
    """The best classes, and the explained one where it is not among them."""
    best = trace.top(most)[0]
    target = int(trace.targets[0])
    if trace.output is None or any(guess.index == target for guess in best):
        return best
    output = trace.output.detach().float()
    chance = scores.probabilities(output, multi_label=trace.multi_label)
    name = trace.explain("gam", 1).names[0]
    return [*best, Guess(target, name, float(output[0, target]), float(chance[0, target]))]


def draw(result: Explanation, controls: Controls) -> Image.Image:
    """Row 0 over its picture, with the box and the outline at the threshold where they are asked for."""
    full = result.full(0).cpu().numpy()
    boxes = result.boxes(controls.threshold).tolist() if "box" in controls.outline else []
    mask = full >= controls.threshold if "mask" in controls.outline else None
    return render.overlay(
        result.image(0),
        full,
        opacity=controls.opacity,
        cmap=controls.cmap,
        boxes=[box for box in boxes if any(box)],
        mask=mask,
    )


def picked(source: Trace | PairTrace, controls: Controls) -> list[Explanation]:
    """One class's explanation, or x's and y's: the mean of the last n blocks, or one block's own map in its place."""
    method, blocks = controls.method, source.blocks
    single = controls.block != MEAN and methods.find(method).kind == "block"
    if single and controls.block not in blocks:
        raise GamlensError(f"There is no block {controls.block!r} in this model; there are {', '.join(blocks)}.")
    n = len(blocks) - blocks.index(controls.block) if single else min(controls.n, len(blocks))
    if isinstance(source, Trace):
        found = [source.explain(method, n)]
    else:
        both = source.explain(method, n, score=controls.score)
        found = [both.x, both.y]
    return [replace(result, maps=result.blocks[controls.block]) for result in found] if single else found


def _shot(result: Explanation, photo: Photo, controls: Controls, method: str, what: str, *, side: Side = "") -> Shot:
    small = replace(
        result, pictures=(Picture(photo.name, pixels=photo.shown),), frames=(photo.on_screen(result.frames[0]),)
    )
    title = METHODS[method].title
    blocks = controls.block if controls.block != MEAN else f"last {len(result.blocks)} blocks"
    if len(result.blocks) == 1 and controls.block == MEAN:
        blocks = "last block"
    alt = f"{photo.name}: {title}, {what}, {peak(small.full(0).cpu().numpy())}"
    return Shot(draw(small, controls), title, alt, blocks, side)


def peak(full: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    """Where a map is strongest, in words."""
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
