"""A small evaluation to break off: tiny photos, a net that takes its time.

`python toy.py ROOT OUT [SLEEP [ADDRESS]]` runs it; with an address on Ray.
"""

from __future__ import annotations

import csv
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from gamlens import Lens, Transform
from gamlens.data import load
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import Engine, evaluate_run

PROTOCOL = Protocol("localization", methods=("gam", "grad_cam"), n=(1, 2))


class Slow(nn.Module):
    """Two convolutions and a nap."""

    def __init__(self, nap: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU())
        self.pool, self.fc, self.nap = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 2), nap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.nap)
        return self.fc(self.pool(self.second(self.first(x))).flatten(1))


def make(nap: float = 0.0) -> Lens:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Lens(Slow(nap), transform=Transform((32, 32)))


def data(root: Path, images: int) -> None:
    """PNG files of two classes, each with a box."""
    draw = np.random.default_rng(0)
    with open(root / "items.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        for number in range(images):
            Image.fromarray(draw.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(root / f"{number:03d}.png")
            out.writerow([f"{number:03d}.png", ("ant", "bee")[number % 2], 5, 4, 10 + number % 30, 30])


def run(root: Path, out: str | Path, nap: float = 0.0, *, engine: Engine | None = None, **options):
    """Measure everything below root into out."""
    dataset = load("table", root / "items.csv")
    items = units(dataset, PROTOCOL)
    options = {"batch": 2, "chunk": 4, **options}
    return evaluate_run(partial(make, nap), dataset, items, PROTOCOL, out, engine=engine, **options)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    nap = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    run(Path(sys.argv[1]), sys.argv[2], nap, engine=Engine("ray", 1, sys.argv[4]) if len(sys.argv) > 4 else None)
