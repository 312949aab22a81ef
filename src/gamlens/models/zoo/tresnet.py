"""TResNet M, L and XL for several labels per image, of MS-COCO (80 classes) or Pascal VOC (20).

Ridnik et al. 2020 (the network), Ben-Baruch et al. 2020 (the training).
"""

from gamlens.data.class_names import COCO_CLASSES, VOC_CLASSES
from gamlens.models import checkpoint
from gamlens.models.network import Network, family
from gamlens.models.zoo.timm import timm

LABELS_BY_COUNT = {len(names): names for names in (COCO_CLASSES, VOC_CLASSES)}


def build(name: str, weights: checkpoint.LoadedWeights = None) -> Network:
    """TResNet, built by timm, with several labels per image; it needs a public checkpoint as `weights`.

    The public checkpoints have in-place activated batch norms, which `checkpoint_filter_fn` of timm converts. The
    network gets as many classes as the checkpoint. Their names are the checkpoint's own, where it has `idx_to_class`;
    otherwise those of MS-COCO if there are 80, or of Pascal VOC if there are 20.
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


TRESNETS = family(build, ("tresnet_m", "tresnet_l", "tresnet_xl"))
