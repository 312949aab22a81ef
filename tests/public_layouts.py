"""Weights under the names that public checkpoints give them."""

import re

from torch import Tensor


def public_chexnet(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's names as the public CheXNet checkpoint has them."""
    renamed = {}
    for key, value in state.items():
        key = re.sub(r"\.(norm|conv)([12])\.", r".\1.\2.", key)
        renamed["module.densenet121." + key.replace("classifier.", "classifier.0.")] = value
    return renamed


def public_tresnet(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names as the public in-place ABN checkpoints have them."""
    renamed = {}
    for key, value in state.items():
        key = re.sub(r"conv(\d)\.conv", r"conv\1.0", re.sub(r"conv(\d)\.bn", r"conv\1.1", key))
        key = re.sub(
            r"downsample\.(\d)\.bn", r"downsample.\1.1", re.sub(r"downsample\.(\d)\.conv", r"downsample.\1.0", key)
        )
        renamed[key] = value
    return renamed
