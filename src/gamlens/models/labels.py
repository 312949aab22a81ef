"""Class names that come with the data sets models are trained on."""

from __future__ import annotations

from functools import cache


@cache
def imagenet() -> tuple[str, ...]:
    """The 1,000 names of ImageNet-1k, in the usual order, as torchvision has them."""
    from torchvision.models import ResNet50_Weights

    return tuple(ResNet50_Weights.IMAGENET1K_V2.meta["categories"])
