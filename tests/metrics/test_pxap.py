"""Average precision of a map's pixels in the ground-truth boxes."""

from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.metrics import METRICS, MetricInput, StoredColumns, pxap

NO_BOX = torch.empty(0, 4)


def boxes(*ends):
    return torch.tensor(ends, dtype=torch.float32)


def is_positive(truth, height, width):
    """Pixel by pixel: whether its centre lies in any box. (K,4) -> bool (H,W)"""
    inside = np.zeros((height, width), dtype=bool)
    for y in range(height):
        for x in range(width):
            inside[y, x] = any(x0 <= x + 0.5 < x1 and y0 <= y + 0.5 < y1 for x0, y0, x1, y1 in truth.tolist())
    return inside


def naive(plane, truth):
    """AP by its definition, counting all pixels anew at every distinct value, in float64: (H,W), (K,4) -> float."""
    plane = plane.numpy().astype(np.float64)
    inside = is_positive(truth, *plane.shape)
    if not inside.any():
        return np.nan
    total, recall_before = 0.0, 0.0
    for t in sorted(set(plane.flatten().tolist()), reverse=True):
        kept = plane >= t
        hits = np.float64((kept & inside).sum())
        recall = hits / inside.sum()
        total += (recall - recall_before) * hits / kept.sum()
        recall_before = recall
    return total


def random(seed, items, height, width, levels=None):
    """Maps, rounded to a few levels if asked, and one to three boxes for each, which may overlap or reach outside."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.rand(items, height, width, generator=generator)
    truths = []
    for item in range(items):
        corners = torch.rand(1 + item % 3, 2, generator=generator) * torch.tensor([width - 2.0, height - 2.0])
        sides = 1.5 + torch.rand(1 + item % 3, 2, generator=generator) * torch.tensor([width / 2, height / 2])
        truths.append(torch.cat([corners, corners + sides], dim=1))
    return (maps if levels is None else (maps * levels).round() / levels), truths


def test_by_hand():
    """The left column is positive, values from the highest: hit 1/1, miss, hit 2/3, miss; AP = 1/2 1 + 1/2 2/3."""
    maps = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
    assert pxap(maps, [boxes((0, 0, 1, 2))]).tolist() == [pytest.approx(5 / 6, abs=1e-15)]
    # the right column: miss, hit 1/2, miss, hit 2/4
    assert pxap(maps, [boxes((1, 0, 2, 2))]).tolist() == [0.5]


def test_ties_by_hand():
    """0.5 holds one hit and two misses, which enter together: 1/2 1/1 + 1/2 2/4."""
    maps = torch.tensor([[[0.9, 0.5], [0.5, 0.5]]])
    assert pxap(maps, [boxes((0, 0, 1, 2))]).tolist() == [0.75]
    # moved among the pixels of 0.5, the other positive changes nothing
    assert pxap(maps, [boxes((0, 0, 2, 1))]).tolist() == [0.75]
    assert pxap(maps, [boxes((0, 0, 1, 1), (1, 1, 2, 2))]).tolist() == [0.75]


@pytest.mark.parametrize("levels", [None, 1, 4, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_equals_a_loop(levels, dtype):
    maps, truths = random(1, 6, 9, 11, levels)
    maps = maps.to(dtype)
    expected = [naive(plane.double(), truth) for plane, truth in zip(maps, truths, strict=True)]
    found = pxap(maps, truths)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, abs=1e-14)
    assert len({round(value, 6) for value in expected}) == 6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=20, max_size=20),
    st.lists(st.lists(st.floats(-1, 6), min_size=4, max_size=4), max_size=3),
)
def test_equals_a_loop_for_any_box(values, ends):
    """Any number of boxes, none or without a pixel too: then both are NaN."""
    maps = torch.tensor(values, dtype=torch.float32).view(1, 4, 5) / 3
    truth = torch.tensor([(*map(min, a, b), *map(max, a, b)) for a, b in ((e[:2], e[2:]) for e in ends)]).view(-1, 4)
    assert pxap(maps, [truth]).tolist() == pytest.approx([naive(maps[0], truth)], abs=1e-14, nan_ok=True)


@pytest.mark.parametrize("levels", [None, 10])
def test_equals_torchmetrics(levels):
    classification = pytest.importorskip("torchmetrics.classification")
    maps, truths = random(2, 5, 40, 56, levels)
    found = pxap(maps, truths)
    for i in range(5):
        metric = classification.BinaryAveragePrecision(thresholds=None)
        inside = torch.from_numpy(is_positive(truths[i], 40, 56))
        expected = metric(maps[i].flatten(), inside.flatten().long())
        assert found[i].item() == pytest.approx(expected.item(), abs=2e-6)  # torchmetrics sums in float32


def test_controls():
    """A constant map has the share of the boxes' area, a perfect one 1, and the opposite is worse than constant."""
    truth = boxes((3, 1, 8, 5), (6, 2, 10, 9))
    inside = torch.from_numpy(is_positive(truth, 10, 12)).float()
    share = (5 * 4 + 4 * 7 - 2 * 3) / 120  # the boxes overlap in 2 x 3 pixels
    maps = torch.stack([torch.full((10, 12), 0.3), torch.zeros(10, 12), inside, 1 - inside])
    constant, blank, perfect, opposite = pxap(maps, [truth] * 4).tolist()
    assert (constant, blank, perfect) == (share, share, 1)
    assert opposite == share  # all negatives first, then all positives together
    graded = inside + 0.5 * torch.rand(10, 12, generator=torch.Generator().manual_seed(0))
    assert pxap(torch.stack([graded, -graded]), [truth] * 2)[0] == 1
    assert pxap(-graded[None], [truth])[0] < share


