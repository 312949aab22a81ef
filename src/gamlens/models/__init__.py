"""Networks: those known by name, with their input and labels, and which layers of any network are read."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError, Registry
from gamlens.models import checkpoint
from gamlens.models.discovery.discover import NetworkLayout, Stage
from gamlens.models.discovery.model_blocks import ModelBlocks, find_blocks, points_named, token_grids
from gamlens.models.network import Network, Output, TextEncoder, pick
from gamlens.models.zoo import efficientnet_lite, tresnet
from gamlens.models.zoo import huggingface as hf_zoo
from gamlens.models.zoo import timm as timm_zoo
from gamlens.models.zoo import torchvision as torchvision_zoo
from gamlens.models.zoo.chexnet import chexnet
from gamlens.models.zoo.from_file import from_file
from gamlens.models.zoo.lenet5 import lenet5

WeightSource = str | os.PathLike[str] | Mapping[str, Tensor] | None
Builder = Callable[..., Network]

MODELS: Registry[Builder] = Registry(
    "model",
    {
        **{name: partial(efficientnet_lite.build, name) for name in efficientnet_lite.SIDES},
        **{name: partial(torchvision_zoo.build, name) for name in ("densenet201", "resnet101", "resnet50")},
        "chexnet": chexnet,
        **{name: partial(tresnet.build, name) for name in ("tresnet_m", "tresnet_l", "tresnet_xl")},
        "lenet5": lenet5,
    },
    hint=" Or 'timm/NAME', 'hf/ID', 'file.py:build', an nn.Module.",
)


def load(model: nn.Module | str, *, weights: WeightSource = None) -> Network:
    """A network by name or a user's module, with its own weights, those of a file or state dict, or "random" ones."""
    if not isinstance(model, nn.Module | str):
        raise GamlensError(f"A model is an nn.Module or a name such as 'resnet50'; found {type(model).__name__}.")
    loaded: checkpoint.LoadedWeights = None
    if weights is not None:
        loaded = "random" if isinstance(weights, str) and weights == "random" else checkpoint.read(weights)
    source = "state dict" if isinstance(weights, Mapping) else str(weights)
    network = find(model)(weights=loaded) if isinstance(model, str) else _adopt(model, loaded, source)
    return network if weights is None else replace(network, weights=source)


def find(name: str) -> Builder:
    """The builder of a name: one of MODELS, `timm/NAME`, `hf/ID`, or any classifier of torchvision."""
    if name in MODELS:
        return MODELS[name]
    if name.startswith(hf_zoo.HF_PREFIX):
        return partial(hf_zoo.build, name)
    if name.startswith(timm_zoo.TIMM_PREFIX):
        return partial(timm_zoo.build, name)
    others: dict[str, Builder] = {other: partial(torchvision_zoo.build, other) for other in torchvision_zoo.names()}
    return Registry(MODELS.kind, {**MODELS, **others}, hint=MODELS.hint)[name]


def _adopt(module: nn.Module, weights: checkpoint.LoadedWeights, source: str) -> Network:
    """A user's module as a Network; modules of transformers and timm say their input and labels themselves."""
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise GamlensError("This model was built inside torch.inference_mode() and has no gradients: build it outside.")
    inner = unwrap(module)
    if hf_zoo.is_ours(inner):
        network = hf_zoo.adopt(inner)
        network = network if isinstance(network.module, hf_zoo.ImageTower) else replace(network, module=module)
    else:
        own_input = timm_zoo.input_of(getattr(inner, "pretrained_cfg", None))
        network = Network(module, type(inner).__name__, "given", **own_input)
    if isinstance(weights, dict):
        checkpoint.fill(inner, weights, name=source)
    return network
