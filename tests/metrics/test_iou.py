"""IoU of boxes, and boxes over a grid of thresholds."""

import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.metrics import THRESHOLDS, best_threshold, box_hits, box_iou, boxes_at, iou_grid


def boxes(*rows):
    return torch.tensor(rows, dtype=torch.float32).view(-1, 4)


def random_boxes(make, count, size=20, *, whole=False):
    corners = torch.rand(count, 2, 2, generator=make, dtype=torch.float64) * size
    corners = (corners.round() if whole else corners).sort(dim=1).values
    return corners.flatten(1)


def box_loop(image, t):
    """The tight box of one map (H,W), pixel by pixel."""
    hits = [(x, y) for y, row in enumerate(image) for x, value in enumerate(row) if bool(value >= t)]
    if not hits:
        return [0, 0, 0, 0]
    xs, ys = zip(*hits, strict=True)
    return [min(xs), min(ys), max(xs) + 1, max(ys) + 1]


def test_thresholds():
    assert (
        *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
        *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    ) == THRESHOLDS


def test_published_value_of_wsolevaluation():
    # its evaluation_test.py: [1,2,5,6] and [3,1,4,5] with closed ends -> 8/27; half-open ends are one further
    # both 2 x 4 = 8, union 25 + 10 - 8 = 27
    assert box_iou(boxes([1, 2, 6, 7]), [boxes([3, 1, 5, 6])]).item() == pytest.approx(8 / 27, abs=1e-7)
    eye = [
        box_iou(boxes(a), [boxes(b)]).item() for a in ([1, 1, 4, 4], [4, 4, 6, 6]) for b in ([1, 1, 4, 4], [4, 4, 6, 6])
    ]
    assert eye == [1, 0, 0, 1]


def test_the_best_of_several_truths():
    predicted = boxes([0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4])
    truths = [boxes([8, 8, 9, 9], [0, 0, 4, 2], [2, 2, 6, 6]), boxes([2, 2, 6, 6]), boxes([4, 0, 8, 4])]
    # 8/16 beats 4/(16 + 16 - 4) = 1/7; boxes that only touch share nothing
    torch.testing.assert_close(box_iou(predicted, truths), torch.tensor([1 / 2, 1 / 7, 0]))


def test_a_box_without_area_has_no_iou():
    nothing, line = [0, 0, 0, 0], [2, 2, 2, 6]
    predicted = boxes(nothing, nothing, line, [0, 0, 4, 4])
    truths = [boxes([0, 0, 4, 4]), boxes(nothing), boxes(line), boxes(line)]
    assert box_iou(predicted, truths).tolist() == [0, 0, 0, 0]


def test_without_ground_truth_it_is_nan():
    result = box_iou(boxes([0, 0, 2, 2], [0, 0, 2, 2]), [boxes(), boxes([0, 0, 2, 2])])
    assert math.isnan(result[0])
    assert result[1] == 1
    assert box_iou(boxes([0, 0, 2, 2]), [boxes()]).isnan().all()


def test_no_item():
    assert box_iou(torch.empty(0, 4), []).shape == (0,)
    assert boxes_at(torch.empty(0, 5, 6)).shape == (0, 19, 4)
    assert iou_grid(torch.empty(0, 5, 6), []).shape == (0, 19)


@pytest.mark.parametrize("whole", [False, True])
def test_equals_torchvision(whole):
    make = torch.Generator().manual_seed(3)
    predicted = random_boxes(make, 40, whole=whole)
    truths = [random_boxes(make, 1 + i % 4, whole=whole) for i in range(40)]
    expected = [
        torchvision.ops.box_iou(box[None], truth).nan_to_num(0).max()
        for box, truth in zip(predicted, truths, strict=True)
    ]
    torch.testing.assert_close(box_iou(predicted, truths), torch.stack(expected), rtol=1e-13, atol=0)


def test_equals_torchmetrics():
    detection = pytest.importorskip("torchmetrics.functional.detection")
    make = torch.Generator().manual_seed(4)
    a, b = random_boxes(make, 30).float(), random_boxes(make, 30).float()
    expected = detection.intersection_over_union(a, b, aggregate=False).diagonal()
    torch.testing.assert_close(box_iou(a, list(b[:, None])), expected, rtol=1e-6, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=8, max_size=8))
def test_equals_counting_pixels(ends):
    a = [*sorted(ends[0:2]), *sorted(ends[2:4])]
    b = [*sorted(ends[4:6]), *sorted(ends[6:8])]
    pixels = [{(x, y) for x in range(x0, x1) for y in range(y0, y1)} for x0, x1, y0, y1 in (a, b)]
    union = len(pixels[0] | pixels[1])
    expected = len(pixels[0] & pixels[1]) / union if union else 0
    iou = box_iou(boxes([a[0], a[2], a[1], a[3]]).double(), [boxes([b[0], b[2], b[1], b[3]])])
    assert iou.item() == expected


def test_boxes_at_by_hand():
    image = torch.tensor([[[0.0, 0.1, 0.0, 0.0], [0.0, 0.5, 0.2, 0.0], [0.0, 0.0, 0.0, 0.3]]])
    expected = [[1, 0, 4, 3], [1, 1, 4, 3], [1, 1, 4, 3], [1, 1, 2, 2], [0, 0, 0, 0]]
    assert boxes_at(image, [0.1, 0.2, 0.3, 0.5, 0.6])[0].tolist() == expected


