"""Torchvision's classifiers by name, with the transform and labels of their default weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gamlens.errors import GamlensError
from gamlens.models.checkpoint import fill_classes
from gamlens.models.network import Network


def names() -> list[str]:
    """Torchvision's image classifiers."""
    from torchvision import models

    return list(models.list_models(module=models))


def build(name: str, *, tensors: dict[str, Tensor] | None = None, random: bool = False) -> Network:
    """A torchvision classifier; its own weights come through torchvision's download cache."""
    from torchvision import models

    weights: Any = models.get_model_weights(name).DEFAULT
    preset, labels = weights.transforms(), tuple(weights.meta["categories"])
    quiet: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}

    def make(classes: int) -> nn.Module:
        module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **quiet)
        return module

    if tensors is not None:
        module, classes = fill_classes(make, tensors, name=name, classes=len(labels))
        labels = labels if classes == len(labels) else ()
    elif random:
        module = make(len(labels))
    else:
        module = _download(name, weights)
    side = int(preset.crop_size[0])
    return Network(
        module.eval(),
        name,
        "random" if random else str(weights),
        size=(side, side),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        short=int(preset.resize_size[0]),
        labels=labels,
    )


def _download(name: str, weights: Any) -> nn.Module:
    from torchvision import models

    try:
        module: nn.Module = models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        raise GamlensError(
            f"The weights of {name} could not be downloaded ({error}). Offline, pass a file: weights='file.pth', "
            f"--weights file.pth; or weights='random' for an untrained network."
        ) from error
    return module
