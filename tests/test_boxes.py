"""Threshold, largest component, box."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import measure

from gamlens.boxes import boxes, components, largest_boxes, largest_component
from gamlens.errors import GamlensError


def draw(text):
    """A mask from rows of # and dots."""
    return torch.tensor([[letter == "#" for letter in row] for row in text.split()])


SPIRAL = draw(
    """
    #########
    #.......#
    #.#####.#
    #.#...#.#
    #.#.#.#.#
    #.#.###.#
    #.#.....#
    #.#######
    """
)
SNAKE = draw(
    """
    ######.#
    .....#.#
    ######.#
    #......#
    ######.#
    .....#.#
    ######.#
    """
)
COMB = draw(
    """
    #.#.#.#
    #.#.#.#
    #######
    .......
    #######
    #.#.#.#
    """
)
DIAGONAL = torch.eye(6, dtype=torch.bool)
CHECKERS = (torch.arange(5)[:, None] + torch.arange(6)) % 2 == 0


def by_skimage(mask):
    """The largest component; of several, the one whose first pixel comes first in reading order."""
    labels = measure.label(mask.numpy(), connectivity=1)
    best, most = np.zeros_like(labels, dtype=bool), 0
    for label in dict.fromkeys(labels.ravel().tolist()):
        if label and (labels == label).sum() > most:
            best, most = labels == label, (labels == label).sum()
    return best


def same_partition(mine, theirs):
    """Whether two labellings cut the pixels in the same way."""
    pairs = set(zip(mine.ravel().tolist(), theirs.ravel().tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) and all(
        (a == 0) == (b == 0) for a, b in pairs
    )


@pytest.mark.parametrize(
    ("threshold", "mode", "expected"),
    [
        (0.25, "all", [0, 0, 5, 4]),
        (0.25, "largest", [2, 1, 5, 3]),
        (0.5, "all", [0, 0, 5, 3]),
        (0.5, "largest", [3, 1, 5, 3]),
        (0.9, "all", [0, 0, 1, 1]),
        (0.9, "largest", [0, 0, 1, 1]),
        (0.0, "all", [0, 0, 5, 4]),
        (1.0, "all", [0, 0, 1, 1]),
    ],
)
def test_boxes_by_hand(threshold, mode, expected):
    maps = torch.tensor(
        [
            [
                [1.0, 0.0, 0.0, 0.0, 0.0],
                [0.0, 0.0, 0.3, 0.6, 0.5],
                [0.0, 0.0, 0.0, 0.6, 0.0],
                [0.0, 0.25, 0.0, 0.0, 0.0],
            ]
        ]
    )
    before = maps.clone()
    assert boxes(maps, threshold=threshold, mode=mode).tolist() == [expected]
    assert torch.equal(maps, before)


@pytest.mark.parametrize("mode", ["all", "largest"])
def test_each_row_has_its_own_box_and_an_empty_one_has_zeros(mode):
    maps = torch.zeros(4, 3, 5)
    maps[1, 2, 4] = 1
    maps[2] = 1
    maps[3, 0, :2] = 0.3
    found = boxes(maps, mode=mode)
    assert found.tolist() == [[0, 0, 0, 0], [4, 2, 5, 3], [0, 0, 5, 3], [0, 0, 2, 1]]
    assert found.dtype == torch.float32


@pytest.mark.parametrize("mode", ["all", "largest"])
def test_one_pixel(mode):
    assert boxes(torch.tensor([[[1.0]], [[0.0]]]), mode=mode).tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("threshold", [-0.1, 1.01, float("nan"), 25])
def test_a_threshold_outside_0_to_1_is_an_error(threshold):
    with pytest.raises(GamlensError, match="between 0 and 1"):
        boxes(torch.ones(1, 2, 2), threshold=threshold)


def test_an_unknown_mode_is_an_error():
    with pytest.raises(GamlensError, match="'biggest'"):
        boxes(torch.ones(1, 2, 2), mode="biggest")


@pytest.mark.parametrize(
    ("mask", "parts"),
    [
        (SPIRAL, 1),
        (SPIRAL.T, 1),
        (SPIRAL.flip(0, 1), 1),
        (~SPIRAL, 1),
        (SNAKE, 2),
        (SNAKE.T, 2),
        (COMB, 2),
        (COMB.flip(0), 2),
        (DIAGONAL, 6),
        (CHECKERS, 15),
        (torch.zeros(3, 4, dtype=torch.bool), 0),
        (torch.ones(3, 4, dtype=torch.bool), 1),
        (torch.ones(1, 1, dtype=torch.bool), 1),
        (torch.zeros(1, 1, dtype=torch.bool), 0),
        (draw("#.##.###"), 3),
        (draw("#.##.###").T, 3),
    ],
)
def test_components_equal_skimage(mask, parts):
    found = components(mask[None])[0]
    assert len(set(found[mask].tolist())) == parts
    assert same_partition(found.numpy(), measure.label(mask.numpy(), connectivity=1))
    assert np.array_equal(largest_component(mask[None])[0].numpy(), by_skimage(mask))


def test_the_first_of_two_equal_components_wins():
    mask = draw("..##. ..... ##...")
    assert largest_component(mask[None])[0].equal(draw("..##. ..... ....."))
    assert boxes(mask[None].float(), mode="largest").tolist() == [[2, 0, 4, 1]]
    beside = draw(".#.. .#.# ...#")
    assert largest_component(beside[None])[0].equal(draw(".#.. .#.. ...."))


def test_corners_do_not_connect():
    mask = draw("##. ##. ..#")
    assert largest_component(mask[None])[0].equal(draw("##. ##. ..."))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.7, 0.95])