def test_depends_on_the_order_of_values_alone():
    maps, truths = random(3, 4, 12, 10, levels=15)
    assert torch.equal(pxap(maps.double().exp() * 7 - 3, truths), pxap(maps, truths))


def test_the_order_of_pixels_with_equal_values_does_not_matter():
    """Mirrored maps and boxes hold the same pixels in another order: the values are the same to the last bit."""
    maps, _ = random(4, 4, 12, 10, levels=5)
    truths = [boxes((1, 2, 6, 9), (4, 0, 7, 3))] * 4
    mirrored = [boxes((4, 2, 9, 9), (3, 0, 6, 3))] * 4
    assert torch.equal(pxap(maps.flip(2), mirrored), pxap(maps, truths))


def test_a_pixel_is_in_a_box_with_its_centre():
    # the centre of pixel 2 is 2.5: in [2.5, 4) and [2.4, 4), not in [2.6, 4) nor in [0, 2.5)
    maps = torch.zeros(5, 4, 4)
    maps[:, :, 2] = 1
    truths = [boxes((x0, 0, x1, 4)) for x0, x1 in [(2.5, 3), (2.4, 3), (2.6, 4), (0, 2.5), (0, 2.51)]]
    # hit alone: 1. Missed, alone in column 3: 4/16; in columns 0 and 1: 8/16. Columns 0 to 2: 1/3 1 + 2/3 12/16.
    expected = pytest.approx([1, 1, 0.25, 0.5, 5 / 6], abs=1e-15)
    assert pxap(maps, truths).tolist() == expected
    assert pxap(maps.mT, [truth[:, [1, 0, 3, 2]] for truth in truths]).tolist() == expected  # the same downwards


def test_an_item_without_a_positive_pixel_is_nan():
    """No box, a box without area, a box beside the map; the items beside them have their values."""
    maps, truths = random(5, 5, 6, 7)
    bare = [NO_BOX, boxes((2, 2, 2, 5)), boxes((7, 0, 20, 6))]
    found = pxap(maps, [truths[0], *bare, truths[4]])
    assert found.isnan().tolist() == [False, True, True, True, False]
    assert torch.equal(found[[0, 4]], pxap(maps, truths)[[0, 4]])
    assert pxap(maps[:2], [NO_BOX] * 2).isnan().all()


def test_no_item():
    found = pxap(torch.empty(0, 3, 3), [])
    assert (found.shape, found.dtype) == ((0,), torch.float64)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_an_item_does_not_depend_on_the_others(monkeypatch):
    """To the last bit, at the size of real maps, where the sum of a single row would be split between the threads."""
    maps, truths = random(6, 5, 224, 224)
    whole = pxap(maps, truths)
    assert torch.equal(torch.cat([pxap(maps[i : i + 1], truths[i : i + 1]) for i in range(5)]), whole)
    monkeypatch.setattr(import_module("gamlens.metrics.pxap"), "MAPS_SORTED_AT_ONCE", 2)  # not the function pxap
    assert torch.equal(pxap(maps, truths), whole)


def test_boxes_of_whole_numbers_and_inputs_left_alone():
    maps, _ = random(7, 2, 5, 6)
    before = maps.clone()
    whole = [torch.tensor([[1, 1, 4, 3]]), torch.tensor([[0, 2, 6, 4]], dtype=torch.int32)]
    assert torch.equal(pxap(maps, whole), pxap(maps, [truth.float() for truth in whole]))
    assert torch.equal(maps, before)


def test_a_run_leaves_out_what_has_no_box():
    maps = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]] * 2)
    measured = METRICS["pxap"].measure(MetricInput(maps=maps, boxes=[boxes((1, 0, 2, 2)), NO_BOX]))
    value = METRICS["pxap"].value(StoredColumns(measured, torch.zeros(2, dtype=torch.bool)))
    assert value.values[0] == 50
    assert (value.left_out, value.why) == (1, "have nothing to measure")


@pytest.mark.parametrize(
    ("maps", "truths", "found"),
    [
        (torch.rand(3, 4), [NO_BOX] * 3, r"\(N,H,W\).*\(3, 4\)"),
        (torch.ones(1, 3, 4, dtype=torch.int64), [NO_BOX], "floats.*int64"),
        (torch.full((1, 3, 4), torch.nan), [NO_BOX], "NaN.*row 0"),
        (torch.rand(2, 3, 4), [NO_BOX], "2 items, 1 sets of boxes"),
        (torch.rand(1, 3, 4), [torch.zeros(4)], r"\(K,4\).*\(4,\) in item 0"),
        (torch.rand(1, 3, 4), [boxes((3, 0, 1, 2))], "x0 <= x1"),
        (torch.rand(1, 3, 4), [boxes((0, 0, torch.inf, 2))], "finite"),
    ],
)
def test_bad_input_is_an_error(maps, truths, found):
    with pytest.raises(GamlensError, match=found):
        pxap(maps, truths)
