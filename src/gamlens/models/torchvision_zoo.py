"""Torchvision's classifiers by name, with the transform and labels of their default weights."""

from __future__ import annotations

from functools import partial
from typing import Any

from gamlens.errors import GamlensError
from gamlens.models.network import Network


def build(name: str, *, random: bool = False) -> Network:
    """A torchvision classifier; its weights come through torchvision's own download cache."""
    from torchvision import models

    weights: Any = models.get_model_weights(name).DEFAULT
    preset = weights.transforms()
    try:
        module = models.get_model(name, weights=None if random else weights)
    except OSError as error:
        raise GamlensError(
            f"The weights of {name} could not be downloaded ({error}). Offline, pass a file: "
            f"Lens({name!r}, weights='file.pth'); or weights='random' for an untrained network."
        ) from error
    side = int(preset.crop_size[0])
    return Network(
        module.eval(),
        name,
        "random" if random else f"torchvision {weights}",
        size=(side, side),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        short=int(preset.resize_size[0]),
        labels=tuple(weights.meta["categories"]),
    )


resnet50 = partial(build, "resnet50")
resnet101 = partial(build, "resnet101")
densenet201 = partial(build, "densenet201")
