"""ADCC, coherency and complexity."""

import pytest
import torch
from scipy.stats import pearsonr

from gamlens.errors import GamlensError
from gamlens.metrics import METRICS, MetricInput, adcc, coherency, complexity


def test_by_hand():
    # coherency 1/2, complexity 1/5, drop 1/2: 3 / (2 + 5/4 + 2)
    assert adcc(*torch.tensor([[0.5], [0.2], [0.5]])).item() == pytest.approx(3 / 5.25)
    maps = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]], [[0.2, 0.4]]])
    assert coherency(maps, maps.flip(2)).tolist() == [0, 0, 0]
    assert coherency(maps, maps).tolist() == pytest.approx([1, 1, 1])
    assert complexity(maps).tolist() == pytest.approx([0.5, 0.5, 0.3])


def test_a_term_of_zero_gives_zero():
    terms = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 1.0, 1.5, torch.nan]])
    found = adcc(*terms)
    assert found[:4].tolist() == [0, 0, 0, 0]
    assert found[4].isnan()


def test_equals_scipy():
    make = torch.Generator().manual_seed(0)
    maps, others = torch.rand(4, 12, 9, generator=make), torch.rand(4, 12, 9, generator=make)
    others[1] = maps[1] ** 2
    expected = [
        (pearsonr(a.flatten().double(), b.flatten().double())[0] + 1) / 2 for a, b in zip(maps, others, strict=True)
    ]
    assert coherency(maps, others).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_flat_map_has_no_correlation():
    """1/2, also where rounding in the mean would leave a rest of the flat map."""
    some, flat = torch.rand(1, 7, 7), torch.full((1, 7, 7), 0.1)
    for a, b in ((some, flat), (flat, some), (flat, flat)):
        assert coherency(a, b).item() == 0.5


def test_measured_for_classes_and_pairs():
    maps = torch.tensor([[[0.0, 0.5]], [[0.5, 0.5]], [[1.0, 1.0]]])
    before, after = torch.tensor([0.8, 0.5, 0.5]), torch.tensor([0.4, 0.9, 0.5])
    for name in ("probability", "similarity"):
        scores = {"before": {"logit": before - 9, name: before}, "after": {"logit": after - 9, name: after}}
        found = METRICS["adcc"].measure(MetricInput(maps, maps_of_masked=maps, **scores))
        assert found["coherency"].tolist() == [1, 0.5, 0.5]
        assert found["complexity"].tolist() == [0.25, 0.5, 1]
        # drops 1/2, 0, 0
        assert found["adcc"].tolist() == pytest.approx([3 / (1 + 4 / 3 + 2), 3 / (2 + 2 + 1), 0])
        assert METRICS["coherency"].measure is METRICS["adcc"].measure


def test_no_score_to_drop_from_is_nan():
    maps = torch.rand(2, 3, 3)
    scores = {"before": {"similarity": torch.tensor([-0.5, 0.5])}, "after": {"similarity": torch.zeros(2)}}
    found = METRICS["adcc"].measure(MetricInput(maps, maps_of_masked=maps, **scores))
    assert found["adcc"].isnan().tolist() == [True, False]
    assert found["adcc"][1] == 0  # everything is lost


def test_bad_input_is_an_error():
    with pytest.raises(GamlensError, match=r"the same shape, found \(1, 2, 2\) and \(1, 2, 3\)"):
        coherency(torch.rand(1, 2, 2), torch.rand(1, 2, 3))
