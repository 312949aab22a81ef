"""Convert boxes, masks and maps between the model's input and the original image.

The input shows a window (x0, y0, x1, y1) of the original image, stretched to W x H pixels. Both use continuous
coordinates in which pixel j covers the interval from j to j + 1. A point (u, v) of the input therefore lies at

    x = x0 + u * (x1 - x0) / W        y = y0 + v * (y1 - y0) / H

of the original, and the inverse is u = (x - x0) * W / (x1 - x0), v = (y - y0) * H / (y1 - y0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """Which part of the original image the model's input shows.

    Attributes:
        original: Height and width of the original image.
        size: Height and width of the model's input.
        window: The part (x0, y0, x1, y1) of the original, in its pixels, that was stretched to `size`. It reaches
            beyond the image if the input was padded.

    >>> frame = Frame(original=(100, 200), size=(50, 50), window=(50.0, 0.0, 150.0, 100.0))  # a centre crop, halved
    >>> frame.boxes(torch.tensor([[0.0, 0.0, 10.0, 50.0]]))
    tensor([[ 50.,   0.,  70., 100.]])
    """

    original: Size
    size: Size
    window: tuple[float, float, float, float]

    @classmethod
    def whole(cls, original: Size, size: Size) -> Frame:
        """Return the frame of an input that shows the whole image."""
        return cls(original, size, (0.0, 0.0, float(original[1]), float(original[0])))

    def scaled(self, original: Size) -> Frame:
        """Return the frame of a copy of the original image that was resized to `original`, (height, width)."""
        down, across = original[0] / self.original[0], original[1] / self.original[1]
        x0, y0, x1, y1 = self.window
        return replace(self, original=original, window=(x0 * across, y0 * down, x1 * across, y1 * down))

    def cell_box(self, cell: Size, cells: Size) -> tuple[float, float, float, float]:
        """Return where a cell lies in the original image, if the input is divided into rows and columns of cells.

        Args:
            cell: The row and the column of the cell.
            cells: The number of rows and of columns.

        Returns:
            (left, top, width, height), as fractions of the width and height of the original image.
        """
        x0, y0, x1, y1 = self.window
        height, width = self.original
        across, down = (x1 - x0) / cells[1] / width, (y1 - y0) / cells[0] / height
        return x0 / width + cell[1] * across, y0 / height + cell[0] * down, across, down

    def boxes(self, boxes: Tensor) -> Tensor:
        """Convert boxes (N,4), x0,y0,x1,y1 in input pixels, to original pixels, and clip them to the image."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([(x1 - x0) / self.size[1], (y1 - y0) / self.size[0]]).repeat(2)
        return _clip(boxes * scale + boxes.new_tensor([x0, y0, x0, y0]), self.original)

    def boxes_in(self, boxes: Tensor) -> Tensor:
        """Convert boxes (N,4), x0,y0,x1,y1 in original pixels, to input pixels, and clip them to the input."""
        x0, y0, x1, y1 = self.window
        scale = boxes.new_tensor([self.size[1] / (x1 - x0), self.size[0] / (y1 - y0)]).repeat(2)
        return _clip((boxes - boxes.new_tensor([x0, y0, x0, y0])) * scale, self.size)

    def mask_in(self, mask: Tensor) -> Tensor:
        """Resample a mask, bool at the original's size, to the input's size.

        Each input pixel takes the value of the original pixel in which its centre (u + 0.5, v + 0.5) lies; it is False
        if the centre lies outside the image.
        """
        x0, y0, x1, y1 = self.window
        rows = y0 + (torch.arange(self.size[0]) + 0.5) * (y1 - y0) / self.size[0]
        columns = x0 + (torch.arange(self.size[1]) + 0.5) * (x1 - x0) / self.size[1]
        inside = ((rows >= 0) & (rows < len(mask)))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))[None]
        y, x = rows.long().clamp(0, len(mask) - 1), columns.long().clamp(0, mask.shape[1] - 1)
        return mask[y][:, x] & inside

    def map(self, map: Tensor) -> Tensor:
        """Resample a map in [0,1] at the input's size to the original's size; it is zero outside the window.

        The map is resized bilinearly to the window, rounded to whole pixels, and the part of the window that lies
        inside the image is copied into a map of zeros.
        """
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
    """Round one side of a window, from `start` to `end`, to whole pixels (first, one past the last).

    A window that would round to nothing becomes the one pixel of the image (`length` pixels long) at its start.
    """
    first, last = round(start), round(end)
    if last <= first:
        first = min(max(int(start), 0), length - 1)
        last = first + 1
    return first, last
