from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.render import LinkMark, linked
from gamlens.render.raster.link_layout import LINK_COLOURS, LinkLayout, lay_out_links, link_colours, spread

LEFT, RIGHT = Image.new("RGB", (320, 240), (200, 100, 50)), Image.new("RGB", (160, 240), (40, 90, 160))
DARK, WHITE = (18, 18, 22), (255, 255, 255)
# From linear RGB to what is seen without cones for long, medium and short waves (Machado et al., 2009).
SIGHTS = {
    "all": np.eye(3),
    "long": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "medium": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "short": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def layout(links: list[LinkMark], left: Image.Image = LEFT, right: Image.Image = RIGHT, **options: int) -> LinkLayout:
    return lay_out_links(left, right, links, most_height=options.get("most_height", 480), labels=True)


def at(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    return tuple(np.asarray(picture)[int(y), int(x)].tolist())


def far(count: int, sign: int = 1) -> list[LinkMark]:
    """Links that all begin and end at the same height, so that labels have to make room."""
    return [LinkMark((20.0 + number, 60), (30, 60), sign / (1 + number), f"{number} %") for number in range(count)]


def test_without_links_both_photos_stand_unchanged_on_white() -> None:
    shown = linked(LEFT, RIGHT, [], most_height=240)
    # scale 240 / 480: a margin of 6 around, and a gap of 26 between 320 and 160 pixels
    assert shown.size == (6 + 320 + 26 + 160 + 6, 6 + 240 + 6)
    pixels = np.asarray(shown)
    assert (pixels[6:246, 6:326] == (200, 100, 50)).all()
    assert (pixels[6:246, 352:512] == (40, 90, 160)).all()
    pixels = pixels.copy()
    pixels[6:246, 6:326] = pixels[6:246, 352:512] = 255
    assert (pixels == 255).all()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((320, 240), (160, 240), [(640, 480), (320, 480)]),  # twice their size
        ((4000, 3000), (750, 1000), [(640, 480), (360, 480)]),
        ((500, 400), (100, 150), [(375, 300), (200, 300)]),  # the lower one twice its size decides
        ((320, 240), (64, 64), [(320, 240), (128, 128)]),  # but not if it is very low
        ((1, 1), (320, 240), [(2, 2), (320, 240)]),
        ((1, 500), (500, 1), [(1, 240), (1000, 2)]),
        ((4000, 400), (480, 480), [(1440, 144), (480, 480)]),  # very wide: at most 3 x 480
    ],
)
def test_photos_get_the_same_height_within_reason(
    left: tuple[int, int], right: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    place = layout([], Image.new("RGB", left), Image.new("RGB", right))
    assert [photo.size for photo in place.photos] == expected
    for photo, (x, y) in zip(place.photos, place.corners, strict=True):
        assert abs(2 * y + photo.height - place.size[1]) <= 1
        assert x >= 0
        assert x + photo.width <= place.size[0]
    links = [LinkMark((0.5, 0.5), (0.5, 0.5), 0.7, "7 %", (0, 0, 1, 1), (0, 0, 1, 1))]
    assert linked(Image.new("RGB", left), Image.new("RGB", right), links).height >= place.size[1]


def test_a_link_runs_from_its_start_through_its_label_to_its_end() -> None:
    link = LinkMark((100, 60), (80, 180), 1.0, "30 %")
    (placed,) = layout([link]).links  # twice the size, margin 12
    right = layout([link]).corners[1][0]
    assert placed.curve[0] == (12 + 200, 12 + 120)
    assert placed.curve[-1] == (right + 160, 12 + 360)
    assert placed.label_box is not None
    x0, y0, x1, y1 = placed.label_box
    assert (y0 + y1) / 2 == 12 + 240
    assert (x0 + x1) / 2 == (12 + 640 + right) / 2
    assert (x0, 252) in placed.curve
    assert (x1, 252) in placed.curve
    xs = [x for x, _ in placed.curve]
    assert xs == sorted(xs)


def test_a_strong_link_is_its_colour_between_dark_edges() -> None:
    shown = linked(LEFT, RIGHT, [LinkMark((100, 120), (80, 120), 1.0)])
    y = 12 + 240  # 7.5 pixels wide, 1.75 dark ones on each side
    for x in (212, 400, 700, 850):  # the dot, on the left photo, between, on the right photo
        assert at(shown, x, y) == LINK_COLOURS[0]
    column = [at(shown, 400, row) for row in range(y - 7, y + 8)]
    assert DARK in column[:7]
    assert DARK in column[8:]
    assert column[0] == column[-1] == (200, 100, 50)
    assert at(shown, 700, y - 7) == WHITE


def test_a_weak_link_is_thin_and_lets_the_photo_through() -> None:
    weak, strong = (linked(LEFT, RIGHT, [LinkMark((100, 120), (80, 120), weight)]) for weight in (1e-9, 1.0))
    height = [(np.asarray(shown)[:, 400] != (200, 100, 50)).any(axis=1).sum() - 24 for shown in (weak, strong)]
    assert 5 <= height[0] <= 8
    assert 10 <= height[1] <= 13
    mixed = [round(0.7 * ink + 0.3 * photo) for ink, photo in zip(LINK_COLOURS[0], (200, 100, 50), strict=True)]
    assert np.abs(np.subtract(at(weak, 400, 252), mixed)).max() <= 1


def test_a_negative_link_is_dashed_cool_and_ends_in_rings() -> None:
    shown = linked(LEFT, RIGHT, [LinkMark((100, 120), (80, 120), -1.0)])
    along = {at(shown, x, 252) for x in range(230, 640)}
    assert {LINK_COLOURS[-1], DARK} <= along
    assert (200, 100, 50) not in along
    assert at(shown, 212, 252) == DARK
    assert at(shown, 212, 252 - 5) == LINK_COLOURS[-1]


def test_boxes_are_thin_frames() -> None:
    link = LinkMark((100, 60), (80, 60), 1.0, "", (60, 20, 140, 100), (40, 20, 120, 100))
    shown = linked(LEFT, RIGHT, [link])
    left, top = 12 + 120, 12 + 40
    assert at(shown, left, top + 20) == LINK_COLOURS[0]
    assert at(shown, left - 3, top + 20) != (200, 100, 50)
    assert at(shown, left - 5, top + 20) == at(shown, left + 5, top + 20) == (200, 100, 50)
    assert len(layout([link]).links[0].boxes) == 2


def test_places_outside_are_drawn_at_the_edge() -> None:
    link = LinkMark((-50, 9999), (9999, -3), 0.5, "", (-9, -9, 9999, 9999), (9000, 0, 9999, 50))
    place = layout([link])
    left, top, right = 12, 12, place.corners[1][0]
    (placed,) = place.links
    assert (placed.curve[0], placed.curve[-1]) == ((left, top + 480), (right + 320, top))
    assert placed.boxes == ((left, top, left + 640, top + 480), (right + 320, top, right + 320, top + 100))
    assert linked(LEFT, RIGHT, [link]).size == place.size


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_labels_never_overlap_and_stay_between_the_photos(count: int) -> None:
    place = layout(far(count), most_height=240)
    boxes = [link.label_box for link in place.links if link.label_box]
    assert len(boxes) == count
    assert (place.size[1] == 252) == (count <= 8)
    for x0, y0, x1, y1 in boxes:
        assert place.corners[0][0] + place.photos[0].width < x0 < x1 < place.corners[1][0]
        assert 0 <= y0 < y1 <= place.size[1]
    for one, other in combinations(boxes, 2):
        assert one[3] <= other[1] or other[3] <= one[1]


def test_labels_are_written_in_an_ink_that_contrasts() -> None:
    place = layout(far(8))
    shown = linked(LEFT, RIGHT, far(8))
    for link in place.links:
        assert link.label_box is not None
        x0, y0, x1, y1 = map(round, link.label_box)
        inside = np.asarray(shown)[y0 + 4 : y1 - 4, x0 + 5 : x1 - 5].reshape(-1, 3).astype(int)
        assert (inside == link.colour).all(axis=1).mean() > 0.4
        assert np.abs(inside - link.colour).sum(axis=1).max() > 240


def test_without_labels_the_gap_is_narrow_and_curves_go_straight_across() -> None:
    bare = lay_out_links(LEFT, RIGHT, far(3), most_height=240, labels=False)
    assert [link.label_box for link in bare.links] == [None] * 3
    assert bare.size[0] == 6 + 320 + 52 + 160 + 6
    assert layout(far(3), most_height=240).size[0] > bare.size[0]


def test_a_long_label_is_cut_and_odd_letters_are_respelled() -> None:
    long, odd = layout([LinkMark((1, 1), (1, 1), 1.0, "so " * 50), LinkMark((1, 1), (1, 1), 1.0, "−3\n%")]).links
    assert long.label.endswith("…")
    assert odd.label == "-3 %"


def test_colours_are_distinct_and_warm_or_cool() -> None:
    mixed = far(5) + far(3, -1)
    assert len(set(link_colours(mixed))) == 8
    assert link_colours(far(9))[-1] == LINK_COLOURS[0]
    (warm,), (cool,) = link_colours(far(1)), link_colours(far(1, -1))
    assert warm[0] > warm[2]
    assert cool[2] > cool[0]


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_stay_apart_for_the_colour_blind(sight: str) -> None:
    seen = [lab(colour, SIGHTS[sight]) for colour in LINK_COLOURS]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 27


def lab(colour: tuple[int, int, int], sight: np.ndarray) -> np.ndarray:
    """Convert sRGB to CIE L*a*b*, as seen by somebody."""
    values = np.array(colour) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(sight @ linear, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], []),
        ([5.0], [5]),
        ([-5.0], [0]),
        ([50.0, 20.0], [50, 20]),  # far enough apart
        ([50.0, 50.0], [45, 55]),
        ([50.0, 52.0, 48.0], [50, 60, 40]),
        ([1.0, 0.0], [10, 0]),
        ([100.0, 99.0, 10.0], [100, 90, 10]),
    ],
)
def test_spread_moves_numbers_apart_by_as_little_as_possible(wanted: list[float], expected: list[float]) -> None:
    assert spread(wanted, 10, (0, 100)) == expected


def test_strong_links_lie_above_weak_ones_in_whatever_order() -> None:
    weak, strong = LinkMark((20, 120), (80, 120), 0.1), LinkMark((100, 120), (80, 120), 1.0)
    for links in ([weak, strong], [strong, weak]):
        colour = link_colours(links)[links.index(strong)]
        assert at(linked(LEFT, RIGHT, links), 500, 252) == colour


def test_the_photos_are_not_modified() -> None:
    photo = np.full((240, 320, 3), 7, np.uint8)
    linked(photo, photo, far(2), most_height=240)
    assert (photo == 7).all()


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.5])
def test_a_weight_outside_of_one_is_an_error(weight: float) -> None:
    with pytest.raises(GamlensError, match=r"weight of a link must lie in \[-1, 1\]; found"):
        LinkMark((0, 0), (0, 0), weight)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(GamlensError, match="end of a link must be two finite numbers"):
        LinkMark((0, 0), (0, float("nan")), 1)
    with pytest.raises(GamlensError, match="x0 < x1"):
        LinkMark((0, 0), (0, 0), 1, "", (5, 0, 5, 9))
    with pytest.raises(GamlensError, match="most_height must be at least 1"):
        linked(LEFT, RIGHT, [], most_height=0)
