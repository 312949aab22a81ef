"""RSZ, NRM and the mean over blocks (GAM paper, Eqs. 1 and 2). Nothing that is given is written to."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError, GamlensWarning, near

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda stack: stack.mean(dim=0),
    "max": lambda stack: stack.amax(dim=0),
    "product": lambda stack: stack.prod(dim=0),
}
Fusion = str | Sequence[float]


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bicubic to `size` (height, width), align_corners=False, no antialias: (B,h,w) -> (B,H,W)."""
    return F.interpolate(maps[:, None], size=size, mode="bicubic", align_corners=False)[:, 0]


def min_max(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Each map brought to [0,1] by its own minimum and maximum: (B,H,W) -> (B,H,W), (B,) flat or broken.

    A flat map (max = min, to rounding) or one with a value that is not finite becomes zeros and is flagged.
    """
    low, high = (values[:, None] for values in maps.flatten(1).aminmax(dim=1, keepdim=True))
    span = high - low
    noise = torch.maximum(high, -low) * (16 * torch.finfo(maps.dtype).eps)  # of the larger of |high| and |low|
    flat = ~((span > noise) & (span < math.inf))
    return (maps - low).div_(span.masked_fill(flat, 1)).clamp_(0, 1).masked_fill_(flat, 0), flat[:, 0, 0]


def normalize(maps: Tensor) -> Tensor:
    """Per-map min-max to [0,1]: (B,H,W) -> (B,H,W). A flat or broken map becomes zeros, with a warning.

    >>> normalize(torch.tensor([[[1.0, 2.0], [3.0, 5.0]]]))
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]]])
    """
    result, flat = min_max(maps)
    if bool(flat.any()):
        rows = ", ".join(map(str, flat.nonzero()[:, 0].tolist()))
        warnings.warn(f"Flat or non-finite map, set to zeros: row {rows}.", GamlensWarning, stacklevel=2)
    return result


def is_named(how: Fusion) -> bool:
    """Whether a fusion is one of FUSIONS, not weights."""
    return isinstance(how, str) and how in FUSIONS


def fuse(maps: Sequence[Tensor], how: Fusion = "mean") -> Tensor:
    """One map from those of several blocks, not normalised again: [(B,H,W)] -> (B,H,W).

    `how` is "mean" (Eq. 2), "max", "product", or one weight a map, in the same order (a weighted mean).

    >>> fuse([torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 1.0]]])])
    tensor([[[0.5000, 1.0000]]])
    """
    if not maps:
        raise GamlensError("There is no map to fuse: give at least one.")
    stack = torch.stack(list(maps))
    if isinstance(how, str):
        if how not in FUSIONS:
            raise GamlensError(f"There is no fusion {how!r}: {near(how, FUSIONS)} Or give one weight a block.")
        return FUSIONS[how](stack) if len(maps) > 1 else stack[0]
    try:
        weights = torch.as_tensor([float(weight) for weight in how], dtype=stack.dtype, device=stack.device)
    except (TypeError, ValueError) as error:
        raise GamlensError(
            f"A fusion is {', '.join(FUSIONS)}, or one weight a block, {len(maps)} blocks; found {how!r}."
        ) from error
    usable = weights.shape == (len(maps),) and bool((weights >= 0).all() & weights.isfinite().all())
    if not usable or not bool(weights.sum() > 0):
        raise GamlensError(
            f"fuse needs one weight a block, none negative and not all zero: {len(maps)} blocks, weights {list(how)}."
        )
    return torch.einsum("n,nbhw->bhw", weights / weights.sum(), stack)
