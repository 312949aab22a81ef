"""Max-sensitivity: how much the map changes when the image hardly does. Yeh et al., NeurIPS 2019."""

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps
from gamlens.metrics._sums import row_sums
from gamlens.metrics.metric import MeasuredColumns, MetricInput


def max_sensitivity(maps: Tensor, maps_of_noisy: Tensor) -> Tensor:
    """The largest change of the map over K small perturbations of the image, as a share of the map's own length:
    (N,H,W), (K,N,H,W) -> (N,) float64.

        max over k of |map of the perturbed image k - map|_2 / |map|_2

    For a map of zeros the change is not divided. It is sensitivity_max of captum.

    >>> max_sensitivity(torch.tensor([[[0.6, 0.8]]]), torch.tensor([[[[0.6, 0.7]]], [[[0.3, 0.8]]]]))
    tensor([0.3000], dtype=torch.float64)
    """
    check_maps(maps)
    if maps_of_noisy.ndim != 4 or maps_of_noisy.shape[1:] != maps.shape or len(maps_of_noisy) == 0:
        shapes = f"{tuple(maps_of_noisy.shape)} for maps {tuple(maps.shape)}"
        raise GamlensError(f"Maps of perturbed images are (K,N,H,W) for maps (N,H,W), with K >= 1; found {shapes}.")
    values = maps.double().flatten(1)
    length = row_sums(values * values).sqrt()
    changes = []
    for other in maps_of_noisy:
        check_maps(other)
        away = other.to(maps.device).double().flatten(1) - values
        changes.append(row_sums(away * away).sqrt())
    return torch.stack(changes).amax(dim=0) / torch.where(length > 0, length, 1)


def measure_max_sensitivity(given: MetricInput) -> MeasuredColumns:
    if given.maps_of_noisy is None:
        return {"max_sensitivity": None}
    return {"max_sensitivity": max_sensitivity(given.maps, given.maps_of_noisy)}
