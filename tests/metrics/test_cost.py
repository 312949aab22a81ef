"""Time and memory in tables."""

import pytest
import torch

from gamlens.metrics import METRICS, MetricInput, StoredColumns, bootstrap, megabytes, milliseconds


def test_units():
    assert milliseconds(torch.tensor([0.25])).tolist() == [250]
    assert megabytes(torch.tensor([3 * 2**20])).tolist() == [3]


def test_items_that_were_not_timed_are_not_called_left_out():
    held = torch.tensor([True, False, False])
    given = MetricInput(
        torch.rand(3, 2, 2),
        seconds=torch.tensor([0.5, torch.nan, 0.25]),
        peak_bytes=torch.tensor([2**20, torch.nan, 2**21]),
    )
    for name, mean in (("time", 375), ("memory", 1.5)):
        metric = METRICS[name]
        value = metric.value(StoredColumns(dict(metric.measure(given)), held))
        assert bootstrap(value.values).mean == pytest.approx(mean)
        assert (value.left_out, value.counted) == (0, None)
