"""Any classifier of timm, as `timm/NAME`, with the input of its data config."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gamlens.errors import GamlensError, near
from gamlens.models.checkpoint import fill_classes
from gamlens.models.network import Network
from gamlens.models.zoo.labels import imagenet

PREFIX = "timm/"


def timm() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import timm as package
    except ImportError as error:
        raise GamlensError(
            "This model is built by timm, which is not installed: pip install 'gamlens[timm]'."
        ) from error
    return package


def build(name: str, *, tensors: dict[str, Tensor] | None = None, random: bool = False) -> Network:
    """A timm model; its own weights come through timm's download cache."""
    package, bare = timm(), name.removeprefix(PREFIX)
    if not package.is_model(bare):
        raise GamlensError(f"timm has no model {bare!r}: {near(bare, package.list_models())}")

    def make(classes: int) -> nn.Module:
        module: nn.Module = package.create_model(bare, num_classes=classes)
        return module

    usual = int(package.get_pretrained_cfg_value(bare, "num_classes") or 1000)
    if tensors is not None:
        module, classes = fill_classes(make, tensors, name=name, classes=usual)
    elif random:
        module, classes = make(usual), usual
    else:
        module, classes = _download(package, bare), usual
    config = package.data.resolve_model_data_config(module)
    height, width = config["input_size"][1:]
    return Network(
        module.eval(),
        name,
        "random" if random else name,
        size=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        short=max(height, width, round(min(height, width) / config["crop_pct"])),
        labels=imagenet() if classes == 1000 else (),
    )


def _download(package: Any, bare: str) -> nn.Module:
    try:
        module: nn.Module = package.create_model(bare, pretrained=True)
    except Exception as error:
        raise GamlensError(
            f"The weights of timm/{bare} could not be loaded ({type(error).__name__}: {error}). Offline, pass a file: "
            "weights='file.safetensors', --weights file.safetensors; or weights='random' for an untrained network."
        ) from error
    return module
