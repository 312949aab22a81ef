"""Infidelity: does the map predict by how much the score falls when pixels are hidden? Yeh et al., NeurIPS 2019."""

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps
from gamlens.metrics._sums import row_sums
from gamlens.metrics.metric import MeasuredColumns, MetricInput


def infidelity(maps: Tensor, hidden: Tensor, change: Tensor) -> Tensor:
    """The mean squared difference between what the map says is hidden and by how much the score falls, over K sets of
    hidden pixels: (N,H,W), bool (K,N,H,W), (K,N) -> (N,) float64.

    With a_k the sum of the map over the hidden pixels of set k, and b_k the score before less the score after hiding,

        mean over k of (beta a_k - b_k)^2,  beta = sum over k of a_k b_k / sum over k of a_k^2.

    beta is the factor that fits best, since the scale of a map says nothing. Where the map is 0 on all hidden pixels it
    is the mean of b_k^2. The value is in squared units of the score: maps of one model can be compared, models cannot.
    It is infidelity of captum with `normalize=True`, for binary perturbations.
    """
    check_maps(maps)
    if hidden.ndim != 4 or hidden.dtype != torch.bool or hidden.shape[1:] != maps.shape or len(hidden) == 0:
        found = f"{hidden.dtype} {tuple(hidden.shape)} for maps {tuple(maps.shape)}"
        raise GamlensError(f"Hidden pixels are bool (K,N,H,W) for maps (N,H,W), with K >= 1; found {found}.")
    if change.shape != hidden.shape[:2] or not bool(change.isfinite().all()):
        raise GamlensError(
            f"Changes of the score are finite numbers of shape (K,N) = {tuple(hidden.shape[:2])}, one for every set of "
            f"hidden pixels; found {tuple(change.shape)}, or NaN or infinity among them."
        )
    values = maps.double().flatten(1)
    some = (torch.where(own.to(maps.device).flatten(1), values, 0) for own in hidden)  # one set of pixels at a time
    a, b = torch.stack([row_sums(own) for own in some], dim=1), change.to(maps.device).double().T  # (N,K) each
    squares = row_sums(a * a)
    beta = row_sums(a * b) / torch.where(squares > 0, squares, 1)
    return row_sums((beta[:, None] * a - b).square()) / len(hidden)


def measure_infidelity(given: MetricInput) -> MeasuredColumns:
    if given.hidden is None or given.hidden_change is None:
        return {"infidelity": None}
    return {"infidelity": infidelity(given.maps, given.hidden, given.hidden_change)}
