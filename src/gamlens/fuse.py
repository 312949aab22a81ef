"""Turn the raw maps of several blocks into one saliency map: resize, normalise, fuse (GAM paper, Eqs. 1 and 2).

All of it runs in float32 or float64, and no input tensor is modified. The steps are public functions:

    maps = [normalize(resize(raw, (224, 224))) for raw in raw_maps]   # (B,h,w) each -> (B,224,224) in [0,1]
    fused = fuse(maps, "mean")                                        # (B,224,224)
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
from gamlens.lattice import Lattice

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = Registry(
    "fusion",
    {
        "mean": partial(torch.mean, dim=0),
        "max": partial(torch.amax, dim=0),
        "product": partial(torch.prod, dim=0),
    },
    hint=" In Python a list with one weight per block may be given, too.",
)
Fusion = str | Sequence[float]
MAP_SIGNS = ("positive", "negative", "both")  # what raises a score, what lowers it, and the first minus the second


class BlockMaps(NamedTuple):
    """The maps of n blocks for R rows (one row per image and target).

    Attributes:
        blocks: The normalised map of each block, (n,R,H,W) in [0,1].
        fused: The map over all blocks, (R,H,W).
        spans: Maximum minus minimum of each map before it was normalised, (n,R). A flat map has an infinite span, a map
            with a value that is not finite has an infinite or NaN span; so a map is good where span < inf.
    """

    blocks: Tensor
    fused: Tensor
    spans: Tensor

    def any_flat(self) -> Tensor:
        """Tell whether any map is flat or not finite: a boolean tensor () on the device, so that nothing waits."""
        return ~(self.spans < math.inf).all()


Lattices = Sequence[Lattice | None]
MapMaker = Callable[[Callable[..., Tensor], Sequence[Sequence[Tensor]], tuple[int, int], Fusion, Lattices], BlockMaps]


def make_maps(
    formula: Callable[..., Tensor],
    inputs: Sequence[Sequence[Tensor]],
    size: tuple[int, int],
    how: Fusion,
    lattices: Lattices = (),
) -> BlockMaps:
    """Make maps from activations and gradients: apply the method's formula, resize, normalise, fuse.

    Args:
        formula: The function of a method in METHODS. It takes the tensors of one block, usually activation and
            gradient (R,C,h,w), and returns a raw map (R,h,w).
        inputs: For each block, the tensors that `formula` takes. Half precision becomes float32 first.
        size: Height and width (H,W) of the model's input, which the maps are resized to.
        how: How the maps of the blocks are fused, as in `fuse`.
        lattices: For each block, the positions that its map is made of; None for all. Empty if no block has a lattice.

    Returns:
        The maps of the blocks, the fused map, and the spans from which flat maps are known.
    """
    raw = []
    for tensors, lattice in zip(inputs, lattices or [None] * len(inputs), strict=True):
        if lattice is None:
            raw.append(resize(formula(*map(at_least_float32, tensors)), size))
        else:
            raw.append(lattice_map(formula, tensors, size, lattice))
    blocks, spans = _normalised((torch.cat(raw) if len(raw) > 1 else raw[0]).flatten(1))
    blocks = blocks.view(len(raw), -1, *size)
    return BlockMaps(blocks, fuse(blocks, how), spans.view(len(raw), -1))


def lattice_map(
    formula: Callable[..., Tensor], tensors: Sequence[Tensor], size: tuple[int, int], lattice: Lattice
) -> Tensor:
    """The map of a block of which the network reads a lattice only, resized and not yet normalised: (R,H,W).

    The formula is given only the positions that the network reads, as if these were the whole block.

    Args:
        formula: The function of a method in METHODS.
        tensors: What it takes: activation and gradient (R,C,h,w), or other tensors, such as the scores (R,).
        size: The height and width (H,W) of the result.
        lattice: The positions that are read.
    """
    read = [lattice.select(tensor) if tensor.ndim == 4 else tensor for tensor in tensors]
    height, width = tensors[0].shape[-2:]
    return lattice.resize(formula(*map(at_least_float32, read)), (height, width), size)


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps bicubically, with align_corners=False and without antialiasing.

    Args:
        maps: (B,h,w).
        size: The new height and width (H,W).

    Returns:
        (B,H,W). Bicubic interpolation may overshoot the range of `maps`, so normalise afterwards.

    >>> resize(torch.rand(2, 7, 7), (224, 224)).shape
    torch.Size([2, 224, 224])
    """
    return F.interpolate(maps[:, None], size=size, mode="bicubic", align_corners=False)[:, 0]


def min_max(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each map to [0,1] by its own minimum and maximum, without a warning for flat maps.

    Args:
        maps: (B,H,W).

    Returns:
        The scaled maps (B,H,W), and for each map whether it was bad (B,): flat (maximum and minimum are equal up to
        rounding) or with a NaN or infinite value. A bad map becomes zeros.

    >>> min_max(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]]))
    (tensor([[[0., 1.]],
    <BLANKLINE>
            [[0., 0.]]]), tensor([False,  True]))
    """
    result, spans = _normalised(maps.flatten(1))
    return result.view_as(maps), ~(spans[:, 0] < math.inf)


def _normalised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Scale maps (B,HW) to [0,1] and return them with their spans (B,1).

    With m = min(map) and M = max(map), the result is (map - m) / (M - m). A difference M - m of at most 16 machine
    epsilons of max(|m|, |M|) is rounding noise: the map is flat, its span is set to infinity, and the division gives
    zeros. A NaN or infinite value makes the span NaN or infinite; the NaNs in the result then become zeros.
    """
    low, high = maps.aminmax(dim=1, keepdim=True)
    span = high - low
    noise = torch.maximum(high, -low).mul_(16 * torch.finfo(maps.dtype).eps)  # max(|high|, |low|)
    span.masked_fill_(span <= noise, math.inf)
    return (maps - low).div_(span).nan_to_num_(nan=0.0), span


