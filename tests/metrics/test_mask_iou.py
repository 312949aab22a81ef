"""IoU of a binarised map with a mask."""

import math

import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import THRESHOLDS, iou, mask_iou_grid


def loop(maps, truth, void, thresholds):
    """One comparison a threshold."""
    columns = []
    for t in thresholds:
        kept, wanted = (maps >= t) & ~void, truth & ~void
        columns.append((kept & wanted).sum(dim=(1, 2)) / (kept | wanted).sum(dim=(1, 2)))
    return torch.where((truth & ~void).flatten(1).any(dim=1)[:, None], torch.stack(columns, dim=1), math.nan)


def random(seed, shape, dtype=torch.float32):
    """Maps of which half the values lie on a threshold, truths and voids that overlap."""
    make = torch.Generator().manual_seed(seed)
    steps = (torch.randint(0, 21, shape, generator=make) * 0.05).to(dtype)
    maps = torch.where(torch.rand(shape, generator=make) < 0.5, steps, torch.rand(shape, generator=make).to(dtype))
    return maps, torch.rand(shape, generator=make) < 0.4, torch.rand(shape, generator=make) < 0.1


def test_by_hand():
    maps = torch.tensor([[[0.9, 0.5, 0.1], [0.6, 0.5, 0.0]]])
    truth = torch.tensor([[[True, True, False], [False, False, False]]])
    void = torch.tensor([[[False, False, False], [True, False, False]]])
    # t = 0.5: {0.9, 0.5, 0.5} without the void 0.6, both 2, union 3; t = 0.6: {0.9}, 1 of 2; t = 0.05: 2 of 4; t = 1: 0
    expected = torch.tensor([[2 / 3, 1 / 2, 2 / 4, 0]])
    torch.testing.assert_close(mask_iou_grid(maps, truth, void, thresholds=[0.5, 0.6, 0.05, 1.0]), expected)
    # with the void pixel in: 2 of 4, 1 of 3, 2 of 5
    expected = torch.tensor([[2 / 4, 1 / 3, 2 / 5, 0]])
    torch.testing.assert_close(mask_iou_grid(maps, truth, thresholds=[0.5, 0.6, 0.05, 1.0]), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 9, 11), (1, 1, 1), (3, 1, 8), (0, 4, 4)])
def test_equals_a_comparison_a_threshold_exactly(shape, dtype):
    maps, truth, void = random(sum(shape), shape, dtype)
    copies = maps.clone(), truth.clone(), void.clone()
    result = mask_iou_grid(maps, truth, void)
    torch.testing.assert_close(result, loop(maps, truth, void, THRESHOLDS), rtol=0, atol=0, equal_nan=True)
    assert all(map(torch.equal, copies, (maps, truth, void)))


def test_thresholds_in_any_order_twice_and_out_of_range():
    maps, truth, void = random(1, (4, 6, 5))
    thresholds = [0.9, 0.0, 0.35, 2.0, 0.35, -1.0]
    expected = loop(maps, truth, void, thresholds)
    torch.testing.assert_close(mask_iou_grid(maps, truth, void, thresholds=thresholds), expected, rtol=0, atol=0)


def test_many_items_are_counted_in_chunks(monkeypatch):
    maps, truth, void = random(2, (10, 6, 5))
    whole = mask_iou_grid(maps, truth, void)
    monkeypatch.setattr(iou, "MAPS_AT_ONCE", 3)
    assert torch.equal(mask_iou_grid(maps, truth, void), whole)
    items = [mask_iou_grid(maps[i : i + 1], truth[i : i + 1], void[i : i + 1]) for i in range(10)]
    assert torch.equal(torch.cat(items), whole)


def test_no_truth_is_nan_and_a_blank_map_zero():
    maps = torch.stack([torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2, 2)])
    truth = torch.tensor([[[False, False]] * 2, [[True, True]] * 2, [[True, True]] * 2, [[True, False]] * 2])
    void = torch.tensor([[[False, False]] * 2, [[True, True]] * 2, [[False, False]] * 2, [[False, True]] * 2])
    result = mask_iou_grid(maps, truth, void)
    assert result[:2].isnan().all()
    assert (result[2] == 0).all()
    assert (result[3] == 1).all()


def test_equals_torchmetrics():
    classification = pytest.importorskip("torchmetrics.functional.classification")
    maps, truth, void = random(3, (4, 12, 10))
    target = torch.where(void, -1, truth.long())
    result = mask_iou_grid(maps, truth, void, thresholds=[0.3])
    kept = (maps >= 0.3).long()
    for i in range(4):
        expected = classification.binary_jaccard_index(kept[i], target[i], ignore_index=-1)
        assert result[i, 0].item() == pytest.approx(expected.item(), abs=1e-7)


@pytest.mark.parametrize(
    ("truth", "void", "found"),
    [
        (torch.ones(1, 2, 3, dtype=torch.int64), None, "truth.*int64"),
        (torch.ones(1, 3, 2, dtype=torch.bool), None, r"truth.*\(1, 3, 2\)"),
        (torch.ones(1, 2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool), r"void.*\(2, 3\)"),
    ],
)
def test_bad_masks_are_an_error(truth, void, found):
    with pytest.raises(GamlensError, match=found):
        mask_iou_grid(torch.ones(1, 2, 3), truth, void)
