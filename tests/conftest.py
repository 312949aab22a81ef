"""Where the real data and weights are; tests that need them are marked `shared` and skip where they are absent."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # small tensors are not worth splitting, and other runs may share the cores
SHARED = Path(__file__).resolve().parents[2] / "shared"


def _folder(variable: str, name: str) -> Path:
    place = Path(os.environ.get(variable) or SHARED / name)
    if not place.is_dir():
        pytest.skip(f"needs the real {name}: {place} is not there (set {variable})")
    return place


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """The folder of real weights."""
    return _folder("GAMLENS_WEIGHTS", "weights")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets."""
    return _folder("GAMLENS_DATA", "data")
