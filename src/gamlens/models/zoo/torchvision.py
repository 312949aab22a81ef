"""Torchvision's classifiers by name, with the transform and labels of their default weights."""

from functools import cache
from typing import Any

from gamlens.models import checkpoint
from gamlens.models.network import Network


def names() -> list[str]:
    """Torchvision's image classifiers."""
    from torchvision import models

    return list(models.list_models(module=models))


@cache
def imagenet_labels() -> tuple[str, ...]:
    """The 1,000 names of ImageNet-1k, in the usual order, as torchvision has them."""
    from torchvision.models import ResNet50_Weights

    return tuple(ResNet50_Weights.IMAGENET1K_V2.meta["categories"])


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """A torchvision classifier; its own weights come through torchvision's download cache."""
    from torchvision import models

    own: Any = models.get_model_weights(name).DEFAULT
    preset, labels = own.transforms(), tuple(own.meta["categories"])
    quiet: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    module, classes = checkpoint.build(
        name,
        lambda classes: models.get_model(name, weights=None, num_classes=classes, **quiet),
        len(labels),
        weights,
        pretrained=lambda: models.get_model(name, weights=own),
    )
    size, short = (int(preset.crop_size[0]),) * 2, int(preset.resize_size[0])
    mean, std = tuple(preset.mean), tuple(preset.std)
    labels = labels if classes == len(labels) else ()
    return Network(module, name, str(own), size=size, mean=mean, std=std, short=short, labels=labels)
