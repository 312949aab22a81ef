"""The thresholds at which maps are cut, and the choice of one of them."""

from torch import Tensor

from gamlens.errors import GamlensError

THRESHOLDS: tuple[float, ...] = tuple(round(0.05 * i, 2) for i in range(1, 20))


def best_threshold(grid: Tensor) -> int:
    """The threshold with the highest mean over the items that have a ground truth, the first on a tie: (M,T) -> index.

    The grid holds IoUs, or hits (`box_hits`); items without ground truth are NaN.
    """
    if grid.ndim != 2 or grid.shape[1] == 0:
        raise GamlensError(f"A grid of IoUs has the shape (N,T), found {tuple(grid.shape)}.")
    used = grid[~grid.isnan().any(dim=1)].double()
    if len(used) == 0:
        raise GamlensError(f"No item of the {len(grid)} has a ground truth: there is nothing to choose a threshold on.")
    return int(used.mean(dim=0).argmax())
