"""Sparseness: does the map point at few pixels? The Gini index, as in Chalasani et al., ICML 2020."""

import torch
from torch import Tensor

from gamlens.metrics._checks import check_maps
from gamlens.metrics._sums import row_sums
from gamlens.metrics.metric import MeasuredColumns, MetricInput

MAPS_SUMMED_AT_ONCE = 32  # how many maps are sorted at once, which bounds the memory


def sparseness(maps: Tensor) -> Tensor:
    """The Gini index of the map's values, 0 if all are equal and near 1 if a single pixel has everything:
    (N,H,W) -> (N,) float64.

    With the P values v_1 <= ... <= v_P in order,

        sum over i of (2 i - P - 1) v_i / (P sum over i of v_i).

    A flat map has 0, also a map of zeros. The values must not be negative.

    >>> sparseness(torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]))
    tensor([0.7500], dtype=torch.float64)
    """
    check_maps(maps)
    found = maps.new_zeros(len(maps), dtype=torch.float64)
    for first in range(0, len(maps), MAPS_SUMMED_AT_ONCE):
        part = slice(first, first + MAPS_SUMMED_AT_ONCE)
        values = maps[part].flatten(1).sort(dim=1).values.double()
        pixels = values.shape[1]
        weights = 2 * torch.arange(1, pixels + 1, device=maps.device, dtype=torch.float64) - pixels - 1
        whole = row_sums(values)
        flat = (values[:, 0] == values[:, -1]) | (whole <= 0)
        found[part] = torch.where(flat, 0, row_sums(weights * values) / (pixels * torch.where(flat, 1, whole)))
    return found


def measure_sparseness(given: MetricInput) -> MeasuredColumns:
    return {"sparseness": sparseness(given.maps)}
