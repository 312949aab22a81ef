"""A tiny lens and photos for the studio's tests."""

from __future__ import annotations

from pathlib import Path

import nets
import numpy as np
from PIL import Image

from gamlens import Lens, Transform

LABELS = [f"thing {number}" for number in range(nets.CLASSES)]


def small_lens() -> Lens:
    """A tiny net of ten classes that takes 64 x 64 photos."""
    return Lens(nets.small().float(), labels=LABELS, transform=Transform((64, 64)))


def noise(path: Path, *, seed: int, size: tuple[int, int] = (96, 64)) -> Path:
    """Write a photo of random coloured blocks to `path`; returns the path."""
    blocks = np.random.default_rng(seed).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path)
    return path
