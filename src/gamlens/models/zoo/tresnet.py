"""TResNet M, L, XL, multi-label for MS-COCO (80 classes) or Pascal VOC (20). Ridnik et al., Ben-Baruch et al. 2020."""

from gamlens.data.class_names import COCO_CLASSES, VOC_CLASSES
from gamlens.models import checkpoint
from gamlens.models.network import Network
from gamlens.models.zoo.timm import timm

LABELS_BY_COUNT = {len(names): names for names in (COCO_CLASSES, VOC_CLASSES)}


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """TResNet in timm's architecture; a public checkpoint (in-place ABN) is translated by timm's own filter.

    The number of classes is the checkpoint's; 80 and 20 have their names.
    """
    package = timm()
    module, classes = checkpoint.build(
        name,
        lambda classes: package.create_model(name, num_classes=classes),
        len(COCO_CLASSES),
        weights,
        pretrained="the public multi-label checkpoint for MS-COCO or Pascal VOC",
        translate=package.models.tresnet.checkpoint_filter_fn,
    )
    size, labels = (448, 448), LABELS_BY_COUNT.get(classes, ())
    return Network(
        module, name, "file", size=size, mean=(0.0,) * 3, std=(1.0,) * 3, short=512, labels=labels, multi_label=True
    )