def test_a_batch_of_random_masks_equals_skimage_row_by_row(share):
    masks = torch.rand(6, 23, 31, generator=torch.Generator().manual_seed(int(share * 100))) < share
    found = largest_component(masks)
    for row, mask in enumerate(masks):
        assert np.array_equal(found[row].numpy(), by_skimage(mask))
        assert torch.equal(largest_component(mask[None])[0], found[row])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_small_mask_equals_skimage(data):
    height, width, count = (data.draw(st.integers(1, most)) for most in (7, 7, 2))
    bits = data.draw(st.lists(st.booleans(), min_size=height * width * count, max_size=height * width * count))
    masks = torch.tensor(bits).view(count, height, width)
    found = largest_component(masks)
    for mask, best in zip(masks, found, strict=True):
        assert np.array_equal(best.numpy(), by_skimage(mask))
    for mode, kept in (("all", masks), ("largest", found)):
        for box, mask in zip(boxes(masks.float(), threshold=0.5, mode=mode).int().tolist(), kept, strict=True):
            rows, columns = np.nonzero(mask.numpy())
            tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else [0, 0, 0, 0]
            assert box == tight


@pytest.mark.parametrize("count", [1, 40])
def test_largest_boxes_at_every_threshold_are_the_boxes_of_each(count):
    torch.manual_seed(count)
    coarse = torch.rand(count, 1, 6, 7)
    maps = torch.nn.functional.interpolate(coarse, size=(31, 23), mode="bicubic")[:, 0].clamp(0, 1)
    maps[0] = 0
    thresholds = [0.05, 0.3, 0.5, 0.7, 1.0]
    found = largest_boxes(maps, thresholds)
    assert found.shape == (count, 5, 4)
    for place, threshold in enumerate(thresholds):
        one = boxes(maps, threshold=threshold, mode="largest")
        assert torch.equal(found[:, place], one)
        for values, box in zip(maps, one, strict=True):
            ys, xs = np.nonzero(by_skimage(values >= threshold))
            expected = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] if len(xs) else [0, 0, 0, 0]
            assert box.tolist() == expected


def test_largest_boxes_of_no_map():
    assert largest_boxes(torch.zeros(0, 4, 4), [0.5]).shape == (0, 1, 4)
