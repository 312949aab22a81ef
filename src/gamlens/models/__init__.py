"""What a network is: its blocks, its embedding, its input, its labels; and the networks known by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from gamlens.errors import GamlensError, near
from gamlens.models import checkpoint
from gamlens.models.bind import Binding, bind, named
from gamlens.models.discover import Layout, Stage
from gamlens.models.efficientnet_lite import efficientnet_lite0
from gamlens.models.network import Network
from gamlens.models.outputs import Output, pick
from gamlens.models.torchvision_zoo import densenet201, resnet50, resnet101
from gamlens.settle import unwrap

Weights = str | os.PathLike[str] | Mapping[str, Tensor] | None

MODELS: dict[str, Callable[..., Network]] = {
    "efficientnet_lite0": efficientnet_lite0,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "densenet201": densenet201,
}


def load(model: nn.Module | str, *, weights: Weights = None) -> Network:
    """A network by name or a user's module, with its own weights, those of a file or state dict, or "random" ones."""
    if isinstance(model, nn.Module):
        return _adopt(model, weights)
    if not isinstance(model, str):
        raise GamlensError(f"A model is an nn.Module or a name such as 'resnet50'; found {type(model).__name__}.")
    if model not in MODELS:
        raise GamlensError(f"There is no model {model!r}: {near(model, MODELS)} Or give your own nn.Module.")
    if weights is None or (isinstance(weights, str) and weights == "random"):
        return MODELS[model](random=weights is not None)
    network = MODELS[model](random=True)
    return replace(network, weights=fill(network, weights))


def _adopt(module: nn.Module, weights: Weights) -> Network:
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise GamlensError("This model was built inside torch.inference_mode() and has no gradients: build it outside.")
    network = Network(module, type(unwrap(module)).__name__, "given")
    return network if weights is None else replace(network, weights=fill(network, weights))


def fill(network: Network, weights: Weights) -> str:
    """Load a file or a state dict into a network; returns where the weights came from."""
    source = "state dict" if isinstance(weights, Mapping) else str(weights)
    tensors = checkpoint.tidy(weights, source) if isinstance(weights, Mapping) else checkpoint.read(source)
    checkpoint.fill(network.module, tensors, name=source)
    return source


__all__ = [
    "MODELS",
    "Binding",
    "Layout",
    "Network",
    "Output",
    "Stage",
    "Weights",
    "bind",
    "fill",
    "load",
    "named",
    "pick",
]
