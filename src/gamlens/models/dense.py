"""Dense layers: modules that are given a list of maps, and join it first of all."""

from __future__ import annotations

from torch import nn

LAYERS = {("torchvision.models.densenet", "_DenseLayer"), ("timm.models.densenet", "DenseLayer")}


def dense_layers(model: nn.Module, block: str) -> list[nn.Module]:
    """Those that the model lists after the module `block`, without its own; none where the block is the whole model."""
    found, started = [], False
    for name, module in model.named_modules():
        started = started or name == block
        inside = not block or name.startswith(f"{block}.")
        if started and not inside and (type(module).__module__, type(module).__name__) in LAYERS:
            found.append(module)
    return found
