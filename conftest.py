"""What the examples in docstrings use: a small `lens`, and two PIL images, `photo` and `other`."""

from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from gamlens import Lens


@cache
def small_lens() -> Lens:
    """A lens on an untrained network of two blocks with 8 and 16 channels and the classes cat and dog."""
    torch.manual_seed(2)
    blocks = [nn.Sequential(nn.Conv2d(i, o, 3, stride=4, padding=1), nn.ReLU()) for i, o in ((3, 8), (8, 16))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)]
    return Lens(nn.Sequential(*blocks, *head), labels=["cat", "dog"])


@pytest.fixture(autouse=True)
def _names_for_examples(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        photos = [Image.radial_gradient("L").convert("RGB"), Image.linear_gradient("L").convert("RGB")]
        names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
        names |= {"lens": small_lens(), "photo": photos[0], "other": photos[1], "torch": torch}
