"""Relevance mass and rank on masks and in boxes, energy-based pointing."""

import numpy as np
import pytest
import torch

from gamlens.errors import GamlensError
from gamlens.metrics import METRICS, MetricInput, energy_pointing, relevance_mass, relevance_rank, relevance_rank_boxes

NO_BOX = torch.empty(0, 4)
PLANE = torch.tensor([[[0.9, 0.2], [0.2, 0.1]]])


def box(*ends):
    return torch.tensor([ends], dtype=torch.float32)


def naive_rank(plane, inside, counted, draws=None):
    """The expected share by its definition: the mean over every choice among the pixels of the K-th value."""
    values = [(value, hit) for value, hit, used in zip(plane, inside, counted, strict=True) if used]
    size = sum(hit for _, hit in values)
    if size == 0:
        return np.nan
    last = sorted((value for value, _ in values), reverse=True)[size - 1]
    above, level = ([hit for value, hit in values if sign(value)] for sign in (last.__lt__, last.__eq__))
    return (sum(above) + (size - len(above)) * sum(level) / len(level)) / size


def test_by_hand():
    left = torch.tensor([[[True, False], [True, False]]])
    assert relevance_mass(PLANE, left).item() == pytest.approx(1.1 / 1.4)
    assert relevance_rank(PLANE, left).item() == 0.75  # 0.9 is a hit, and one of two pixels of 0.2 is
    assert energy_pointing(PLANE, [box(0, 0, 1, 2)]).item() == pytest.approx(1.1 / 1.4)
    assert relevance_rank_boxes(PLANE, [box(0, 0, 1, 2)]).item() == 0.75
    void = torch.tensor([[[False, True], [True, False]]])  # the left column is 0.9 alone, beside 0.1
    assert relevance_mass(PLANE, left, void).item() == pytest.approx(0.9)
    assert relevance_rank(PLANE, left, void).item() == 1


def test_two_boxes_count_a_pixel_once():
    both = torch.cat([box(0, 0, 2, 1), box(0, 0, 1, 2)])
    assert energy_pointing(PLANE, [both]).item() == pytest.approx(1.3 / 1.4)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_equals_a_loop(levels):
    make = torch.Generator().manual_seed(levels)
    maps = (torch.rand(6, 9, 7, generator=make) * levels).round() / levels
    truth, void = torch.rand(6, 9, 7, generator=make) > 0.6, torch.rand(6, 9, 7, generator=make) > 0.8
    truth[4] = False
    mass, rank = relevance_mass(maps, truth, void), relevance_rank(maps, truth, void)
    for i in range(6):
        plane, inside, counted = (t[i].flatten().tolist() for t in (maps, truth & ~void, ~void))
        kept = [value for value, used in zip(plane, counted, strict=True) if used]
        hit = [value for value, used in zip(plane, inside, strict=True) if used]
        share = sum(hit) / sum(kept) if hit else np.nan
        assert mass[i].item() == pytest.approx(share, abs=1e-12, nan_ok=True)
        assert rank[i].item() == pytest.approx(naive_rank(plane, inside, counted), abs=1e-12, nan_ok=True)
    assert mass.isnan().tolist() == rank.isnan().tolist() == [i == 4 for i in range(6)]


def test_flat_maps():
    """A flat map has the mask's share of the image; of the mass of zeros, nothing lies on the object."""
    truth = torch.zeros(2, 4, 5, dtype=torch.bool)
    truth[:, :2, :3] = True
    flat = torch.stack([torch.zeros(4, 5), torch.ones(4, 5)])
    assert relevance_mass(flat, truth).tolist() == [0, 0.3]
    assert relevance_rank(flat, truth).tolist() == pytest.approx([0.3, 0.3])
    assert energy_pointing(flat, [box(0, 0, 3, 2)] * 2).tolist() == [0, 0.3]


def test_an_item_without_an_object_is_nan():
    maps = torch.rand(3, 4, 4)
    for fn in (energy_pointing, relevance_rank_boxes):
        assert fn(maps, [box(0, 0, 2, 2), NO_BOX, box(5, 5, 9, 9)]).isnan().tolist() == [False, True, True]
        assert fn(torch.empty(0, 4, 4), []).shape == (0,)
    nothing = torch.zeros(3, 4, 4, dtype=torch.bool)
    everything = ~nothing
    assert relevance_mass(maps, nothing).isnan().all()
    assert relevance_rank(maps, everything, everything).isnan().all()
    assert relevance_mass(maps, everything, nothing).tolist() == [1, 1, 1]
    assert relevance_rank(maps, everything).tolist() == [1, 1, 1]


def test_the_order_of_pixels_does_not_matter():
    maps = (torch.rand(4, 6, 6) * 4).round() / 4
    truth = torch.rand(4, 6, 6) > 0.5
    assert torch.equal(relevance_rank(maps.flip(1), truth.flip(1)), relevance_rank(maps, truth))


def test_columns():
    given = MetricInput(PLANE, [box(0, 0, 1, 2)], mask=PLANE > 0.5, void=PLANE > 1)
    for name in ("energy_pointing", "relevance_rank_boxes", "relevance_mass", "relevance_rank"):
        assert list(METRICS[name].measure(given)) == [name]


@pytest.mark.parametrize("fn", [relevance_mass, relevance_rank])
def test_bad_input_is_an_error(fn):
    with pytest.raises(GamlensError, match="truth must be one bool mask per map"):
        fn(PLANE, PLANE)
    with pytest.raises(GamlensError, match="void must be one bool mask per map"):
        fn(PLANE, PLANE > 0, PLANE)
