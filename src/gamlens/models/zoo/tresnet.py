"""TResNet M, L, XL, multi-label for MS-COCO (80 classes) or Pascal VOC (20). Ridnik et al., Ben-Baruch et al. 2020."""

from __future__ import annotations

from torch import Tensor, nn

from gamlens.models.checkpoint import bare, fill_classes, needs_file
from gamlens.models.network import Network
from gamlens.models.zoo import labels
from gamlens.models.zoo.timm import timm

NAMES: dict[int, tuple[str, ...]] = {80: labels.COCO, 20: labels.VOC}


def build(name: str, *, tensors: dict[str, Tensor] | None = None, random: bool = False) -> Network:
    """TResNet in timm's architecture; a public checkpoint (in-place ABN) is translated by timm's own filter.

    The number of classes is the checkpoint's; 80 and 20 have their names.
    """
    package = timm()

    def make(classes: int) -> nn.Module:
        module: nn.Module = package.create_model(name, num_classes=classes)
        return module

    module, classes = make(80), 80
    if tensors is not None:
        translate = package.models.tresnet.checkpoint_filter_fn
        module, classes = fill_classes(make, translate(bare(tensors), module), name=name, classes=80)
    elif not random:
        raise needs_file(name, "the public multi-label checkpoint for MS-COCO or Pascal VOC")
    return Network(
        module.eval(),
        name,
        "random" if random else "file",
        size=(448, 448),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        short=512,
        labels=NAMES.get(classes, ()),
        multi_label=True,
    )
