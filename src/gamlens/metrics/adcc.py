"""ADCC: average drop, coherency and complexity in one number. Poppi et al., CVPR Workshops 2021."""

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps
from gamlens.metrics._sums import row_sums
from gamlens.metrics.adp import drop
from gamlens.metrics.metric import MeasuredColumns, MetricInput

COHERENCY_COLUMNS = {"coherency": "float64"}
ADCC_COLUMNS = {"adcc": "float64", **COHERENCY_COLUMNS, "complexity": "float64"}


def coherency(maps: Tensor, maps_of_masked: Tensor) -> Tensor:
    """Whether the explainer gives the same map again for image x map, (r + 1) / 2 with Pearson's correlation r of both
    maps: (N,H,W), (N,H,W) -> (N,) float64.

    If a map is flat there is no correlation, and the coherency is 1/2, as for maps that have nothing in common.
    """
    check_maps(maps)
    check_maps(maps_of_masked)
    if maps.shape != maps_of_masked.shape:
        shapes = f"{tuple(maps.shape)} and {tuple(maps_of_masked.shape)}"
        raise GamlensError(f"Maps and maps of the masked images must have the same shape, found {shapes}.")
    rows = [side.to(maps.device).double().flatten(1) for side in (maps, maps_of_masked)]
    flat = torch.stack([side.amax(dim=1) == side.amin(dim=1) for side in rows]).any(dim=0)
    a, b = (side - (row_sums(side) / side.shape[1])[:, None] for side in rows)
    lengths = (row_sums(a * a) * row_sums(b * b)).sqrt()
    r = row_sums(a * b) / torch.where(flat, 1, lengths)
    return torch.where(flat, 0.5, (r.clamp(-1, 1) + 1) / 2)


def complexity(maps: Tensor) -> Tensor:
    """How much of the image the map shows: its mean over the pixels, (N,H,W) -> (N,) float64."""
    check_maps(maps)
    rows = maps.double().flatten(1).abs()
    return row_sums(rows) / rows.shape[1]


def adcc(coherency: Tensor, complexity: Tensor, drop: Tensor) -> Tensor:
    """The harmonic mean of coherency, 1 - complexity and 1 - drop: (N,), (N,), (N,) -> (N,).

    coherency: how much the explainer's map of image x map is like the map. complexity: the mean of the map. drop: the
    share of the probability (of pairs: the similarity) that is lost on image x map, max(0, Y - O) / Y.

        3 / (1 / coherency + 1 / (1 - complexity) + 1 / (1 - drop))

    It is 0 where one of the three is 0 (or below, for a drop above 1), and NaN where the drop is.

    >>> adcc(torch.tensor([1.0, 0.5, 0.5]), torch.tensor([0.0, 0.5, 0.2]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([1.0000, 0.5000, 0.0000])
    """
    terms = torch.stack([coherency, 1 - complexity, 1 - drop])
    some = (terms > 0).all(dim=0)
    inverse = 1 / torch.where(some, terms, 1)
    found = torch.where(some, 3 / (inverse[0] + inverse[1] + inverse[2]), 0)
    return torch.where(terms.isnan().any(dim=0), torch.nan, found)


def measure_adcc(given: MetricInput) -> MeasuredColumns:
    """Fill ADCC_COLUMNS; None if the maps of the masked images were not made."""
    if given.maps_of_masked is None:
        return dict.fromkeys(ADCC_COLUMNS)
    name = "similarity" if "similarity" in given.before else "probability"
    terms = coherency(given.maps, given.maps_of_masked).cpu(), complexity(given.maps).cpu()
    lost = drop(given.before[name].double().cpu(), given.after[name].double().cpu())
    return {"adcc": adcc(*terms, lost), "coherency": terms[0], "complexity": terms[1]}
