"""The links between the photos of a pair: which place of the one matches which place of the other, drawn as lines."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from PIL import Image

from gamlens.figures import scaled_frame
from gamlens.inputs.images import Picture
from gamlens.pairs.interactions import Interactions, Link
from gamlens.pairs.pair_trace import PairTrace
from gamlens.render import LinkMark
from gamlens.render.raster.link_layout import link_colours
from gamlens.studio.controls import Controls
from gamlens.studio.uploads import Photo

BASELINE_WORDS = {
    "zeros": "activations of zero", "blank": "a blank image", "average": "what both photos have on average",
}  # fmt: skip


class LinkRow(NamedTuple):
    """A line of the list of links: its colour, whether it lowers the score, what it adds, and where it leads."""

    colour: str
    lowers: bool
    share: str
    places: str


class DrawnLinks(NamedTuple):
    """Both photos with lines between them, the same links as a list, how the score is made up, and the numbers."""

    image: Image.Image
    rows: tuple[LinkRow, ...]
    text: str
    found: Interactions


def draw_links(pair: PairTrace, photos: Sequence[Photo], controls: Controls) -> DrawnLinks:
    """Draw the strongest links of a pair over the copies of its photos that are small enough for the screen."""
    found = pair.interactions(score=controls.score)
    x, y = (Picture(photo.name, pixels=photo.shown) for photo in photos)
    frames = [scaled_frame(frame, photo.shown) for frame, photo in zip(found.frames, photos, strict=True)]
    small = replace(found, pictures=(x, y), frames=(frames[0], frames[1]))
    links = small.links(controls.links)
    colours = link_colours([LinkMark(start=link.x, end=link.y, weight=math.copysign(1, link.value)) for link in links])
    rows = [
        LinkRow(f"rgb({','.join(map(str, colour))})", link.value < 0, _share(link), _places(link, photos))
        for colour, link in zip(colours, links, strict=True)
    ]
    return DrawnLinks(small.overlay(controls.links), tuple(rows), _made_up_of(found, links), found)


def _share(link: Link) -> str:
    return f"{link.value:+.2g} ({100 * link.share:.0f} %)".replace("-", "−")


def _places(link: Link, photos: Sequence[Photo]) -> str:
    x, y = (
        where(point[0] / photo.shown.width, point[1] / photo.shown.height).split(" the ")[1]
        for point, photo in zip((link.x, link.y), photos, strict=True)
    )
    return f"{x} → {y}"


def _made_up_of(found: Interactions, links: Sequence[Link]) -> str:
    """How the score is made up, in words: the sum over pairs of places, what is left, and how exact this is."""
    shape = found.matrix.shape
    places = f"{shape[0] * shape[1]} × {shape[2] * shape[3]} pairs of places"
    shown = sum(link.value for link in links)
    count = f"the {len(links)} strongest links" if len(links) > 1 else "the strongest link"
    drawn = f"Shown: {count}, {shown:.3g} together."
    if found.exact:
        return f"The score {found.score:.3g} is exactly the sum over {places}; nothing remains. {drawn}"
    aside = f", class and register tokens add {found.aside:.3g}" if found.aside else ""
    baseline = BASELINE_WORDS.get(found.baseline, found.baseline)
    return (
        f"Of the score {found.score:.3g}, {places} add up to {float(found.matrix.sum()):.3g}{aside}, and "
        f"{found.remainder:.3g} remains, which belongs to no pair of places (compared with {baseline}). Not exact: "
        f"computed in {found.steps} steps, which miss {abs(found.gap):.1g}. {drawn}"
    ).replace("-", "−")


def where(x: float, y: float) -> str:
    """Describe a position, given as fractions of width and height, in words.

    >>> where(0.1, 0.9), where(0.5, 0.9), where(0.5, 0.5)
    ('at the lower left', 'at the bottom', 'in the middle')
    """
    row, column = min(int(3 * y), 2), min(int(3 * x), 2)
    if column == 1:
        return ("at the top", "in the middle", "at the bottom")[row]
    return " ".join(filter(None, ("at the", ("upper", "", "lower")[row], ("left", "", "right")[column])))
