"""Checks of the input of metrics: each raises a GamlensError that says what was found."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gamlens.errors import GamlensError


def check_maps(maps: Tensor) -> None:
    """Maps must be floats of shape (N,H,W), with at least one pixel and without NaN."""
    if maps.ndim != 3 or 0 in maps.shape[1:]:
        raise GamlensError(f"Maps must have the shape (N,H,W) with at least one pixel; found {tuple(maps.shape)}.")
    if not maps.is_floating_point():
        raise GamlensError(f"Maps must be floats; found {maps.dtype}: convert them first.")
    if bool(maps.isnan().any()):
        rows = maps.isnan().flatten(1).any(dim=1).nonzero()[:5, 0].tolist()
        raise GamlensError(
            f"Maps must not hold NaN; found it in row {', '.join(map(str, rows))}: normalise them first."
        )


def check_masks(name: str, masks: Tensor, maps: Tensor) -> None:
    """Masks must be bool and have the shape of their maps, (N,H,W)."""
    if masks.dtype != torch.bool or masks.shape != maps.shape:
        found = f"{masks.dtype} {tuple(masks.shape)}"
        raise GamlensError(f"{name} must be one bool mask per map, of shape {tuple(maps.shape)}; found {found}.")


def check_boxes(name: str, boxes: Tensor) -> None:
    """Boxes (...,4) of x0,y0,x1,y1 must be finite, with x0 <= x1 and y0 <= y1."""
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
        raise GamlensError(f"{name} must be rows of x0,y0,x1,y1; found the shape {tuple(boxes.shape)}.")
    if not bool(boxes.isfinite().all() & (boxes[..., :2] <= boxes[..., 2:]).all()):
        raise GamlensError(
            f"{name} must be finite, with x0 <= x1 and y0 <= y1; found one that is not. Is it x,y,width,height?"
        )


def check_truths(truths: Sequence[Tensor], items: int) -> None:
    """Every item must have its ground-truth boxes (K_i,4); K_i may be 0."""
    if len(truths) != items:
        raise GamlensError(
            f"Give one set of ground-truth boxes per item; found {items} items, {len(truths)} sets of boxes."
        )
    for row, boxes in enumerate(truths):
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise GamlensError(
                f"Ground-truth boxes must have the shape (K,4); found {tuple(boxes.shape)} in item {row}."
            )
    if truths:
        check_boxes("Ground-truth boxes", torch.cat([boxes.cpu().double() for boxes in truths]))


def check_scores(before: Tensor, after: Tensor) -> None:
    """Every item must have two finite scores, (N,) and (N,)."""
    if before.ndim != 1 or before.shape != after.shape:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise GamlensError(f"Scores before and after must have the same shape (N,); found {shapes}.")
    if not bool(before.isfinite().all() & after.isfinite().all()):
        raise GamlensError("Scores must be finite, found NaN or infinity: check the output of the model and the maps.")
