"""PxAP on masks: the average precision of all pixels together, and the influence of each item."""

import numpy as np
import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import (
    METRICS,
    MetricInput,
    StoredColumns,
    bootstrap,
    level_counts,
    pooled_average_precision,
    pxap_mask,
)


def naive(maps, truth, void):
    """The rules of wsolevaluation with 100 thresholds: histograms of every image, added up, and their precision."""
    edges = np.append(np.arange(0, 101) / 100, [2.0, 3.0]).astype(np.float32)
    inside, outside = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for plane, mask, ignored in zip(maps.numpy(), truth.numpy(), void.numpy(), strict=True):
        inside += np.histogram(plane[mask & ~ignored], bins=edges)[0]
        outside += np.histogram(plane[~mask & ~ignored], bins=edges)[0]
    tp, fp = inside[::-1].cumsum(), outside[::-1].cumsum()
    some = tp + fp > 0
    precision = tp / np.maximum(tp + fp, 1)
    recall = tp / inside.sum()
    return float((precision[1:] * np.diff(recall))[some[1:]].sum())


def random(items=7, seed=0):
    make = torch.Generator().manual_seed(seed)
    maps = torch.rand(items, 23, 19, generator=make)
    truth = maps + torch.rand(items, 23, 19, generator=make) > torch.linspace(0.6, 1.8, items)[:, None, None]
    maps[:, 3, 4], maps[:, 3, 5] = 1, 0
    return maps, truth, torch.rand(items, 23, 19, generator=make) > 0.9


def test_by_hand():
    """From the highest: 0.9 hit, 0.8 miss, 0.7 hit, so 1/2 1 + 1/2 2/3; pooled with a map of misses alone above."""
    maps = torch.tensor([[[0.9, 0.8], [0.7, 0.1]], [[0.95, 0.92], [0.2, 0.1]]])
    truth = torch.tensor([[[True, False], [True, False]], [[False, False], [True, False]]])
    assert pxap_mask(maps[:1], truth[:1]).item() == pytest.approx(5 / 6, abs=1e-12)
    # 0.95 0.92 miss, 0.9 hit 1/3, 0.8 miss, 0.7 hit 2/5, 0.2 hit 3/6
    assert pxap_mask(maps, truth).mean().item() == pytest.approx((1 / 3 + 2 / 5 + 1 / 2) / 3, abs=1e-12)


def test_the_mean_is_that_of_wsolevaluation():
    maps, truth, void = random()
    values = pxap_mask(maps, truth, void)
    assert values.mean().item() == pytest.approx(naive(maps, truth, void), abs=1e-12)
    assert values.std() > 0.01


def test_the_influence_is_that_of_leaving_an_item_out():
    maps, truth, void = random(5, seed=1)
    theta = naive(maps, truth, void)
    rows = [[j for j in range(5) if j != i] for i in range(5)]
    pull = np.array([4 * (theta - naive(maps[own], truth[own], void[own])) for own in rows])
    assert pxap_mask(maps, truth, void).tolist() == pytest.approx((theta + pull - pull.mean()).tolist(), abs=1e-10)


def test_the_interval_is_like_that_of_resampled_pools():
    """The bootstrap of the mean of the values against the bootstrap of the pooled number itself."""
    maps, truth, void = random(60, seed=2)
    positive, pixels = level_counts(maps, truth, void)
    make, found = torch.Generator().manual_seed(0), []
    for _ in range(300):
        rows = torch.randint(60, (60,), generator=make)
        found.append(pooled_average_precision(positive[rows], pixels[rows]).mean().item())
    interval = bootstrap(pooled_average_precision(positive, pixels))
    low, high = np.quantile(found, [0.025, 0.975])
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.2)
    assert interval.low == pytest.approx(low, abs=0.2 * (high - low))


def test_counts():
    maps = torch.tensor([[[0.0, 0.009, 0.01, 0.5, 0.999, 1.0]]])
    truth = torch.tensor([[[True, True, False, True, True, False]]])
    positive, pixels = level_counts(maps, truth)
    assert (positive.dtype, tuple(positive.shape)) == (torch.int32, (1, 101))
    assert pixels.nonzero()[:, 1].tolist() == [0, 1, 50, 99, 100]
    assert pixels[0, [0, 1, 50, 99, 100]].tolist() == [2, 1, 1, 1, 1]
    assert positive[0, [0, 1, 50, 99, 100]].tolist() == [2, 0, 1, 1, 0]


def test_an_item_without_a_mask_takes_no_part():
    maps, truth, void = random(4)
    truth[2] = False
    rows = [0, 1, 3]
    found = pxap_mask(maps, truth, void)
    assert found.isnan().tolist() == [False, False, True, False]
    torch.testing.assert_close(found[rows], pxap_mask(maps[rows], truth[rows], void[rows]))
    assert pxap_mask(maps, torch.zeros_like(truth)).isnan().all()


def test_flat_maps_have_the_share_of_the_masks():
    truth = torch.rand(3, 8, 8) > 0.7
    for flat in (0.0, 0.4, 1.0):
        assert pxap_mask(torch.full((3, 8, 8), flat), truth).mean().item() == pytest.approx(
            truth.double().mean().item()
        )


def test_the_table_is_the_pooled_number():
    maps, truth, void = random(6)
    measured = METRICS["pxap_mask"].measure(MetricInput(maps, mask=truth, void=void))
    columns = {name: values.float() for name, values in measured.items()}  # as files give them back
    columns = {name: torch.cat([values, values.new_full((1, 101), torch.nan)]) for name, values in columns.items()}
    value = METRICS["pxap_mask"].value(StoredColumns(columns, torch.zeros(7, dtype=torch.bool)))
    assert bootstrap(value.values).mean == pytest.approx(100 * naive(maps, truth, void), abs=1e-10)
    assert (value.left_out, value.why) == (1, "have nothing to measure")


def test_bad_input_is_an_error():
    with pytest.raises(GamlensError, match=r"the same shape \(N,L\), found \(2, 3\) and \(2, 4\)"):
        pooled_average_precision(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(GamlensError, match="truth must be one bool mask"):
        pxap_mask(torch.rand(1, 2, 2), torch.rand(1, 2, 2))
