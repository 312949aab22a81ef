"""Draw two photos side by side, with curves between places that belong together."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from gamlens.errors import GamlensError
from gamlens.render.chart_layout import Point
from gamlens.render.elements import BoxCorners
from gamlens.render.raster.chart_image import OVERSAMPLING, dashes
from gamlens.render.raster.lettering import font
from gamlens.render.raster.link_layout import DESIGN_HEIGHT, LinkLayout, LinkMark, PlacedLink, lay_out_links
from gamlens.render.raster.overlay import OUTLINE_DARK, OUTLINE_LIGHT
from gamlens.render.raster.rgb import ImageLike, rgb

# Pixels at scale 1: the width of a curve of weight 0 and what weight 1 adds, dark lines beside it, the width of boxes.
THIN, THICKER, DARK_EDGE, BOX_LINE = 2.5, 5.0, 1.75, 2.0
DOT_PLUS = 3.5  # how much the radius of a dot exceeds half the width of its curve
DASH = (3.5, 2.0)  # a dash and a gap of curves of negative weight, in widths of the curve
FAINTEST = 0.7  # the opacity of a curve of weight 0


def linked(
    left: ImageLike,
    right: ImageLike,
    links: Sequence[LinkMark],
    *,
    most_height: int = DESIGN_HEIGHT,
    labels: bool = True,
) -> Image.Image:
    """Draw two photos side by side on white, with a curve for each link.

    The photos get the same height. A photo that would have to be enlarged to more than twice its size, or that would be
    wider than three times `most_height`, is lower. Each link has a colour of its own (there are eight). The stronger a
    link, the wider and the less transparent is its curve, and stronger ones lie above weaker ones. A positive weight is
    a solid line between discs, a negative one a dashed line between rings. Places outside a photo are drawn at its
    edge.

    Args:
        left, right: PIL images or uint8 arrays (H, W) or (H, W, 3).
        links: The links, from places of the left photo to places of the right one.
        most_height: The largest height of the photos, in pixels.
        labels: Whether each link's label is written on its curve, between the photos, where labels never overlap.
            The picture becomes higher than the photos if there are too many of them.

    Returns:
        An RGB picture.
    """
    if most_height < 1:
        raise GamlensError(f"most_height must be at least 1 pixel; found {most_height}: try {DESIGN_HEIGHT}.")
    place = lay_out_links(rgb(left), rgb(right), links, most_height=most_height, labels=labels)
    sheet = Image.new("RGB", place.size, "white")
    for photo, corner in zip(place.photos, place.corners, strict=True):
        sheet.paste(photo, corner)
    upwards = sorted(place.links, key=lambda link: abs(link.weight))
    for link in upwards:
        _draw_curve(sheet, link, place.scale)
    for link in upwards:
        if link.label_box:
            _draw_label(sheet, link, link.label_box, place)
    return sheet


class Stencil:
    """What is drawn in one colour on a part of a sheet: black and white at a higher resolution, then made smaller.

    Args:
        window: The part of the sheet, (x0, y0, x1, y1) in pixels.
    """

    def __init__(self, window: tuple[int, int, int, int]) -> None:
        self.corner = window[:2]
        size = (window[2] - window[0]) * OVERSAMPLING, (window[3] - window[1]) * OVERSAMPLING
        self.large = Image.new("L", size)
        self.pen = ImageDraw.Draw(self.large)

    def line(self, points: Sequence[Point], width: float) -> None:
        self.pen.line(self._inside(points), 255, max(1, round(width * OVERSAMPLING)), joint="curve")

    def disc(self, centre: Point, radius: float, *, erase: bool = False) -> None:
        x, y = centre
        self.pen.ellipse(self._corners((x - radius, y - radius, x + radius, y + radius)), 0 if erase else 255)

    def frame(self, box: BoxCorners, width: float) -> None:
        """Draw the outline of a box, with the middle of the line on its sides."""
        x0, y0, x1, y1 = box
        half = width / 2
        corners = self._corners((x0 - half, y0 - half, x1 + half, y1 + half))
        self.pen.rectangle(corners, outline=255, width=max(1, round(width * OVERSAMPLING)))

    def rounded(self, box: BoxCorners, radius: float) -> None:
        self.pen.rounded_rectangle(self._corners(box), radius * OVERSAMPLING, 255)

    def mask(self) -> Image.Image:
        """Return how much of each pixel of the window is drawn on, from 0 to 255."""
        return self.large.reduce(OVERSAMPLING)

    def _inside(self, points: Sequence[Point]) -> list[Point]:
        left, top = self.corner
        return [((x - left) * OVERSAMPLING, (y - top) * OVERSAMPLING) for x, y in points]

    def _corners(self, box: BoxCorners) -> tuple[float, float, float, float]:
        """Return Pillow's corners of a box, of which the second one is inside."""
        (x0, y0), (x1, y1) = self._inside((box[:2], box[2:]))
        return x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)


def _draw_curve(sheet: Image.Image, link: PlacedLink, scale: float) -> None:
    """Draw a link's curve, boxes and end points: in dark and wide, and then in its colour."""
    width, edge, thin = (THIN + THICKER * abs(link.weight)) * scale, DARK_EDGE * scale, max(1.0, BOX_LINE * scale)
    radius, ends = width / 2 + DOT_PLUS * scale, (link.curve[0], link.curve[-1])
    corners = [*link.curve, *(box[:2] for box in link.boxes), *(box[2:] for box in link.boxes)]
    window = _around(corners, radius + 2 * edge + 2, sheet.size)
    dark, light = Stencil(window), Stencil(window)
    for box in link.boxes:
        dark.frame(box, thin + 2 * edge)
        light.frame(box, thin)
    dark.line(link.curve, width + 2 * edge)
    negative = link.weight < 0
    for piece in dashes(link.curve, [length * width for length in DASH] if negative else ()):
        light.line(piece, width)
    for end in ends:
        dark.disc(end, radius + edge)
        light.disc(end, radius)
        if negative:
            light.disc(end, radius / 2, erase=True)
    opacity = FAINTEST + (1 - FAINTEST) * min(1.0, abs(link.weight))
    below = sheet.crop(window)
    above = below.copy()
    above.paste(OUTLINE_DARK, mask=dark.mask())
    above.paste(link.colour, mask=light.mask())
    sheet.paste(Image.blend(below, above, opacity), window)


def _draw_label(sheet: Image.Image, link: PlacedLink, box: BoxCorners, place: LinkLayout) -> None:
    """Write a link's label on a plate of its colour with a dark edge."""
    x0, y0, x1, y1 = box
    edge = max(1.0, DARK_EDGE * place.scale)
    window, round_by = _around([(x0, y0), (x1, y1)], 2, sheet.size), (y1 - y0) / 3
    for ink, inset in ((OUTLINE_DARK, 0.0), (link.colour, edge)):
        plate = Stencil(window)
        plate.rounded((x0 + inset, y0 + inset, x1 - inset, y1 - inset), round_by - inset)
        sheet.paste(ink, window, plate.mask())
    red, green, blue = link.colour
    ink = OUTLINE_DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else OUTLINE_LIGHT
    ImageDraw.Draw(sheet).text(((x0 + x1) / 2, (y0 + y1) / 2), link.label, ink, font(place.text), "mm")


def _around(points: Sequence[Sequence[float]], margin: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the smallest rectangle of whole pixels on the sheet that holds all points and `margin` around them."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    return (
        max(0, int(min(xs) - margin)),
        max(0, int(min(ys) - margin)),
        min(size[0], int(max(xs) + margin) + 1),
        min(size[1], int(max(ys) + margin) + 1),
    )
