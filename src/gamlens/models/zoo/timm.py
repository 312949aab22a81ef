"""Any classifier of timm, named `timm/NAME`, with the input that its data config says."""

import difflib
from collections.abc import Mapping
from typing import Any

import torch

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError
from gamlens.models import checkpoint, remote_weights
from gamlens.models.network import Network
from gamlens.models.zoo.torchvision import imagenet_labels

TIMM_PREFIX = "timm/"


def timm() -> Any:
    """The package timm, or an error that says how to install it."""
    return import_extra("timm", "This model", extra="timm")


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """Any model of timm. timm downloads its pretrained weights and caches them."""
    package, own_name = timm(), name.removeprefix(TIMM_PREFIX)
    _check_name(package, own_name)
    module, classes = checkpoint.build(
        name,
        lambda classes: package.create_model(own_name, num_classes=classes),
        int(package.get_pretrained_cfg_value(own_name, "num_classes") or 1000),
        weights,
        pretrained=lambda: _pretrained(package, name, own_name),
    )
    labels = imagenet_labels() if classes == 1000 else ()
    return Network(module, name, name, labels=labels, **input_of(package.data.resolve_model_data_config(module)))


def _check_name(package: Any, own_name: str) -> None:
    """Raise an error with the nearest names if timm has no such model, or no such weights of it (`model.weights`)."""
    model = own_name.partition(".")[0]
    if package.is_model(model):
        try:
            package.get_pretrained_cfg(own_name)
        except RuntimeError:
            known, pattern = package.list_pretrained(f"{model}.*"), f"{model}.*"
        else:
            return
    else:
        known, pattern = package.list_models(), "*net*"
    close = ", ".join(f"'{TIMM_PREFIX}{match}'" for match in difflib.get_close_matches(own_name, known, cutoff=0))
    raise GamlensError(
        f"timm has no model {own_name!r}: did you mean {close}? In Python, timm.list_models({pattern!r}, "
        "pretrained=True) lists names by a pattern."
    )


def _pretrained(package: Any, name: str, own_name: str) -> Any:
    """The model with its pretrained weights: those of the hub, or without a network the copy on this machine."""
    config = package.get_pretrained_cfg(own_name)
    hub, file = config.hf_hub_id, config.hf_hub_filename
    if hub:
        files = (file,) if file else ("model.safetensors", "pytorch_model.bin")
        remote = remote_weights.on_hub(name, hub, files, megabytes=lambda: _megabytes(package, own_name))
        if remote_weights.must_read_copy(remote):
            # Without a file name of its own, the hub's file is a plain state dict, whatever `custom_load` says.
            here = {"file": str(remote.file), "custom_load": config.custom_load == "hf" and bool(file)}
            return package.create_model(own_name, pretrained=True, pretrained_cfg_overlay=here)
    elif config.url:
        remote = remote_weights.at_url(name, config.url)
        if remote.file is None:
            remote_weights.must_read_copy(remote)
    return package.create_model(own_name, pretrained=True)


def _megabytes(package: Any, own_name: str) -> float | None:
    """The size of a model's weights in float32, computed without allocating them; None if that is not possible."""
    try:
        with torch.device("meta"):
            module = package.create_model(own_name)
    except Exception:  # noqa: BLE001 - some models compute with their weights while they are built
        return None
    return float(sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) / 1e6)


def input_of(config: Any) -> dict[str, Any]:
    """Size, mean, std and short side of the input, for a Network, from a model's data config; {} where it has none."""
    if not isinstance(config, Mapping) or not {"input_size", "mean", "std"} <= set(config):
        return {}
    height, width = config["input_size"][1:]
    short = max(height, width, round(min(height, width) / (config.get("crop_pct") or 0.875)))
    return {"size": (height, width), "mean": tuple(config["mean"]), "std": tuple(config["std"]), "short": short}
