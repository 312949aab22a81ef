"""Any classifier of timm, named `timm/NAME`, with the input that its data config says."""

from collections.abc import Mapping
from typing import Any

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError, near
from gamlens.models import checkpoint
from gamlens.models.network import Network
from gamlens.models.zoo.torchvision import imagenet_labels

TIMM_PREFIX = "timm/"


def timm() -> Any:
    """The package timm, or an error that says how to install it."""
    return import_extra("timm", "This model", extra="timm")


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """Any model of timm. timm downloads its pretrained weights and caches them."""
    package, own_name = timm(), name.removeprefix(TIMM_PREFIX)
    if not package.is_model(own_name):
        raise GamlensError(f"timm has no model {own_name!r}: {near(own_name, package.list_models())}")
    module, classes = checkpoint.build(
        name,
        lambda classes: package.create_model(own_name, num_classes=classes),
        int(package.get_pretrained_cfg_value(own_name, "num_classes") or 1000),
        weights,
        pretrained=lambda: package.create_model(own_name, pretrained=True),
    )
    labels = imagenet_labels() if classes == 1000 else ()
    return Network(module, name, name, labels=labels, **input_of(package.data.resolve_model_data_config(module)))


def input_of(config: Any) -> dict[str, Any]:
    """Size, mean, std and short side of the input, for a Network, from a model's data config; {} where it has none."""
    if not isinstance(config, Mapping) or not {"input_size", "mean", "std"} <= set(config):
        return {}
    height, width = config["input_size"][1:]
    short = max(height, width, round(min(height, width) / (config.get("crop_pct") or 0.875)))
    return {"size": (height, width), "mean": tuple(config["mean"]), "std": tuple(config["std"]), "short": short}
