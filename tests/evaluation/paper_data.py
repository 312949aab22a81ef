"""Made-up data in the layout of ILSVRC and a small network, for tests of the paper's tables."""

from __future__ import annotations

from pathlib import Path

import nets
import numpy as np
import torch
from PIL import Image

from gamlens import Lens, Transform

CLASSES, PER_CLASS = 4, 8
USER = """
import os, signal
import paper_data

def lens():
    found = paper_data.lens()
    if left := int(os.environ.get("KILL_AFTER", 0)):
        count = iter(range(left))
        def kill(*_):
            if next(count, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
        found.model.register_forward_hook(kill)
    return found
"""


def lens() -> Lens:
    torch.set_num_threads(1)
    return Lens(nets.small().float(), transform=Transform((32, 32)))


def ilsvrc(root: Path, *, broken: bool = False) -> Path:
    """32 photos of four classes with a box each; with `broken` the first file is cut off after its header."""
    draw, images = np.random.default_rng(0), root / "Data/CLS-LOC/val"
    images.mkdir(parents=True)
    rows = ["ImageId,PredictionString"]
    for number in range(CLASSES * PER_CLASS):
        name = f"ILSVRC2012_val_{number:08d}"
        Image.fromarray(draw.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(images / f"{name}.JPEG")
        width, height = 6 + (7 * number) % 40, 5 + (11 * number) % 30
        rows.append(f"{name},n{number % CLASSES:08d} 2 3 {2 + width} {3 + height}")
    if broken:
        first = images / "ILSVRC2012_val_00000000.JPEG"
        first.write_bytes(first.read_bytes()[:700])
    (root / "LOC_val_solution.csv").write_text("\n".join(rows))
    names = "\n".join(f"n{number:08d} class {number}" for number in range(CLASSES))
    (root / "LOC_synset_mapping.txt").write_text(names)
    return root


def user_file(folder: Path) -> str:
    """A file that builds the network, as --model takes it."""
    (folder / "mine.py").write_text(USER)
    return f"{folder / 'mine.py'}:lens"
