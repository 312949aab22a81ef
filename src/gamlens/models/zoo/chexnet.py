"""CheXNet, a DenseNet-121 for 14 findings on chest X-rays. Rajpurkar et al. 2017."""

import re

from torch import Tensor, nn

from gamlens.data.class_names import CHEST_ALIASES, CHEST_FINDINGS
from gamlens.models import checkpoint
from gamlens.models.network import Network


def chexnet(weights: checkpoint.LoadedWeights = None) -> Network:
    """CheXNet without its sigmoid, so that logits are explained; it needs the public checkpoint as `weights`."""
    from torchvision.models import densenet121

    findings = len(CHEST_FINDINGS)
    module, _ = checkpoint.build(
        "chexnet",
        lambda _: densenet121(num_classes=findings),
        findings,
        weights,
        pretrained="the public CheXNet checkpoint (model.pth.tar)",
        translate=to_torchvision,
    )
    return Network(module, "chexnet", "file", labels=CHEST_FINDINGS, aliases=CHEST_ALIASES, multi_label=True)


def to_torchvision(tensors: dict[str, Tensor], _: nn.Module) -> dict[str, Tensor]:
    """The public checkpoint with today's names of torchvision: norm.1 became norm1, classifier.0 became classifier."""
    bare = {key.removeprefix("densenet121."): value for key, value in tensors.items()}
    joined = {re.sub(r"\b(norm|conv)\.([12])\.", r"\1\2.", key): value for key, value in bare.items()}
    return {re.sub(r"^classifier\.0\.", "classifier.", key): value for key, value in joined.items()}
