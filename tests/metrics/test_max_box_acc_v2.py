"""MaxBoxAccV2: hits at the IoU levels 0.3, 0.5 and 0.7, each at its own best threshold."""

import numpy as np
import pytest
import torch

from gamlens.metrics import METRICS, StoredColumns, box_accuracy


def naive(grid):
    """100 x the accuracy of each level at its best threshold, and their mean, as wsolevaluation adds them up."""
    return float(np.mean([max(100 * (grid >= level).mean(axis=0)) for level in (0.3, 0.5, 0.7)]))


def test_by_hand():
    grid = torch.tensor([[0.4, 0.6], [0.8, 0.2]], dtype=torch.float64)
    # 0.3: both at the first threshold; 0.5: one at either, the first; 0.7: the second item at the first
    assert box_accuracy(grid).tolist() == pytest.approx([1 / 3, 1])


def test_equals_a_loop():
    grid = torch.rand(40, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 100 * box_accuracy(grid).mean().item() == pytest.approx(naive(grid.numpy()), abs=1e-12)


def test_the_threshold_is_that_of_the_counted_items():
    grid = torch.rand(12, 19, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    held = torch.arange(12) < 5
    value = METRICS["max_box_acc_v2"].value(StoredColumns({"iou": grid}, held))
    assert value.values[~held].mean().item() == pytest.approx(naive(grid[~held].numpy()), abs=1e-10)
    assert (value.left_out, value.why, value.counted.tolist()) == (5, "belong to the hold-out", (~held).tolist())
    assert (value.threshold, value.grid) == (None, None)


def test_an_item_without_a_box_is_nan():
    grid = torch.rand(3, 19)
    grid[1] = torch.nan
    assert box_accuracy(grid).isnan().tolist() == [False, True, False]
