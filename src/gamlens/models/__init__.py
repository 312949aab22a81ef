"""What a network is: its blocks, its embedding, its input, its labels; and the networks known by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError, near
from gamlens.models import checkpoint
from gamlens.models.discovery.bind import Binding, bind, grids, named
from gamlens.models.discovery.blocks import Layout, Stage
from gamlens.models.network import Network, TextEncoder
from gamlens.models.outputs import Output, pick
from gamlens.models.zoo import efficientnet_lite, tresnet
from gamlens.models.zoo import huggingface as hf_zoo
from gamlens.models.zoo import timm as timm_zoo
from gamlens.models.zoo import torchvision as torchvision_zoo
from gamlens.models.zoo.chexnet import chexnet
from gamlens.models.zoo.from_file import from_file
from gamlens.models.zoo.lenet5 import lenet5

Weights = str | os.PathLike[str] | Mapping[str, Tensor] | None
Builder = Callable[..., Network]

MODELS: dict[str, Builder] = {
    "efficientnet_lite0": partial(efficientnet_lite.build, "efficientnet_lite0"),
    "efficientnet_lite1": partial(efficientnet_lite.build, "efficientnet_lite1"),
    "efficientnet_lite2": partial(efficientnet_lite.build, "efficientnet_lite2"),
    "densenet201": partial(torchvision_zoo.build, "densenet201"),
    "resnet101": partial(torchvision_zoo.build, "resnet101"),
    "resnet50": partial(torchvision_zoo.build, "resnet50"),
    "chexnet": chexnet,
    "tresnet_m": partial(tresnet.build, "tresnet_m"),
    "tresnet_l": partial(tresnet.build, "tresnet_l"),
    "tresnet_xl": partial(tresnet.build, "tresnet_xl"),
    "lenet5": lenet5,
}


def load(model: nn.Module | str, *, weights: Weights = None) -> Network:
    """A network by name or a user's module, with its own weights, those of a file or state dict, or "random" ones."""
    if isinstance(model, nn.Module):
        return _adopt(model, weights)
    if not isinstance(model, str):
        raise GamlensError(f"A model is an nn.Module or a name such as 'resnet50'; found {type(model).__name__}.")
    build = find(model)
    if weights is None or (isinstance(weights, str) and weights == "random"):
        return build(random=weights is not None)
    tensors, source = read(weights)
    return replace(build(tensors=tensors), weights=source)


def find(name: str) -> Builder:
    """The builder of a name: one of MODELS, `timm/NAME`, `hf/ID`, or any classifier of torchvision."""
    if name in MODELS:
        return MODELS[name]
    if name.startswith(hf_zoo.PREFIX):
        return partial(hf_zoo.build, name)
    if name.startswith(timm_zoo.PREFIX):
        return partial(timm_zoo.build, name)
    others = torchvision_zoo.names()
    if name in others:
        return partial(torchvision_zoo.build, name)
    raise GamlensError(
        f"There is no model {name!r}: {near(name, (*MODELS, *others))} Or 'timm/NAME', 'hf/ID', "
        "'file.py:build', an nn.Module."
    )


def read(weights: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Tensors by name and where they came from."""
    source = "state dict" if isinstance(weights, Mapping) else str(weights)
    return (checkpoint.tidy(weights, source) if isinstance(weights, Mapping) else checkpoint.read(source)), source


def _adopt(module: nn.Module, weights: Weights) -> Network:
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise GamlensError("This model was built inside torch.inference_mode() and has no gradients: build it outside.")
    if hf_zoo.is_ours(unwrap(module)):
        network = hf_zoo.adopt(unwrap(module))
        network = network if isinstance(network.module, hf_zoo.ImageTower) else replace(network, module=module)
    else:
        network = Network(module, type(unwrap(module)).__name__, "given", **_own_input(unwrap(module)))
    if weights is None:
        return network
    if isinstance(weights, str) and weights == "random":
        return replace(network, weights="random")
    tensors, source = read(weights)
    checkpoint.fill(unwrap(module), tensors, name=source)
    return replace(network, weights=source)


def _own_input(module: nn.Module) -> dict[str, Any]:
    """Input size, mean and std where a module says them itself, as timm's models do."""
    config = getattr(module, "pretrained_cfg", None)
    if not isinstance(config, Mapping) or not {"input_size", "mean", "std"} <= set(config):
        return {}
    height, width = config["input_size"][1:]
    short = max(height, width, round(min(height, width) / (config.get("crop_pct") or 0.875)))
    return {"size": (height, width), "mean": tuple(config["mean"]), "std": tuple(config["std"]), "short": short}


__all__ = [
    "MODELS",
    "Binding",
    "Layout",
    "Network",
    "Output",
    "Stage",
    "TextEncoder",
    "Weights",
    "bind",
    "from_file",
    "grids",
    "load",
    "named",
    "pick",
]
