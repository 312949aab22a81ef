"""The classifiers of torchvision by name, with the input and labels of their weights."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gamlens.errors import GamlensError, near
from gamlens.models import checkpoint, remote_weights
from gamlens.models.network import Network, family


def names() -> list[str]:
    """The names of all image classifiers that torchvision has."""
    from torchvision import models

    return list(models.list_models(module=models))


@cache
def imagenet_labels() -> tuple[str, ...]:
    """The names of the 1,000 classes of ImageNet-1k in the usual order, as torchvision writes them."""
    from torchvision.models import ResNet50_Weights

    return tuple(ResNet50_Weights.IMAGENET1K_V2.meta["categories"])


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """A classifier of torchvision. torchvision downloads its weights, the default or those named, and caches them."""
    from torchvision import models

    own = _named(name, weights.name if isinstance(weights, checkpoint.NamedWeights) else "DEFAULT")
    weights = None if isinstance(weights, checkpoint.NamedWeights) else weights
    preset, labels = own.transforms(), tuple(own.meta["categories"])
    # Without an explicit init_weights, these two networks warn that its default will change.
    quiet: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    module, classes = checkpoint.build(
        name,
        lambda classes: models.get_model(name, weights=None, num_classes=classes, **quiet),
        len(labels),
        weights,
        pretrained=lambda: _pretrained(name, own),
    )
    size, short = (int(preset.crop_size[0]),) * 2, int(preset.resize_size[0])
    mean, std = tuple(preset.mean), tuple(preset.std)
    labels = labels if classes == len(labels) else ()
    return Network(module, name, str(own), size=size, mean=mean, std=std, short=short, labels=labels)


def _named(name: str, wanted: str) -> Any:
    """The member of torchvision's enum of a network's weights by its name: IMAGENET1K_V1, or Enum.IMAGENET1K_V1."""
    from torchvision import models

    enum: Any = models.get_model_weights(name)
    prefix, _, short = wanted.rpartition(".")
    if prefix not in ("", enum.__name__) or short not in enum.__members__:
        known = list(enum.__members__)
        raise GamlensError(
            f"torchvision's {name} has no weights {wanted!r}: {near(short, known)} A file is given by its path, such "
            "as ./weights.pth."
        )
    return enum[short]


def _pretrained(name: str, own: Any) -> Any:
    """The network with weights of torchvision. They are downloaded first if torch.hub has no copy of them.

    torch.hub's own download prints to standard output, where results of the command line go.
    """
    from torchvision import models

    remote = remote_weights.at_url(name, own.url, own.meta.get("_file_size"))
    if remote.file is None:
        remote_weights.must_read_copy(remote)
        copy = Path(torch.hub.get_dir(), "checkpoints", own.url.rsplit("/", 1)[1])
        copy.parent.mkdir(parents=True, exist_ok=True)
        print(f"Downloading {own.url} to {copy}", file=sys.stderr)
        digits = torch.hub.HASH_REGEX.search(copy.name)
        torch.hub.download_url_to_file(own.url, str(copy), digits.group(1) if digits else None)
    return models.get_model(name, weights=own)


PAPER_NETWORKS = family(build, ("densenet201", "resnet101", "resnet50"))
