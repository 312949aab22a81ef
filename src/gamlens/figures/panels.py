"""Panels and legend keys that several figures share, and drawings of Eq. 4.

Eq. 4 splits Grad-CAM's sum over channels into channels with positive (P) and with negative (N) weights. Pixels with
|N| >= P are hidden: Grad-CAM sets them to zero.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from gamlens import fuse, render
from gamlens.explanation import Explanation
from gamlens.figures.request import Example
from gamlens.inputs.frame import Frame
from gamlens.render import RGB, LineKey, Panel, ScaleKey
from gamlens.trace import Evidence

PREDICTED_INK, TRUE_INK = (64, 224, 255), (255, 255, 255)
SALIENCY_KEY = ScaleKey("Saliency", over=True)


def photo(explanation: Explanation, row: int = 0) -> Panel:
    """A panel of the image of a row, without a map."""
    return Panel(explanation.image(row), alt="the photo")


def heat(explanation: Explanation, row: int = 0, *, block: str | None = None, **words: Any) -> Panel:
    """A panel of a row's map over its photo. `words` are further fields of Panel, such as caption and mark."""
    return Panel(explanation.overlay(row, block=block), alt=f"{explanation.names[row]}: saliency", **words)


def frame_of(explanation: Explanation, row: int = 0) -> Frame:
    """Where the model's input lies in the image of a row."""
    return explanation.frames[int(explanation.index[row])]


def scaled_frame(frame: Frame, image: Image.Image) -> Frame:
    """The frame of `image`, a smaller copy of a photo, computed from the photo's own frame."""
    return frame.scaled((image.height, image.width))


def full_size(values: Tensor, frame: Frame) -> NDArray[np.float32]:
    """Resize values (h,w) of a block to the input, clamp them to [0,1] and place them in the image: (H,W)."""
    wide = fuse.resize(values[None], frame.size)[0].clamp(0, 1)
    return np.asarray(frame.map(wide.cpu()).numpy(), dtype=np.float32)


def plain_map(values: Tensor, frame: Frame, top: float | None = None) -> Panel:
    """A panel of a block's values (h,w) as colours, without the photo. `top` is the value with the brightest colour."""
    most = float(values.max()) if top is None else top
    return Panel(Image.fromarray(render.colorize(full_size(values / max(most, 1e-30), frame))))


def inside(explanation: Explanation, example: Example, row: int = 0, *, block: str | None = None) -> str:
    """A caption that says how much of a row's map (or its block's) lies in the example's true boxes, if it has any."""
    if not example.boxes:
        return ""
    frame = frame_of(explanation, row)
    height, width = example.size or frame.original
    scale = torch.tensor([frame.original[1] / width, frame.original[0] / height]).repeat(2)
    boxes = frame.boxes_in(torch.tensor(example.boxes) * scale)
    maps = explanation.maps if block is None else explanation.blocks[block]
    return f"{100 * share_in_boxes(maps[row].cpu(), boxes):.0f} % in box"


def share_in_boxes(map: Tensor, boxes: Tensor) -> float:
    """The sum of a map (H,W) over the pixels whose centre lies in a box, as a share of its whole sum.

    Boxes are (K,4), x0,y0,x1,y1 in pixels of the map, half-open. An empty map gives 0.

    >>> share_in_boxes(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0, 2.0]]))
    0.75
    """
    x, y = (torch.arange(side) + 0.5 for side in (map.shape[1], map.shape[0]))
    x0, y0, x1, y1 = boxes[:, :, None].unbind(1)
    across, down = (x >= x0) & (x < x1), (y >= y0) & (y < y1)
    covered = (down[:, :, None] & across[:, None, :]).any(dim=0)
    total = float(map.double().sum())
    return float(map.double()[covered].sum()) / total if total else 0.0


def is_empty(explanation: Explanation, row: int = 0) -> bool:
    """Whether a map is all zeros. Normalisation gives zeros for a raw map that is flat or not finite."""
    return float(explanation.maps[row].max()) == 0


def place_keys(predicted: str, *, truth: bool, dashed: bool) -> tuple[ScaleKey | LineKey, ...]:
    """Legend keys: the colour scale, the line of predictions and, with `truth`, the line of the ground truth."""
    lines = (SALIENCY_KEY, LineKey(predicted, PREDICTED_INK))
    return (*lines, LineKey("ground truth", TRUE_INK, dashed=dashed)) if truth else lines


class EvidenceDrawing(NamedTuple):
    """Pictures of P, |N| and the hidden pixels, and the maps (H,W) of P and |N|, scaled to [0,1] by one factor."""

    positive: Image.Image
    negative: Image.Image
    hidden: Image.Image
    maps: tuple[NDArray[Any], NDArray[Any]]


def draw_evidence(
    evidence: Evidence,
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
        evidence: The result of `trace.evidence(block)`: P, N and the hidden pixels, (R,h,w) each.
        image: The photo of the row.
        frame: Where the model's input lies in that photo, whose size is `frame.original`.
        row: Which of the R rows is drawn.
        opacity: How strongly P and |N| cover the photo; None draws their colours without the photo.
        cmaps: The colour maps of P and |N|.
        outline: The colour of the line around hidden pixels, which are dimmed as well.
        thick: The width of that line, as a multiple of the default width.
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