def test_a_blank_map_has_no_box_and_no_iou_and_a_full_one_has_all():
    maps = torch.stack([torch.zeros(3, 4), torch.ones(3, 4)])
    assert (boxes_at(maps)[0] == 0).all()
    assert (boxes_at(maps)[1] == torch.tensor([0, 0, 4, 3])).all()
    # box 4 x 3 = 12 pixels against 2 x 3 = 6
    assert iou_grid(maps, [boxes([0, 0, 4, 3]), boxes([0, 0, 2, 3])])[:, 7].tolist() == [0, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_boxes_at_equals_a_loop_on_the_thresholds_themselves(dtype):
    """Values on a threshold are in: the comparison is map >= t in the map's own precision."""
    make = torch.Generator().manual_seed(5)
    maps = (torch.randint(0, 21, (6, 5, 7), generator=make) * 0.05).to(dtype)
    maps[maps > 0.5] -= 0.5 * torch.rand(int((maps > 0.5).sum()), generator=make).to(dtype)
    maps[3] = 0
    expected = [[box_loop(image, t) for t in THRESHOLDS] for image in maps]
    assert boxes_at(maps).tolist() == expected


def test_exactly_at_every_threshold():
    for dtype in (torch.float32, torch.float64):
        exact = torch.tensor(THRESHOLDS, dtype=dtype)
        kept = boxes_at(exact[:, None, None])[..., 2] > 0
        assert torch.equal(kept, torch.ones(19, 19, dtype=torch.bool).tril())


def test_a_batch_equals_its_items_and_input_is_left_alone():
    make = torch.Generator().manual_seed(6)
    maps = torch.rand(5, 8, 9, generator=make)
    truths = [random_boxes(make, i + 1, 8).float() for i in range(5)]
    copy, copies = maps.clone(), [truth.clone() for truth in truths]
    whole = iou_grid(maps, truths)
    one = torch.cat([iou_grid(maps[i : i + 1], truths[i : i + 1]) for i in range(5)])
    assert torch.equal(whole, one)
    assert torch.equal(maps, copy)
    assert all(map(torch.equal, truths, copies))
    by_threshold = torch.stack([box_iou(boxes_at(maps, [t])[:, 0], truths) for t in THRESHOLDS], dim=1)
    assert torch.equal(whole, by_threshold)
    assert torch.equal(whole, box_iou(boxes_at(maps), truths))
    assert torch.equal(iou_grid(maps, truths, thresholds=torch.tensor([0.9, 0.1])), whole[:, [17, 1]])


def test_best_threshold():
    grid = torch.tensor([[0.2, 0.4, 0.6, 0.0], [0.4, 0.6, 0.4, 0.0], [math.nan] * 4])
    # means 0.3, 0.5, 0.5, 0: the first of the two; the item without truth says nothing
    assert best_threshold(grid) == 1
    assert best_threshold(grid[:1]) == 2
    assert best_threshold(torch.zeros(3, 4)) == 0


def test_max_box_acc():
    grid = torch.tensor([[0.5, 0.4, 0.9], [0.6, 0.49, 0.8], [0.0, 0.7, 0.1], [math.nan] * 3])
    # at 0.5: 2/3, 1/3, 2/3, the first is best; at 0.8: 0, 0, 2/3
    torch.testing.assert_close(box_hits(grid).nanmean(dim=0), torch.tensor([2.0, 1.0, 2.0]) / 3)
    assert best_threshold(box_hits(grid)) == 0
    assert best_threshold(box_hits(grid, at=0.8)) == 2
    assert box_hits(grid)[:3].tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 0]]
    assert box_hits(grid)[3].isnan().all()


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        (torch.empty(0, 3), "of the 0"),
        (torch.full((2, 3), math.nan), "of the 2"),
        (torch.ones(3), r"found \(3,\)"),
        (torch.empty(3, 0), r"found \(3, 0\)"),
    ],
)
def test_there_must_be_something_to_choose_on(grid, found):
    with pytest.raises(GamlensError, match=found):
        best_threshold(grid)


@pytest.mark.parametrize(
    ("predicted", "truths", "found"),
    [
        (boxes([0, 0, 1, 1]), [], "1 items, 0 sets"),
        (boxes([0, 0, 1, 1]), [torch.zeros(4)], r"\(4,\) in item 0"),
        (boxes([3, 0, 1, 1]), [boxes([0, 0, 1, 1])], "Predicted boxes must be finite, with x0 <= x1"),
        (boxes([0, 0, 1, 1]), [boxes([0, 5, 1, 1])], "Ground-truth boxes must be finite, with x0 <= x1"),
        (boxes([0, 0, math.nan, 1]), [boxes([0, 0, 1, 1])], "finite"),
        (torch.zeros(1, 5), [boxes([0, 0, 1, 1])], r"\(1, 5\)"),
        (torch.zeros(4), [boxes([0, 0, 1, 1])], r"\(4,\)"),
    ],
)
def test_bad_boxes_are_an_error(predicted, truths, found):
    with pytest.raises(GamlensError, match=found):
        box_iou(predicted, truths)


@pytest.mark.parametrize(
    ("maps", "thresholds", "found"),
    [
        (torch.ones(3, 4), [0.5], r"\(3, 4\)"),
        (torch.ones(1, 0, 4), [0.5], r"\(1, 0, 4\)"),
        (torch.ones(1, 3, 4, dtype=torch.int64), [0.5], "int64"),
        (torch.tensor([[[0.0]], [[math.nan]]]), [0.5], "row 1"),
        (torch.ones(1, 3, 4), [], "Thresholds"),
        (torch.ones(1, 3, 4), [math.nan], "Thresholds"),
    ],
)
def test_bad_maps_are_an_error(maps, thresholds, found):
    with pytest.raises(GamlensError, match=found):
        boxes_at(maps, thresholds)
