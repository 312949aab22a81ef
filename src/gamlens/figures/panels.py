"""The panels and keys that several figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gamlens import fuse, render
from gamlens.explanation import Explanation
from gamlens.inputs.frame import Frame
from gamlens.render import LineKey, Panel, ScaleKey

PREDICTED_INK, TRUE_INK = (64, 224, 255), (255, 255, 255)
SALIENCY_KEY = ScaleKey("Saliency", over=True)


def photo(explanation: Explanation, row: int = 0) -> Panel:
    """The image of a row."""
    return Panel(explanation.image(row), alt="the photo")


def heat(explanation: Explanation, row: int = 0, *, block: str | None = None, **words: Any) -> Panel:
    """A map over its photo; `words` are further fields of the Panel."""
    return Panel(explanation.overlay(row, block=block), alt=f"{explanation.names[row]}: saliency", **words)


def frame_of(explanation: Explanation, row: int = 0) -> Frame:
    """Where the model's input lies in the image of a row."""
    return explanation.frames[int(explanation.index[row])]


def scaled_frame(frame: Frame, image: Image.Image) -> Frame:
    """The frame of a smaller copy of the photo, given that of the photo itself."""
    across, down = image.width / frame.original[1], image.height / frame.original[0]
    x0, y0, x1, y1 = frame.window
    window = (x0 * across, y0 * down, x1 * across, y1 * down)
    return replace(frame, original=(image.height, image.width), window=window)


def full_size(values: Tensor, frame: Frame) -> NDArray[np.float32]:
    """Values (h,w) at a block's size, cut to [0,1], as a map (H,W) at the size of the image."""
    wide = fuse.resize(values[None], frame.size)[0].clamp(0, 1)
    return np.asarray(frame.map(wide.cpu()).numpy(), dtype=np.float32)


def plain_map(values: Tensor, top: float, frame: Frame) -> Panel:
    """Values (h,w) at a block's size, divided by `top`, as colours without the photo."""
    return Panel(Image.fromarray(render.colorize(full_size(values / max(top, 1e-30), frame))))


def is_empty(explanation: Explanation, row: int = 0) -> bool:
    """Whether a map has nothing in it: it was flat, or not finite."""
    return float(explanation.maps[row].max()) == 0


def aspects(panels: Sequence[Panel]) -> tuple[float, ...]:
    """Width over height of each picture: columns this wide hold pictures of one height."""
    return tuple(panel.image.width / panel.image.height for panel in panels)


def place_keys(predicted: str, *, truth: bool, dashed: bool) -> tuple[ScaleKey | LineKey, ...]:
    """The colour scale, the line of predicted places and, where there is ground truth, the line of true ones."""
    lines = (SALIENCY_KEY, LineKey(predicted, PREDICTED_INK))
    return (*lines, LineKey("ground truth", TRUE_INK, dashed=dashed)) if truth else lines
