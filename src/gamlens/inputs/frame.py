"""Where the model's input lies in the original image: coordinates, masks and maps from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """Where the model's input lies in the original image.

    Attributes:
        original: Height and width of the original image.
        size: Height and width of the model's input.
        window: The part (x0, y0, x1, y1) of the original, in its pixels, that was stretched to `size`. A padded input
            has a window that is larger than the image.
    """

    original: Size
    size: Size
    window: tuple[float, float, float, float]

    @classmethod
    def whole(cls, original: Size, size: Size) -> Frame:
        """The frame of an input that shows the whole image."""
        return cls(original, size, (0.0, 0.0, float(original[1]), float(original[0])))

    def boxes(self, boxes: Tensor) -> Tensor:
        """(N,4) boxes x0,y0,x1,y1 in input pixels -> the same in original pixels, clipped to the image."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([(x1 - x0) / self.size[1], (y1 - y0) / self.size[0]]).repeat(2)
        return _clip(boxes * scale + boxes.new_tensor([x0, y0, x0, y0]), self.original)

    def boxes_in(self, boxes: Tensor) -> Tensor:
        """(N,4) boxes in original pixels -> the same in input pixels, clipped to what the model saw."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([self.size[1] / (x1 - x0), self.size[0] / (y1 - y0)]).repeat(2)
        return _clip((boxes - boxes.new_tensor([x0, y0, x0, y0])) * scale, self.size)

    def mask_in(self, mask: Tensor) -> Tensor:
        """(H,W) bool at the original's size -> (H,W) bool at input size, by nearest; False outside the image."""
        x0, y0, x1, y1 = self.window
        rows = y0 + (torch.arange(self.size[0]) + 0.5) * (y1 - y0) / self.size[0]
        columns = x0 + (torch.arange(self.size[1]) + 0.5) * (x1 - x0) / self.size[1]
        inside = ((rows >= 0) & (rows < len(mask)))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))[None]
        y, x = rows.long().clamp(0, len(mask) - 1), columns.long().clamp(0, mask.shape[1] - 1)
        return mask[y][:, x] & inside

    def map(self, map: Tensor) -> Tensor:
        """(H,W) at input size -> (H,W) at the original's size; zero where the model did not look."""
        x0, x1 = _pixels_of(self.window[0], self.window[2], self.original[1])
        y0, y1 = _pixels_of(self.window[1], self.window[3], self.original[0])
        part = F.interpolate(map[None, None].float(), size=(y1 - y0, x1 - x0), mode="bilinear", antialias=True)[0, 0]
        canvas = part.new_zeros(self.original)
        top, left, bottom, right = max(y0, 0), max(x0, 0), min(y1, self.original[0]), min(x1, self.original[1])
        canvas[top:bottom, left:right] = part[top - y0 : bottom - y0, left - x0 : right - x0]
        return canvas.clamp(0, 1)


def _clip(boxes: Tensor, size: Size) -> Tensor:
    return torch.minimum(boxes.clamp(min=0), boxes.new_tensor([size[1], size[0]]).repeat(2))


def _pixels_of(start: float, end: float, length: int) -> tuple[int, int]:
    """One side of a window in whole pixels: at least one pixel, inside the image where the window is."""
    first, last = round(start), round(end)
    if last <= first:
        first = min(max(int(start), 0), length - 1)
        last = first + 1
    return first, last
