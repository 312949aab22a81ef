"""ROAD: the score after the most or the least salient pixels were removed and filled in from their surroundings.
Rong et al., ICML 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics._sums import row_sums
from gamlens.metrics.metric import MeasuredColumns, MetricInput

VALUES_AT_ONCE, VALUES_AT_ONCE_ON_GPU = 2**21, 2**25  # how many values of images are worked on at once: bounds memory
IMPUTED_ERROR = 1e-5  # the estimated error at which an image is done, as a share of the range of its known values
MOST_STEPS, ROUNDS = (
    100,
    2,
)  # the most steps of conjugate gradients in a round, and the rounds, each with an exact residual
COARSEST, SWEEPS = 3, 6  # the longer side of the coarsest grid, and the sweeps by which it is solved
DAMPING = 0.85  # of the sweeps on coarse grids, and on the finest one if it is a single row or column
AROUND = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))  # a position and its 8 neighbours


def road(scores: Tensor) -> Tensor:
    """The mean score over the shares of pixels that were removed and imputed: (P,N) -> (N,) float64.

    MoRF removes the most salient pixels first, so that a good map has a low value; LeRF the least salient ones, so that
    a good map has a high value.
    """
    if scores.ndim != 2 or len(scores) == 0 or not bool(scores.isfinite().all()):
        raise GamlensError(f"Scores after removal must be finite numbers (P,N) with P >= 1, found {scores}.")
    return scores.double().cumsum(dim=0)[-1] / len(scores)


def measure_road_morf(given: MetricInput) -> MeasuredColumns:
    return {"road_morf": None if given.most_removed is None else road(given.most_removed)}


def measure_road_lerf(given: MetricInput) -> MeasuredColumns:
    return {"road_lerf": None if given.least_removed is None else road(given.least_removed)}


def impute(images: Tensor, removed: Tensor, *, colour: Sequence[float] | None = None) -> Tensor:
    """Fill removed pixels in from their surroundings: images (N,C,H,W), removed bool (N,H,W) -> (N,C,H,W).

    Every removed pixel becomes the weighted mean of its 8 neighbours, removed ones included: neighbours beside it weigh
    1/6, diagonal ones 1/12, and at the border the weights of the neighbours that exist are scaled to add up to 1. That
    is one linear equation per removed pixel, and all are solved together. It is the noisy linear imputation of ROAD
    without its noise. An image of which all pixels are removed becomes `colour` (C numbers), or 0 if none is given.

    With D the sum of the neighbours' weights and W the weights between removed pixels, the matrix D - W is symmetric
    and positive definite. It is solved by conjugate gradients with a multigrid V-cycle as preconditioner, in float32,
    until the estimated error is below 1e-5 of the range of the known values; then again for what a residual in float64
    shows to be left. Every image is done when its own error says so, so that it does not depend on the others.
    """
    if images.ndim != 4 or removed.shape != images.shape[:1] + images.shape[2:] or removed.dtype != torch.bool:
        found = f"{tuple(images.shape)} and {removed.dtype} {tuple(removed.shape)}"
        raise GamlensError(f"Images (N,C,H,W) take removed pixels as bool (N,H,W), found {found}.")
    if not images.is_floating_point():
        raise GamlensError(f"Images must be floats, found {images.dtype}: convert them first.")
    if colour is not None and len(colour) != images.shape[1]:
        raise GamlensError(f"A colour has one number per channel, {images.shape[1]}; found {len(colour)}.")
    result = images.clone()
    flat = removed.flatten(1)
    whole = flat.all(dim=1)
    if bool(whole.any()):
        fill = images.new_tensor(list(colour) if colour is not None else [0.0] * images.shape[1])
        result[whole] = fill[:, None, None]
    some = (flat.any(dim=1) & ~whole).nonzero()[:, 0]
    most = VALUES_AT_ONCE_ON_GPU if images.device.type == "cuda" else VALUES_AT_ONCE
    for rows in torch.split(some, max(1, most // max(1, images[:1].numel()))):
        if len(rows):
            result[rows] = _filled(images[rows], removed[rows]).to(images.dtype)
    return result


@dataclass(frozen=True, eq=False)
class _ImputedGrid:
    """The equations on one grid for N images: a symmetric matrix that joins every position to its 8 neighbours.

    Args:
        unknown: 1 at positions with an equation, else 0: (N,1,h,w).
        step: By what a sweep multiplies the residual, the damped inverse of the matrix's diagonal: (N,1,h,w).
        weights: The matrix by neighbour, in the order of AROUND, 9 of (N,1,h,w). On the finest grid, where these are
            the same everywhere, it is None.
        centre: On the finest grid 12 D + 4, (N,1,h,w): the matrix is 12 (D - W), and `_spread`, which adds up the
            neighbours, counts a pixel itself with the weight 4.
    """

    unknown: Tensor
    step: Tensor
    weights: tuple[Tensor, ...] | None = None
    centre: Tensor | None = None

    @classmethod
    def finest(cls, removed: Tensor) -> "_ImputedGrid":
        """The equations of removed pixels, 1 where a pixel is removed, else 0: (N,1,H,W)."""
        centre = _spread(torch.ones_like(removed))
        damping = 1 if min(removed.shape[2:]) > 1 else DAMPING  # in a single row the largest eigenvalue is 2, not 4/3
        return cls(removed, damping * removed / (centre - 4).clamp(min=1), centre=centre)

    def times(self, values: Tensor) -> Tensor:
        """The matrix times values that are 0 where nothing is unknown: (N,C,h,w) -> (N,C,h,w)."""
        if self.centre is not None:
            return (self.centre * values).sub_(_spread(values)).mul_(self.unknown)
        assert self.weights is not None
        height, width = values.shape[2:]
        padded = F.pad(values, (1, 1, 1, 1))
        shifted = (padded[..., 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in AROUND)
        found = torch.zeros_like(values)
        for weight, other in zip(self.weights, shifted, strict=True):
            found += weight * other
        return found

    def coarser(self) -> "_ImputedGrid":
        """The equations of every second row and column: P' A P, where P interpolates linearly and leaves out what is
        known.

        A coarse position meets only its 8 neighbours, so those of every third row and column can be probed together: 9
        products with the matrix give all weights.
        """
        height, width = self.unknown.shape[2:]
        rows, columns = ((torch.arange((size + 1) // 2, device=self.unknown.device)) for size in (height, width))
        group = 3 * (rows % 3)[:, None] + columns % 3  # (h,w), 0 to 8
        probes = (group == torch.arange(9, device=group.device)[:, None, None]).to(self.unknown)[None]
        answers = _coarse(self.times(_fine(probes, height, width) * self.unknown))  # (N,9,h,w)
        weights = []
        for y, x in AROUND:
            beside, below = rows[:, None] + y, columns + x
            inside = (beside >= 0) & (beside < len(rows)) & (below >= 0) & (below < len(columns))
            asked = (3 * (beside % 3) + below % 3).expand(len(answers), 1, -1, -1)
            weights.append(answers.gather(1, asked) * inside)
        diagonal = weights[AROUND.index((0, 0))]
        unknown = (diagonal > 0).to(diagonal)
        return _ImputedGrid(unknown, DAMPING * unknown / torch.where(diagonal > 0, diagonal, 1), tuple(weights))

    def rows(self, kept: Tensor) -> "_ImputedGrid":
        """The equations of some of the images, bool (N,)."""
        weights = None if self.weights is None else tuple(weight[kept] for weight in self.weights)
        centre = None if self.centre is None else self.centre[kept]
        return _ImputedGrid(self.unknown[kept], self.step[kept], weights, centre)


def _filled(images: Tensor, removed: Tensor) -> Tensor:
    """`impute` for images of which some pixels are removed and some are not: -> (N,C,H,W) float64."""
    known = (~removed)[:, None]
    values = images.double()
    shown = torch.where(known, values, 0).flatten(0, 1).flatten(1)
    counts = known.flatten(1).sum(dim=1)[:, None]
    mean = (row_sums(shown).view(images.shape[:2]) / counts)[..., None, None]
    centred = torch.where(known, values - mean, 0)  # values around 0 lose fewer digits
    limit = (IMPUTED_ERROR * centred.flatten(1).abs().amax(dim=1)).float()
    exact = _ImputedGrid.finest(removed[:, None].double())
    grids = [_ImputedGrid.finest(removed[:, None].float())]
    while max(grids[-1].unknown.shape[2:]) > COARSEST:
        grids.append(grids[-1].coarser())
    right = _spread(centred).mul_(exact.unknown)
    found = _conjugate_gradients(grids, right.float(), limit).double()
    for _ in range(ROUNDS - 1):
        found += _conjugate_gradients(grids, (right - exact.times(found)).float(), limit)
    return torch.where(known, values, found + mean)


def _conjugate_gradients(grids: Sequence[_ImputedGrid], right: Tensor, limit: Tensor) -> Tensor:
    """Solve the equations of the finest grid up to an estimated error of `limit`: (N,C,H,W), (N,) -> (N,C,H,W).

    The V-cycle estimates the error from the residual. An image whose error is below its limit takes it as its last
    step, and the steps go on with the others.
    """
    result = torch.zeros_like(right)
    active = torch.arange(len(right), device=right.device)
    found, residual, direction, energy = result, right, torch.zeros_like(right), right.new_ones(len(right))
    for _ in range(MOST_STEPS):
        error = _v_cycle(grids, residual)
        going = error.flatten(1).abs().amax(dim=1) > limit
        if not bool(going.all()):
            result[active[~going]] = found[~going] + error[~going]
            if not bool(going.any()):
                return result
            active, limit, found, residual, direction, energy, error = (
                state[going] for state in (active, limit, found, residual, direction, energy, error)
            )
            grids = [grid.rows(going) for grid in grids]
        before, energy = energy, row_sums((residual * error).flatten(1))
        direction = error + (energy / before)[:, None, None, None] * direction
        image = grids[0].times(direction)
        step = (energy / row_sums((direction * image).flatten(1)))[:, None, None, None]
        found = found + step * direction
        residual = residual - step * image
    result[active] = found
    return result


def _v_cycle(grids: Sequence[_ImputedGrid], right: Tensor) -> Tensor:
    """An approximate solution: one sweep of Jacobi, a correction from the coarser grid, another sweep.

    Shapes: (N,C,h,w) -> (N,C,h,w). On the finest grid one sweep takes away at least 2/3 of what a coarser grid cannot
    show, since the eigenvalues of (D - W) / D lie between 2/3 and 4/3 there.
    """
    grid = grids[0]
    values = right * grid.step
    if len(grids) == 1:
        for _ in range(SWEEPS):
            values += (right - grid.times(values)) * grid.step
        return values
    coarse = _v_cycle(grids[1:], _coarse(right - grid.times(values)))
    values += _fine(coarse, *right.shape[2:]).mul_(grid.unknown)
    values += (right - grid.times(values)).mul_(grid.step)
    return values


def _spread(values: Tensor) -> Tensor:
    """Weighted sums over 3x3 pixels, weights [1,2,1] x [1,2,1], zeros around the border: (N,C,h,w) -> (N,C,h,w)."""
    values = F.pad(values, (1, 1, 1, 1))
    values = values[..., 1:, :] + values[..., :-1, :]
    values = values[..., 1:, :] + values[..., :-1, :]
    values = values[..., 1:] + values[..., :-1]
    return values[..., 1:] + values[..., :-1]


def _fine(values: Tensor, height: int, width: int) -> Tensor:
    """Interpolate linearly between every second row and column; the last ones are repeated: (...,h,w) -> (...,H,W)."""
    for axis, size in ((-1, width), (-2, height)):
        shape = list(values.shape)
        shape[axis] = size
        found, between = values.new_empty(shape), values.shape[axis] - 1
        even, odd = _halves(found, axis)
        even.copy_(values)
        middle = values.narrow(axis, 0, between) + values.narrow(axis, 1, between)
        odd.narrow(axis, 0, between).copy_(middle.mul_(0.5))
        if size % 2 == 0:
            odd.narrow(axis, between, 1).copy_(values.narrow(axis, between, 1))
        values = found
    return values


def _coarse(values: Tensor) -> Tensor:
    """The transpose of `_fine`: (...,H,W) -> (...,h,w)."""
    for axis in (-2, -1):
        size = values.shape[axis]
        even, odd = _halves(values, axis)
        found, between = even.clone(), even.shape[axis] - 1
        middle = odd.narrow(axis, 0, between) * 0.5
        found.narrow(axis, 0, between).add_(middle)
        found.narrow(axis, 1, between).add_(middle)
        if size % 2 == 0:
            found.narrow(axis, between, 1).add_(odd.narrow(axis, between, 1))
        values = found
    return values


def _halves(values: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Every second row (axis -2) or column (axis -1), from the first one and from the second one."""
    if axis == -1:
        return values[..., ::2], values[..., 1::2]
    return values[..., ::2, :], values[..., 1::2, :]
