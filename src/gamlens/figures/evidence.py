"""Eq. 4 as pictures: what Grad-CAM adds up (P), what it takes away (N), and the pixels it therefore hides."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from gamlens import render
from gamlens.figures.panels import full_size
from gamlens.inputs.frame import Frame
from gamlens.render import RGB


class EvidenceDrawing(NamedTuple):
    """Pictures of P, of |N| and of the hidden pixels, and the maps (H,W) of P and |N| in [0,1] on one scale."""

    positive: Image.Image
    negative: Image.Image
    hidden: Image.Image
    maps: tuple[NDArray[Any], NDArray[Any]]


def draw_evidence(
    evidence: tuple[Tensor, Tensor, Tensor],
    image: Image.Image,
    frame: Frame,
    *,
    row: int = 0,
    opacity: float | None = 0.7,
    cmaps: tuple[str, str] = ("ember", "ocean"),
    outline: RGB = (255, 255, 255),
    thick: float = 1.0,
) -> EvidenceDrawing:
    """Draw P, |N| and the hidden pixels of Eq. 4 for one row.

    Args:
        evidence: What `trace.evidence(block)` gives: P, N and the hidden pixels, (R,h,w) each.
        image: The photo of the row.
        frame: Where the model's input lies in that photo, whose size is `frame.original`.
        row: Which of the R rows is drawn.
        opacity: How strongly P and |N| cover the photo; None draws their colours without the photo.
        cmaps: The colour maps of P and |N|.
        outline: The colour of the line around hidden pixels, which are dimmed as well.
        thick: The width of that line, in units of the usual one.
    """
    positive, negative, hidden = (part[row] for part in evidence)
    top = torch.maximum(positive.max(), negative.abs().max()).clamp(min=1e-30)
    maps = full_size(positive / top, frame), full_size(negative.abs() / top, frame)
    adds, takes = (
        Image.fromarray(render.colorize(values, cmap=cmap))
        if opacity is None
        else render.overlay(image, values, opacity=opacity, cmap=cmap)
        for values, cmap in zip(maps, cmaps, strict=True)
    )
    squares = F.interpolate(hidden[None, None].float(), size=frame.size, mode="nearest")[0, 0]
    mask = frame.map(squares.cpu()).numpy() > 0.5
    pixels = np.asarray(image)
    dimmed = np.where(mask[:, :, None], pixels // 4, pixels).astype(np.uint8)
    return EvidenceDrawing(adds, takes, render.outlined(dimmed, mask, colour=outline, thick=thick), maps)


def hides_most(hidden_share: Tensor, row: int = 0) -> bool:
    """Whether Grad-CAM hides more than half of the positive evidence: `hidden_share` (R,) of `trace.evidence()`."""
    return bool(hidden_share[row] > 0.5)
