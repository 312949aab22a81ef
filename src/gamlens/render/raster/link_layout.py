"""Compute where the photos, curves and labels of a picture of links go."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render.chart_layout import Point
from gamlens.render.elements import RGB, BoxCorners
from gamlens.render.raster.lettering import Font, ellipsized, font, plain
from gamlens.render.raster.rgb import fitted

# Colours that differ by at least 27 in CIE L*a*b*, with normal sight and without any one of the three kinds of cones.
# Links of positive weight take them from the front (warm), links of negative weight from the back (cool).
LINK_COLOURS: tuple[RGB, ...] = (
    (255, 137, 0), (204, 0, 91), (217, 235, 121), (159, 101, 34), (234, 180, 166), (15, 154, 171), (164, 157, 255),
    (74, 72, 225),
)  # fmt: skip
MOST_ENLARGED = 2  # times its own size
LEAST_HEIGHT = 240  # a photo that is lower than this, enlarged, does not shrink the other one any further
WIDEST_PHOTO = 3  # times the largest height
# Pixels in a picture that is DESIGN_HEIGHT high; all of them grow and shrink with it.
DESIGN_HEIGHT, SHEET_MARGIN, LEAD, LABEL_TEXT, LABEL_PAD = 480, 12, 52, 22, 7
LABEL_LEAST, LABEL_WIDEST = 13, 13  # the smallest size of labels in pixels; their largest width in font sizes
_WEIGHT_SLACK = 1e-6  # how far a weight may lie outside [-1, 1] by rounding
_CURVE_STEPS = 40  # points of half a curve


@dataclass(frozen=True)
class LinkMark:
    """A link between a place of one photo and a place of another.

    Attributes:
        start, end: The places (x, y), in pixels of the left and the right photo.
        weight: How strong the link is, from -1 to 1.
        label: A short text, such as its share of the score; "" for none.
        start_box, end_box: The regions that are linked, (x0, y0, x1, y1) in pixels of each photo, or None.
    """

    start: Point
    end: Point
    weight: float
    label: str = ""
    start_box: BoxCorners | None = None
    end_box: BoxCorners | None = None

    def __post_init__(self) -> None:
        if not abs(self.weight) <= 1 + _WEIGHT_SLACK:
            raise GamlensError(
                f"The weight of a link must lie in [-1, 1]; found {self.weight!r}: divide all weights by the largest."
            )
        for name, point in (("start", self.start), ("end", self.end)):
            if len(point) != 2 or not all(map(math.isfinite, point)):
                raise GamlensError(f"The {name} of a link must be two finite numbers (x, y); found {point!r}.")
        for box in (self.start_box, self.end_box):
            if box is not None and not (len(box) == 4 and all(map(math.isfinite, box)) and _ordered(box)):
                raise GamlensError(
                    f"A box of a link must be four finite numbers (x0, y0, x1, y1) with x0 < x1 and y0 < y1; found "
                    f"{box!r}: check the order of its numbers."
                )


@dataclass(frozen=True)
class PlacedLink:
    """A link on the sheet, in pixels of the sheet.

    Attributes:
        curve: Points of its curve, from `start` to `end`; it goes through the middle of the label.
        weight: Its weight.
        colour: Its colour.
        boxes: Its boxes.
        label: The text of its label, "" for none.
        label_box: The rectangle that the label fills; None if there is none.
    """

    curve: tuple[Point, ...]
    weight: float
    colour: RGB
    boxes: tuple[BoxCorners, ...]
    label: str
    label_box: BoxCorners | None


@dataclass(frozen=True)
class LinkLayout:
    """The geometry of a picture of links.

    Attributes:
        size: Width and height of the sheet.
        photos: Both photos, resized.
        corners: The upper left corner of each photo.
        links: The links, in the order in which they were given.
        scale: The factor for widths of lines.
        text: The font size of labels.
    """

    size: tuple[int, int]
    photos: tuple[Image.Image, Image.Image]
    corners: tuple[tuple[int, int], tuple[int, int]]
    links: tuple[PlacedLink, ...]
    scale: float
    text: float


def lay_out_links(
    left: Image.Image, right: Image.Image, links: Sequence[LinkMark], *, most_height: int, labels: bool
) -> LinkLayout:
    """Place two photos side by side, with labels one below another between them, and a curve through each label."""
    photos = _same_height(left, right, most_height)
    height = max(photo.height for photo in photos)
    scale = max(height, LEAST_HEIGHT) / DESIGN_HEIGHT
    margin, lead, pad = (round(length * scale) for length in (SHEET_MARGIN, LEAD, LABEL_PAD))
    size = max(LABEL_LEAST, LABEL_TEXT * scale)
    face = font(size)
    texts = [_one_line(link.label, face, LABEL_WIDEST * size) if labels else "" for link in links]
    widths = [face.getlength(text) + 2 * pad if text else 0.0 for text in texts]
    plate = round(size + pad)
    step = plate + max(2, pad // 2)
    gap = math.ceil(max(widths, default=0)) + (2 * lead if links else lead)
    tall = max(height, sum(map(bool, texts)) * step) + 2 * margin
    lefts = margin, margin + photos[0].width + gap
    corners = (lefts[0], (tall - photos[0].height) // 2), (lefts[1], (tall - photos[1].height) // 2)

    start, end = (_Places(*side) for side in zip((left.size, right.size), photos, corners, strict=True))
    ends = [(start.point(link.start), end.point(link.end)) for link in links]
    named = [number for number, text in enumerate(texts) if text]
    middles = [(ends[number][0][1] + ends[number][1][1]) / 2 for number in named]
    heights = dict(zip(named, spread(middles, step, (margin + step / 2, tall - margin - step / 2)), strict=True))
    placed = []
    for number, (link, colour) in enumerate(zip(links, link_colours(links), strict=True)):
        curve, label_box = _bend(*ends[number]), None
        if number in heights:
            x, y, half = lefts[1] - gap / 2, heights[number], widths[number] / 2
            label_box = x - half, y - plate / 2, x + half, y + plate / 2
            curve = _bend(ends[number][0], (x - half, y)) + _bend((x + half, y), ends[number][1])
        boxes = start.boxes(link.start_box) + end.boxes(link.end_box)
        placed.append(PlacedLink(curve, link.weight, colour, boxes, texts[number], label_box))
    width = lefts[1] + photos[1].width + margin
    return LinkLayout((width, tall), photos, corners, tuple(placed), scale, size)


def link_colours(links: Sequence[LinkMark]) -> list[RGB]:
    """Choose a colour for each link; up to as many links as there are LINK_COLOURS all have different ones."""
    found, count = [], {True: 0, False: 0}
    for link in links:
        cool = link.weight < 0
        number = count[cool] % len(LINK_COLOURS)
        found.append(LINK_COLOURS[-1 - number if cool else number])
        count[cool] += 1
    return found


def spread(wanted: Sequence[float], step: float, limits: tuple[float, float]) -> list[float]:
    """Move numbers as little as possible so that any two differ by at least `step` and all lie within `limits`.

    They keep their order. With i the rank of a number, number - i * step must not decrease: the nearest such sequence
    in the sense of least squares is found by averaging neighbours that are out of order (isotonic regression).
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    pools: list[tuple[float, int]] = []  # mean and how many
    for rank, index in enumerate(order):
        mean, many = wanted[index] - rank * step, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, many = (before * more + mean * many) / (more + many), more + many
        pools.append((mean, many))
    level = [mean for mean, many in pools for _ in range(many)]
    highest = limits[1] - (len(wanted) - 1) * step
    found = [0.0] * len(wanted)
    for rank, (index, value) in enumerate(zip(order, level, strict=True)):
        found[index] = max(limits[0], min(value, highest)) + rank * step
    return found