def normalize(maps: Tensor) -> Tensor:
    """Scale each map to [0,1] by its own minimum and maximum.

    Args:
        maps: (B,H,W).

    Returns:
        (B,H,W). A map that is flat, or has a NaN or infinite value, becomes zeros, and a GamlensWarning names its row.

    >>> normalize(torch.tensor([[[1.0, 2.0], [3.0, 5.0]]]))
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]]])
    """
    result, flat = min_max(maps)
    if bool(flat.any()):
        rows = ", ".join(map(str, flat.nonzero()[:, 0].tolist()))
        warn(f"A map is flat or has values that are not finite, and was set to zeros: row {rows}.")
    return result


def one_scale(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Divide what raises a score and what lowers it by one number per row, the largest value of both.

    So the two maps can be compared and subtracted, and zero stays zero.

    Args:
        positive, negative: (R,H,W) each. Values below zero, which a bicubic resize may give, count as zero.

    Returns:
        The maps in [0,1], (R,H,W) each, and the scales (R,): the value that 1 stands for. Where both maps are zero
        everywhere, or have a value that is not finite, they become zeros and the scale is infinite.

    >>> one_scale(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 4.0]]]))
    (tensor([[[0.2500, 0.0000]]]), tensor([[[0., 1.]]]), tensor([4.]))
    """
    both = torch.stack([positive, negative]).clamp_(min=0)
    scales = both.amax(dim=(0, 2, 3))
    scales.masked_fill_(~(scales > 0), math.inf)
    up, down = both.div_(scales[:, None, None]).nan_to_num_(nan=0.0).unbind()
    return up, down, scales


def with_sign(positive: Tensor, negative: Tensor, sign: str) -> Tensor:
    """The map that a sign of MAP_SIGNS stands for, of two maps of the same shape on one scale."""
    return positive - negative if sign == "both" else positive if sign == "positive" else negative


def check_sign(sign: str | None) -> None:
    """Raise a GamlensError unless `sign` is None or one of MAP_SIGNS."""
    if sign is not None and sign not in MAP_SIGNS:
        raise GamlensError(
            f"sign={sign!r}: give 'positive' (what raises the score), 'negative' (what lowers it), 'both' (the first "
            "minus the second), or None for maps as the method makes them."
        )


def is_named(how: Fusion) -> bool:
    """Tell whether a fusion is a name of FUSIONS rather than a list of weights."""
    return isinstance(how, str) and how in FUSIONS


def fuse(maps: Sequence[Tensor] | Tensor, how: Fusion = "mean") -> Tensor:
    """Combine the maps of several blocks into one, pixel by pixel. The result is not normalised again.

    Args:
        maps: n maps (B,H,W) as a list, or one tensor (n,B,H,W).
        how: "mean" (Eq. 2 of the paper), "max", "product", or a list of n weights for a weighted mean. Weights are not
            negative, need not sum to 1, and stand in the order of `maps`.

    Returns:
        (B,H,W).

    >>> fuse([torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 1.0]]])])
    tensor([[[0.5000, 1.0000]]])
    >>> fuse([torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 1.0]]])], [3, 1])
    tensor([[[0.2500, 1.0000]]])
    """
    stack = maps if isinstance(maps, Tensor) else torch.stack(list(maps)) if maps else torch.empty(0)
    if stack.shape[0] == 0:
        raise GamlensError("There is no map to fuse: give at least one.")
    if isinstance(how, str):
        combine = FUSIONS[how]
        return combine(stack) if stack.shape[0] > 1 else stack[0]
    return _weighted_mean(stack, how)


def _weighted_mean(stack: Tensor, weights: Sequence[float]) -> Tensor:
    """Average maps (n,B,H,W) with n weights. The weights are checked on the CPU, so that nothing waits for a GPU."""
    try:
        found = torch.as_tensor([float(weight) for weight in weights], dtype=stack.dtype)
    except (TypeError, ValueError) as error:
        raise GamlensError(
            f"fuse must be one of {', '.join(FUSIONS)}, or a list of numbers with one weight per block; there are "
            f"{len(stack)} blocks, and {weights!r} was given."
        ) from error
    usable = found.shape == (len(stack),) and bool((found >= 0).all() & found.isfinite().all())
    if not usable or not bool(found.sum() > 0):
        raise GamlensError(
            f"fuse needs one weight per block, each finite and not negative, and not all zero; there are {len(stack)} "
            f"blocks, and the weights {list(weights)} were given."
        )
    return torch.einsum("n,nbhw->bhw", (found / found.sum()).to(stack.device), stack)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; float32 and float64 tensors are returned as they are."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off on the device of `like`.

    Scores and maps are computed inside it, so that an autocast context of the caller cannot lower their precision.
    """
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
