"""Maps drawn over photos, with or without a sign, and the colour bar of signed ones."""

from typing import NamedTuple

from PIL import Image

from gamlens import render
from gamlens.explanation import Explanation
from gamlens.studio.controls import Controls

SIGNED_CMAP = "diverging"


class SignWords(NamedTuple):
    """What positive and what negative values of a signed map mean, such as "raises it" and "lowers it"."""

    positive: str
    negative: str


class SignBar(NamedTuple):
    """The colour bar of a signed map: its colour map, the texts at its ends and in its middle, and one below."""

    cmap: str
    low: str
    middle: str
    high: str
    caption: str


def strongest(result: Explanation) -> float:
    """The largest absolute value of the first map: the value that has the strongest colour."""
    return float(result.maps[0].abs().max())


def map_threshold(result: Explanation, controls: Controls) -> float:
    """The map value at which outlines are drawn; for a signed map the threshold is a share of its strongest value."""
    return controls.threshold * (strongest(result) or 1.0) if result.signed else controls.threshold


def draw_map(result: Explanation, controls: Controls) -> Image.Image:
    """Draw the first map over its picture, and the box and the outline at the threshold if they are switched on.

    What lowers a score often lies where other channels raise it, so that a signed map stays far below 1: its strongest
    value gets the strongest colour, and `sign_bar` says which value that is.
    """
    full, cmap, least = result.full(0).cpu().numpy(), controls.cmap, map_threshold(result, controls)
    boxes = result.boxes(least).tolist() if "box" in controls.outline else []
    boxes = [box for box in boxes if any(box)]
    mask = full >= least if "mask" in controls.outline else None
    if result.signed:
        full, cmap = (full / (strongest(result) or 1.0)).clip(-1, 1) / 2 + 0.5, signed_cmap(controls)
    return render.overlay(result.image(0), full, opacity=controls.opacity, cmap=cmap, boxes=boxes, mask=mask)


def signed_cmap(controls: Controls) -> str:
    """The chosen colour map if it has two colours, else one that has."""
    return controls.cmap if controls.cmap in render.SIGNED_COLORMAPS else SIGNED_CMAP


def sign_bar(result: Explanation, controls: Controls, words: SignWords) -> SignBar:
    """The colour bar of the first map, which is signed.

    The map of one block has raw values, in units of the score, at the ends of its bar. A mean over blocks has no such
    unit: its bar has map values, and the caption says what a map value of 1 stands for in each block.
    """
    peak = strongest(result)
    scales = {name: float(scale[0]) for name, scale in result.scales.items() if float(scale[0]) < float("inf")}
    end, caption = peak, ""
    if controls.block in scales:
        scales = {controls.block: scales[controls.block]}
    if len(scales) == 1:
        end, caption = peak * next(iter(scales.values())), "raw values, in units of the score"
    elif scales and len(scales) <= 3:
        parts = ", ".join(f"{scale:.2g} at {name}" for name, scale in scales.items())
        caption = f"1 stands for {parts}, in units of the score"
    elif scales:
        low, high = min(scales.values()), max(scales.values())
        caption = f"1 stands for {low:.2g} to {high:.2g}, in units of the score, by layer"
    return SignBar(signed_cmap(controls), f"−{end:.2g} {words.negative}", "0", f"+{end:.2g} {words.positive}", caption)


def with_sign_bar(image: Image.Image, bar: SignBar) -> Image.Image:
    """The picture of a signed map above its colour bar."""
    return render.with_colour_bar(
        image, cmap=bar.cmap, low=bar.low, middle=bar.middle, high=bar.high, caption=bar.caption
    )
