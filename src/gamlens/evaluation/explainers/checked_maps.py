"""Check the maps that an explainer of others returned, and bring them to the form that all maps have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError, reworded
from gamlens.fuse import at_least_float32, min_max


def checked_maps(found: Any, count: int, size: tuple[int, int], *, name: str, device: torch.device) -> Tensor:
    """Turn what an explainer returned into maps (B,H,W) of float32 in [0,1], each scaled by its minimum and maximum.

    Maps of another size are resized bilinearly. A flat map becomes zeros.

    Args:
        found: A tensor, an array, or a list of them: (B,h,w) or (B,1,h,w).
        count: The number of images, B.
        size: Height and width (H,W) of the model's input.
        name: What the explainer is called in errors.
        device: The device that the maps shall be on.
    """
    wanted = f"maps of the shape ({count}, {size[0]}, {size[1]}), one per image"
    if found is None:
        raise GamlensError(f"{name!r} returned None: let it return {wanted}.")
    with reworded(f"{name!r} returned {type(found).__name__}, which cannot be read as {wanted}"):
        maps = _as_tensor(found).detach()
        if maps.is_complex():
            raise TypeError("its numbers are complex")
    shape = tuple(maps.shape)
    if maps.ndim == 4 and maps.shape[1] == 1:
        maps = maps[:, 0]
    if maps.ndim != 3 or len(maps) != count or maps.numel() == 0:
        raise GamlensError(f"{name!r} returned the shape {shape}: let it return {wanted}.")
    maps = at_least_float32(maps.to(device))
    if not bool(maps.isfinite().all()):
        rows = (~maps.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0].tolist()
        raise GamlensError(
            f"{name!r} returned maps with NaN or infinite values, for the images {', '.join(map(str, rows))} of its "
            "batch (counted from 0): it may divide by zero, or not fit this network."
        )
    if maps.shape[1:] != size:
        smaller = size[0] < maps.shape[1] or size[1] < maps.shape[2]
        maps = F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False, antialias=smaller)[:, 0]
    return min_max(maps)[0].float()


def _as_tensor(found: Any) -> Tensor:
    if isinstance(found, Tensor):
        return found
    if isinstance(found, list | tuple) and any(isinstance(item, Tensor) for item in found):
        return torch.stack([torch.as_tensor(item) for item in found])
    return torch.as_tensor(np.asarray(found))


def size_of(batch: Tensor) -> tuple[int, int]:
    """Height and width of the images of a batch."""
    return int(batch.shape[-2]), int(batch.shape[-1])
