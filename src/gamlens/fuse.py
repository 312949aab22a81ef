"""Map arithmetic: resize, normalise and fuse over blocks (GAM paper, Eqs. 1 and 2), in float32 or wider.

Nothing that is given is written to.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError, Registry, warn

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = Registry(
    "fusion",
    {
        "mean": partial(torch.mean, dim=0),
        "max": partial(torch.amax, dim=0),
        "product": partial(torch.prod, dim=0),
    },
    hint=" Or give one weight per block.",
)
Fusion = str | Sequence[float]


class BlockMaps(NamedTuple):
    """The maps of n blocks, (n,R,H,W) in [0,1], the fused one (R,H,W), and the spans (n,R) that blocks had before.

    The span of a map is its maximum less its minimum, and infinite or NaN for a map that is flat or not finite.
    """

    blocks: Tensor
    fused: Tensor
    spans: Tensor

    def any_flat(self) -> Tensor:
        """Whether there is a flat map, as a boolean on the device."""
        return ~(self.spans < math.inf).all()


MapMaker = Callable[[Callable[..., Tensor], Sequence[Sequence[Tensor]], tuple[int, int], Fusion], BlockMaps]


def make_maps(
    formula: Callable[..., Tensor], inputs: Sequence[Sequence[Tensor]], size: tuple[int, int], how: Fusion
) -> BlockMaps:
    """From activations and gradients to maps: the method's formula, resize, normalise, fuse.

    Args:
        formula: A method of METHODS: tensors of one block to a map (R,h,w).
        inputs: What the formula takes, for each block. It is brought to float32 or wider first.
        size: The model's input, (H,W).
        how: How the maps of the blocks are fused.
    """
    raw = []
    for tensors in inputs:
        raw.append(resize(formula(*map(at_least_float32, tensors)), size))
    blocks, spans = _normalised((torch.cat(raw) if len(raw) > 1 else raw[0]).flatten(1))
    blocks = blocks.view(len(raw), -1, *size)
    return BlockMaps(blocks, fuse(blocks, how), spans.view(len(raw), -1))


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bicubic to `size` (height, width), align_corners=False, no antialias: (B,h,w) -> (B,H,W)."""
    return F.interpolate(maps[:, None], size=size, mode="bicubic", align_corners=False)[:, 0]


def min_max(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Each map brought to [0,1] by its own minimum and maximum: (B,H,W) -> (B,H,W), and (B,) whether it is flat.

    A flat map (maximum = minimum, to rounding) or one with a value that is not finite becomes zeros.
    """
    result, spans = _normalised(maps.flatten(1))
    return result.view_as(maps), ~(spans[:, 0] < math.inf)


def _normalised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Min-max of (B,HW) to [0,1], and the spans (B,1): a flat map is divided by infinity, and NaN becomes zero."""
    low, high = maps.aminmax(dim=1, keepdim=True)
    span = high - low
    noise = torch.maximum(high, -low).mul_(16 * torch.finfo(maps.dtype).eps)  # of the larger of |high| and |low|
    span.masked_fill_(span <= noise, math.inf)
    return (maps - low).div_(span).nan_to_num_(nan=0.0), span


def normalize(maps: Tensor) -> Tensor:
    """Per-map min-max to [0,1]: (B,H,W) -> (B,H,W). A flat or broken map becomes zeros, with a warning.

    >>> normalize(torch.tensor([[[1.0, 2.0], [3.0, 5.0]]]))
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]]])
    """
    result, flat = min_max(maps)
    if bool(flat.any()):
        rows = ", ".join(map(str, flat.nonzero()[:, 0].tolist()))
        warn(f"Flat or non-finite map, set to zeros: row {rows}.")
    return result


def is_named(how: Fusion) -> bool:
    """Whether a fusion is one of FUSIONS, not weights."""
    return isinstance(how, str) and how in FUSIONS


def fuse(maps: Sequence[Tensor] | Tensor, how: Fusion = "mean") -> Tensor:
    """One map from those of several blocks, not normalised again: n maps (B,H,W) -> (B,H,W).

    `how` is "mean" (Eq. 2), "max", "product", or one weight per map, in the same order (a weighted mean).

    >>> fuse([torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 1.0]]])])
    tensor([[[0.5000, 1.0000]]])
    """
    stack = maps if isinstance(maps, Tensor) else torch.stack(list(maps)) if maps else torch.empty(0)
    if stack.shape[0] == 0:
        raise GamlensError("There is no map to fuse: give at least one.")
    if isinstance(how, str):
        combine = FUSIONS[how]
        return combine(stack) if stack.shape[0] > 1 else stack[0]
    return _weighted_mean(stack, how)


def _weighted_mean(stack: Tensor, weights: Sequence[float]) -> Tensor:
    """`weights` are looked at before they go to the device, so that nothing waits for it."""
    try:
        found = torch.as_tensor([float(weight) for weight in weights], dtype=stack.dtype)
    except (TypeError, ValueError) as error:
        raise GamlensError(
            f"A fusion is {', '.join(FUSIONS)}, or one weight per block, {len(stack)} blocks; found {weights!r}."
        ) from error
    usable = found.shape == (len(stack),) and bool((found >= 0).all() & found.isfinite().all())
    if not usable or not bool(found.sum() > 0):
        raise GamlensError(
            f"fuse needs one weight per block, none negative and not all zero: {len(stack)} blocks, weights "
            f"{list(weights)}."
        )
    return torch.einsum("n,nbhw->bhw", (found / found.sum()).to(stack.device), stack)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay as they are."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """No autocast on the device of `like`, whatever surrounds the call: scores and maps keep their own precision."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
