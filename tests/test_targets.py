"""Targets as a user writes them become one row per image and class."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gamlens.models.zoo.torchvision import imagenet_labels
from gamlens.targets import resolve

LABELS = ["ant", "bee", "cat"]
OUTPUT = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.4]])


@pytest.mark.parametrize(
    ("target", "images", "classes", "turns"),
    [
        (None, (0, 1), [1, 0], (0, 0)),
        ("cat", (0, 1), [2, 2], (0, 0)),
        ([2, None], (0, 1), [2, 0], (0, 0)),
        ([["cat", None, 0], "Bee"], (0, 0, 0, 1), [2, 1, 0, 1], (0, 1, 2, 0)),
    ],
)
def test_rows(target: Any, images: tuple[int, ...], classes: list[int], turns: tuple[int, ...]) -> None:
    found = resolve(target, OUTPUT, LABELS)
    assert (found.images, found.classes.tolist(), found.turns) == (images, classes, turns)
    assert resolve(found, OUTPUT, LABELS) is found


def test_every_name_that_is_printed_can_be_given_back() -> None:
    output = torch.zeros(1, 1000)
    for number, name in enumerate(imagenet_labels()):
        assert resolve(name, output, imagenet_labels()).classes.tolist() == [number]
