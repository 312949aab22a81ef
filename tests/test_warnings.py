"""Warnings name the line of the user's own code, however deep in the package they are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import nets
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

from gamlens import GamlensWarning, Lens, fuse

X = nets.images(2)


class Dead(nets.Small):
    """Nothing comes out of its last block, so that every map is flat."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return super().features(x) * 0


def flat_map() -> None:
    Lens(nets.seeded(Dead), blocks=["layer3"]).classify(X, 0, n=1)


def flat_map_of_a_trace() -> None:
    Lens(nets.seeded(Dead), blocks=["layer3"]).trace(X, 0, n=1).explain(n=1)


def flat_map_in_batches() -> None:
    Lens(nets.seeded(Dead), blocks=["layer3"]).classify([*X], 0, n=1, batch_size=1)


def saturated_cosine() -> None:
    Lens(nets.small()).compare(X, X)


def saturated_cosine_of_many() -> None:
    Lens(nets.small()).compare_many(X, X)


def normalised_flat_map() -> None:
    fuse.normalize(torch.ones(1, 2, 2))


def transform_that_is_not_understood() -> None:
    crop = transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor()])
    Lens(nets.small().float(), transform=crop).classify(Image.new("RGB", (64, 64), "red"), 0)


def no_relu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    Lens(net, blocks=["1"]).classify(X.float(), 0, method="guided_backprop")


CALLS: dict[str, Callable[[], None]] = {
    call.__name__: call
    for call in (
        flat_map, flat_map_of_a_trace, flat_map_in_batches, saturated_cosine, saturated_cosine_of_many,
        normalised_flat_map, transform_that_is_not_understood, no_relu,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_names_the_users_file(name: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        CALLS[name]()
    found = [one for one in told if issubclass(one.category, GamlensWarning)]
    assert found
    assert {one.filename for one in found} == {__file__}
