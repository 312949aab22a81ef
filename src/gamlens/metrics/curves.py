"""Insertion, deletion: the score while pixels appear or vanish in the order of the map. Petsiuk et al., BMVC 2018."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps
from gamlens.metrics.metric import MeasuredColumns, MetricInput


def order(maps: Tensor) -> Tensor:
    """The flat indices of the pixels, highest value first, equal values in reading order: (N,H,W) -> (N,HW) long."""
    check_maps(maps)
    return maps.flatten(1).argsort(dim=1, descending=True, stable=True)


def steps(maps: Tensor, count: int) -> Iterator[Tensor]:
    """count + 1 masks from no pixel to all pixels, in equal steps: (N,H,W) -> (N,H,W) bool, one step at a time.

    The mask of step s holds the floor(s HW / count) highest pixels. Insertion shows the mask, deletion its complement.

    >>> [mask.int().tolist() for mask in steps(torch.tensor([[[0.1, 0.9]]]), 2)]
    [[[[0, 0]]], [[[0, 1]]], [[[1, 1]]]]
    """
    pixels = maps.shape[-2:].numel()
    if not 1 <= count <= pixels:
        raise GamlensError(f"The number of steps lies between 1 and the {pixels} pixels of a map, found {count}.")
    ranks = order(maps).argsort(dim=1).view(maps.shape)
    return (ranks < step * pixels // count for step in range(count + 1))


def auc(scores: Tensor) -> Tensor:
    """The area under the curve of the probability while pixels appear (insertion) or vanish (deletion) in the order of
    the map, by the trapezoidal rule over S equally spaced points from 0 to 1: (S,N) -> (N,).
    """
    if scores.ndim != 2 or len(scores) < 2:
        raise GamlensError(
            f"Curves must have the shape (steps,N) with at least two steps; found {tuple(scores.shape)}."
        )
    if not bool(scores.isfinite().all()):
        raise GamlensError("Scores must be finite, found NaN or infinity: check the output of the model.")
    return torch.trapezoid(scores, dx=1 / (len(scores) - 1), dim=0)


def measure_insertion(given: MetricInput) -> MeasuredColumns:
    return {"insertion": None if given.inserted is None else auc(given.inserted)}


def measure_deletion(given: MetricInput) -> MeasuredColumns:
    return {"deletion": None if given.deleted is None else auc(given.deleted)}
