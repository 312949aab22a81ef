"""The pointing game."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.metrics import METRICS, MetricInput, peak, pointing, pointing_mask


def spot(x, y, height=6, width=8):
    maps = torch.zeros(1, height, width)
    maps[0, y, x] = 1
    return maps


def box(*ends):
    return [torch.tensor([ends], dtype=torch.float32)]


def fill(x0, y0, x1, y1, height=6, width=8):
    mask = torch.zeros(1, height, width, dtype=torch.bool)
    mask[:, y0:y1, x0:x1] = True
    return mask


def test_the_peak_is_the_first_in_reading_order():
    maps = torch.tensor([[[0.0, 0.2, 0.9], [0.9, 0.9, 0.1]], [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]])
    assert peak(maps).tolist() == [[2, 0], [0, 0]]


@pytest.mark.parametrize(
    ("x", "y", "hit"),
    [(2, 1, True), (4, 3, True), (5, 3, False), (4, 4, False), (1, 1, False), (2, 0, False)],
)
def test_a_box_is_half_open(x, y, hit):
    assert pointing(spot(x, y), box(2, 1, 5, 4)).tolist() == [hit]
    assert pointing_mask(spot(x, y), fill(2, 1, 5, 4)).tolist() == [hit]


def test_a_pixel_is_in_a_box_with_its_centre():
    # the centre of pixel 2 is 2.5: in [2.5, 4) and [2.4, 4), not in [2.6, 4) nor in [0, 2.5)
    ends = [(2.5, 4, True), (2.4, 4, True), (2.6, 4, False), (0, 2.5, False), (0, 2.51, True)]
    assert [pointing(spot(2, 2), box(x0, 0, x1, 6)).item() for x0, x1, _ in ends] == [hit for *_, hit in ends]


@pytest.mark.parametrize(("tolerance", "hit"), [(0, False), (4.9, False), (5, True), (15, True)])
def test_tolerance_is_a_distance_in_pixels(tolerance, hit):
    # from (7, 5) to the last pixel (4, 1) of the box: 3 across, 4 down, 5 away
    assert pointing(spot(7, 5), box(0, 0, 5, 2), tolerance=tolerance).tolist() == [hit]
    assert pointing_mask(spot(7, 5), fill(0, 0, 5, 2), tolerance=tolerance).tolist() == [hit]


def test_any_of_several_boxes_will_do_and_one_without_area_never():
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 5.0, 5.0]])
    assert pointing(torch.cat([spot(4, 4), spot(1, 1)]), [boxes, boxes]).tolist() == [True, False]
    assert pointing(spot(3, 3), box(3, 3, 3, 3)).tolist() == [False]


def test_no_item():
    assert pointing(torch.empty(0, 3, 3), []).shape == (0,)
    assert pointing_mask(torch.empty(0, 3, 3), torch.empty(0, 3, 3, dtype=torch.bool)).shape == (0,)
    assert pointing(torch.empty(0, 3, 3), []).dtype == torch.bool


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.integers(0, 5), st.lists(st.integers(0, 6), min_size=4, max_size=4), st.floats(0, 6))
def test_equals_a_loop(x, y, ends, tolerance):
    x0, x1, y0, y1 = *sorted(ends[:2]), *(min(end, 5) for end in sorted(ends[2:]))
    x1, y1 = x1 + 1, y1 + 1
    away = min(math.hypot(x - u, y - v) ** 2 for u in range(x0, x1) for v in range(y0, y1))
    expected = [round(away) <= tolerance**2]
    assert pointing(spot(x, y), box(x0, y0, x1, y1), tolerance=tolerance).tolist() == expected
    assert pointing_mask(spot(x, y), fill(x0, y0, x1, y1), tolerance=tolerance).tolist() == expected


def test_void_pixels_take_no_part():
    """A maximum on void is passed over for the next one, and void is no part of the object."""
    maps = spot(1, 1) + 0.5 * spot(4, 4)
    assert pointing_mask(maps, fill(4, 4, 5, 5)).tolist() == [False]
    assert pointing_mask(maps, fill(4, 4, 5, 5), fill(0, 0, 3, 3)).tolist() == [True]
    assert pointing_mask(maps, fill(0, 0, 6, 4), fill(0, 0, 3, 3)).tolist() == [False]
    assert maps[0, 1, 1] == 1


def test_an_empty_mask_is_measured_as_nan():
    maps, masks = (
        torch.cat([spot(1, 1)] * 4),
        torch.cat([fill(0, 0, 2, 2), fill(0, 0, 0, 0), fill(0, 0, 2, 2), fill(3, 3, 5, 5)]),
    )
    void = torch.cat([fill(0, 0, 0, 0), fill(0, 0, 0, 0), fill(0, 0, 3, 3), fill(0, 0, 0, 0)])
    found = METRICS["pointing_mask"].measure(MetricInput(maps=maps, mask=masks, void=void))["pointing"]
    assert found.isnan().tolist() == [False, True, True, False]
    assert found[[0, 3]].tolist() == [1, 0]


def test_nothing_to_point_at_is_an_error():
    with pytest.raises(GamlensError, match="Item 1 has no ground-truth box"):
        pointing(torch.cat([spot(0, 0)] * 2), [*box(0, 0, 1, 1), torch.empty(0, 4)])
    with pytest.raises(GamlensError, match="Item 0 has an empty mask"):
        pointing_mask(spot(0, 0), fill(0, 0, 0, 0))


@pytest.mark.parametrize("tolerance", [-1, math.nan])
def test_a_tolerance_is_not_negative(tolerance):
    with pytest.raises(GamlensError, match="tolerance"):
        pointing(spot(0, 0), box(0, 0, 1, 1), tolerance=tolerance)
    with pytest.raises(GamlensError, match="tolerance"):
        pointing_mask(spot(0, 0), fill(0, 0, 1, 1), tolerance=tolerance)
