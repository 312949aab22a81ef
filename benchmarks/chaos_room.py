"""What the cases of `chaos.py` work on: photos, a small model, and one of everything that gamlens saves."""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chaos_oracle import invoke
from PIL import Image

from gamlens import Lens
from gamlens.models import from_file

PHOTOS, CLASSES = 8, ("ant", "bee")
NET = """
import torch
from torch import nn

from gamlens import Lens, Transform


def module():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()) for i, o in ((3, 6), (6, 8))]
    head = nn.Linear(8, 2)
    nn.init.constant_(head.bias, 1.0)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def build(weights=None):
    return Lens(module(), weights=weights, transform=Transform((32, 32)), labels=["ant", "bee"])
"""


class Room:
    """A folder with photos, a small model, and one of everything that gamlens saves, which is made when asked for."""

    def __init__(self, place: Path) -> None:
        self.place, self._cases, self.forks = place, 0, 0
        self.undisturbed: dict[str, Any] = {}  # by command; see chaos_kills.Undisturbed
        self.photos, self.table, self.net = place / "photos", place / "photos" / "items.csv", place / "net.py"
        self.model = ["--model", f"{self.net}:build"]
        self.photos.mkdir(parents=True)
        self.net.write_text(NET)
        draw, lines = np.random.default_rng(0), [("path", "label", "x0", "y0", "x1", "y1")]
        for number in range(PHOTOS):
            name = f"{number:02d}.png"
            Image.fromarray(draw.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(self.photos / name)
            lines.append((name, CLASSES[number % 2], 5, 4, 12 + 3 * number, 30))  # type: ignore[arg-type]
        with open(self.table, "w", newline="") as file:
            csv.writer(file).writerows(lines)

    def evaluate(self, out: Path, kind: str = "localization", *, table: Path | None = None) -> list[str]:
        """The arguments of an evaluation of all photos, in four chunks."""
        data = ["evaluate", kind, "--data", "table", "--root", str(table or self.table), *self.model]
        return [*data, "--methods", "gam", "--n", "1", "--batch", "2", "--chunk", "2", "--out", str(out)]

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """An empty folder for one case, deleted afterwards."""
        self._cases += 1
        folder = self.place / f"case-{self._cases}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def lens(self) -> Lens:
        return from_file(f"{self.net}:build")  # type: ignore[return-value]

    @cached_property
    def photo(self) -> str:
        return str(self.photos / "00.png")

    @cached_property
    def run(self) -> Path:
        """A finished run."""
        invoke(*self.evaluate(self.place / "run"))
        return self.place / "run"

    @cached_property
    def explanation(self) -> Path:
        """A saved explanation of two photos, one of which is kept as pixels."""
        self.lens.classify([self.photo, Image.open(self.photos / "01.png")], n=2).save(str(self.place / "explanation"))
        return self.place / "explanation"

    @cached_property
    def gallery(self) -> Path:
        """A folder with two saved galleries of three photos: by their paths, and with their pixels."""
        photos = [self.photos / f"{number:02d}.png" for number in range(3)]
        self.lens.remember(list(map(str, photos))).save(str(self.place / "gallery-0.npz"))
        self.lens.remember([Image.open(photo) for photo in photos]).save(str(self.place / "gallery-1.npz"))
        return self.place

    @cached_property
    def checkpoint(self) -> Path:
        file = self.place / "weights.pth"
        torch.save(self.lens.model.state_dict(), file)
        return file

    @cached_property
    def safetensors(self) -> Path:
        from safetensors.torch import save_file

        file = self.place / "weights.safetensors"
        save_file(self.lens.model.state_dict(), file)
        return file


def dice_of(seed: int, kind: str, number: int) -> random.Random:
    """The random numbers of one case, which do not depend on the cases before it."""
    return random.Random(f"{seed} {kind} {number}")
