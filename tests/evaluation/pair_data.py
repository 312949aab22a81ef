"""Photos of one colour, and a network that knows these colours, for the tests of explanations of pairs."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

# Every corner of the colour cube but black is a class.
CORNERS = [(float(c & 1), float(c >> 1 & 1), float(c >> 2 & 1)) for c in range(1, 8)]


class Hues(nn.Module):
    """The embedding has one number per class: the share of pixels that have the colour of the class."""

    def __init__(self) -> None:
        super().__init__()
        detect = nn.Conv2d(3, len(CORNERS), 1)
        signs = 2 * torch.tensor(CORNERS) - 1
        with torch.no_grad():  # 1 at the corner itself, below 0 at all other corners
            detect.weight.copy_(2 * signs[:, :, None, None])
            detect.bias.copy_(1 - 2 * torch.tensor(CORNERS).sum(dim=1))
        self.features = nn.Sequential(detect, nn.ReLU(), nn.AvgPool2d(8))
        self.fc = nn.Linear(len(CORNERS), len(CORNERS), bias=False)
        nn.init.eye_(self.fc.weight)  # no random weights: every Hues is the same network
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def hue_data(folder: Path, *, photos: int = 3) -> Path:
    """Write photos of every class with a box each, and return the table that lists them. Classes are "0", "1", ..."""
    table = folder / "items.csv"
    with open(table, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        for label, colour in enumerate(CORNERS):
            for number in range(photos):
                name = f"{label}-{number}.png"
                Image.new("RGB", (100, 80), tuple(int(255 * value) for value in colour)).save(folder / name)
                out.writerow([name, label, 10 + 5 * number, 8, 70, 60])
    return table