def _same_height(left: Image.Image, right: Image.Image, most_height: int) -> tuple[Image.Image, Image.Image]:
    """Resize two photos to the same height, as far as none is enlarged too much and none becomes too wide."""
    height = min(most_height, max(MOST_ENLARGED * min(left.height, right.height), LEAST_HEIGHT))
    first, second = (
        fitted(
            photo,
            min(WIDEST_PHOTO * most_height, MOST_ENLARGED * photo.width),
            min(height, MOST_ENLARGED * photo.height),
        )
        for photo in (left, right)
    )
    return first, second


class _Places(NamedTuple):
    """Where the pixels of a photo are on the sheet."""

    original: tuple[int, int]  # width and height of the photo
    photo: Image.Image  # as it is on the sheet
    corner: tuple[int, int]

    def point(self, point: Point) -> Point:
        """Carry a point to the sheet; one outside the photo goes to its edge."""
        x, y = (
            start + max(0.0, min(value / most, 1.0)) * size
            for start, value, most, size in zip(self.corner, point, self.original, self.photo.size, strict=True)
        )
        return x, y

    def boxes(self, box: BoxCorners | None) -> tuple[BoxCorners, ...]:
        return () if box is None else ((*self.point(box[:2]), *self.point(box[2:])),)


def _one_line(label: str, face: Font, width: float) -> str:
    return ellipsized(" ".join(plain(label).split()), face, width)


def _bend(start: Point, end: Point) -> tuple[Point, ...]:
    """Return points of a curve that leaves and arrives horizontally (a cubic Bezier curve, its controls halfway)."""
    t = np.linspace(0, 1, _CURVE_STEPS)
    across = 1.5 * t * (1 - t) + t**3
    x, y = start[0] + (end[0] - start[0]) * across, start[1] + (end[1] - start[1]) * (3 - 2 * t) * t**2
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def _ordered(box: BoxCorners) -> bool:
    return box[0] < box[2] and box[1] < box[3]
