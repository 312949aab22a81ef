"""Real weights on real images: the first hundred by file name (the whole is `python benchmarks/real.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "folder", "right"),
    [
        ("resnet50", "ILSVRC", 65),
        ("efficientnet_lite0", "ILSVRC", 66),
        ("efficientnet_lite1", "ILSVRC", 70),
        ("efficientnet_lite2", "ILSVRC", 67),
        ("densenet201", "imagenette", 92),
    ],
)
def test_top_1(name: str, folder: str, right: int, shared_weights: Path, shared_data: Path) -> None:
    import real

    found = list(real.hits(real.lens(name), real.samples(folder)[:100]))
    assert abs(sum(found) - right) <= 1
