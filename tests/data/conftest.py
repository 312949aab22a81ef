"""Tiny images and annotations, written where a test wants them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def _image(path: Path, size: tuple[int, int] = (6, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(path, format="JPEG" if "jp" in path.suffix.lower() else None)
    return path


def _xml(path: Path, objects: list[tuple[str, int, int, int, int]], size: tuple[int, int] = (6, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    things = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
        "</bndbox></object>"
        for name, x0, y0, x1, y1 in objects
    )
    path.write_text(f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height></size>{things}</annotation>")
    return path


@pytest.fixture
def image() -> Callable[..., Path]:
    return _image


@pytest.fixture
def xml() -> Callable[..., Path]:
    return _xml
