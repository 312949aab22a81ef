"""Blocks and embedding of known networks, by exact name and shape."""

from __future__ import annotations

import pytest
import torch
from models import build, examine

from gamlens import Lens, Transform
from gamlens.models import load

NAMED = ("chexnet", "lenet5", "tresnet_m")
TABLE = [
    (
        "resnet18",
        96,
        {"layer1": (64, 24, 24), "layer2": (128, 12, 12), "layer3": (256, 6, 6), "layer4": (512, 3, 3)},
        "fc:input",
    ),
    (
        "resnet50",
        96,
        {"layer1": (256, 24, 24), "layer2": (512, 12, 12), "layer3": (1024, 6, 6), "layer4": (2048, 3, 3)},
        "fc:input",
    ),
    (
        "resnext50_32x4d",
        96,
        {"layer1": (256, 24, 24), "layer2": (512, 12, 12), "layer3": (1024, 6, 6), "layer4": (2048, 3, 3)},
        "fc:input",
    ),
    (
        "wide_resnet50_2",
        96,
        {"layer1": (256, 24, 24), "layer2": (512, 12, 12), "layer3": (1024, 6, 6), "layer4": (2048, 3, 3)},
        "fc:input",
    ),
    (
        "densenet121",
        96,
        {
            "features.denseblock1": (256, 24, 24),
            "features.denseblock2": (512, 12, 12),
            "features.denseblock3": (1024, 6, 6),
            "features:relu": (1024, 3, 3),
        },
        "classifier:input",
    ),
    (
        "densenet201",
        96,
        {
            "features.denseblock1": (256, 24, 24),
            "features.denseblock2": (512, 12, 12),
            "features.denseblock3": (1792, 6, 6),
            "features:relu": (1920, 3, 3),
        },
        "classifier:input",
    ),
    (
        "timm/densenet121",
        96,
        {
            "features.denseblock1": (256, 24, 24),
            "features.denseblock2": (512, 12, 12),
            "features.denseblock3": (1024, 6, 6),
            "features": (1024, 3, 3),
        },
        "classifier:input",
    ),
    (
        "vgg11",
        96,
        {
            "features.9": (256, 24, 24),
            "features.14": (512, 12, 12),
            "features.19": (512, 6, 6),
            "features": (512, 3, 3),
        },
        "classifier.6:input",
    ),
    (
        "vgg16_bn",
        96,
        {
            "features.22": (256, 24, 24),
            "features.32": (512, 12, 12),
            "features.42": (512, 6, 6),
            "features": (512, 3, 3),
        },
        "classifier.6:input",
    ),
    (
        "mobilenet_v2",
        96,
        {"features.3": (24, 24, 24), "features.6": (32, 12, 12), "features.13": (96, 6, 6), "features": (1280, 3, 3)},
        "classifier.1:input",
    ),
    (
        "mobilenet_v3_small",
        96,
        {"features.1": (16, 24, 24), "features.3": (24, 12, 12), "features.8": (48, 6, 6), "features": (576, 3, 3)},
        "classifier.3:input",
    ),
    (
        "mobilenet_v3_large",
        96,
        {"features.3": (24, 24, 24), "features.6": (40, 12, 12), "features.12": (112, 6, 6), "features": (960, 3, 3)},
        "classifier.3:input",
    ),
    (
        "efficientnet_b0",
        96,
        {"features.2": (24, 24, 24), "features.3": (40, 12, 12), "features.5": (112, 6, 6), "features": (1280, 3, 3)},
        "classifier.1:input",
    ),
    (
        "efficientnet_v2_s",
        96,
        {"features.2": (48, 24, 24), "features.3": (64, 12, 12), "features.5": (160, 6, 6), "features": (1280, 3, 3)},
        "classifier.1:input",
    ),
    (
        "timm/efficientnet_b0",
        96,
        {"blocks.1": (24, 24, 24), "blocks.2": (40, 12, 12), "blocks.4": (112, 6, 6), "bn2": (1280, 3, 3)},
        "classifier:input",
    ),
    (
        "timm/tf_efficientnet_lite0",
        96,
        {"blocks.1": (24, 24, 24), "blocks.2": (40, 12, 12), "blocks.4": (112, 6, 6), "bn2": (1280, 3, 3)},
        "classifier:input",
    ),
    (
        "convnext_tiny",
        96,
        {"features.1": (96, 24, 24), "features.3": (192, 12, 12), "features.5": (384, 6, 6), "features": (768, 3, 3)},
        "classifier.2:input",
    ),
    (
        "timm/convnext_atto",
        96,
        {"stages.0": (40, 24, 24), "stages.1": (80, 12, 12), "stages.2": (160, 6, 6), "stages": (320, 3, 3)},
        "head.fc:input",
    ),
    (
        "regnet_y_400mf",
        96,
        {
            "trunk_output.block1": (48, 24, 24),
            "trunk_output.block2": (104, 12, 12),
            "trunk_output.block3": (208, 6, 6),
            "trunk_output": (440, 3, 3),
        },
        "fc:input",
    ),
    (
        "timm/regnety_002",
        96,
        {"s1": (24, 24, 24), "s2": (56, 12, 12), "s3": (152, 6, 6), "s4": (368, 3, 3)},
        "head.fc:input",
    ),
    (
        "inception_v3",
        299,
        {
            "Conv2d_4a_3x3": (192, 71, 71),
            "Mixed_5d": (288, 35, 35),
            "Mixed_6e": (768, 17, 17),
            "Mixed_7c": (2048, 8, 8),
        },
        "fc:input",
    ),
    (
        "googlenet",
        96,
        {"conv3": (192, 24, 24), "inception3b": (480, 12, 12), "inception4e": (832, 6, 6), "inception5b": (1024, 3, 3)},
        "fc:input",
    ),
    (
        "shufflenet_v2_x1_0",
        96,
        {"maxpool": (24, 24, 24), "stage2": (116, 12, 12), "stage3": (232, 6, 6), "conv5": (1024, 3, 3)},
        "fc:input",
    ),
    (
        "mnasnet1_0",
        96,
        {"layers.8": (24, 24, 24), "layers.9": (40, 12, 12), "layers.11": (96, 6, 6), "layers": (1280, 3, 3)},
        "classifier.1:input",
    ),
    (
        "squeezenet1_1",
        96,
        {"features.4": (128, 23, 23), "features.7": (256, 11, 11), "classifier.2": (1000, 5, 5)},
        "output",
    ),
    (
        "alexnet",
        224,
        {
            "features.1": (64, 55, 55),
            "features.4": (192, 27, 27),
            "features.11": (256, 13, 13),
            "features": (256, 6, 6),
        },
        "classifier.6:input",
    ),
    (
        "timm/mambaout_femto",
        96,
        {
            "stages.0:nhwc": (48, 24, 24),
            "stages.1:nhwc": (96, 12, 12),
            "stages.2:nhwc": (192, 6, 6),
            "stages:nhwc": (288, 3, 3),
        },
        "head.fc:input",
    ),
    (
        "chexnet",
        224,
        {
            "features.denseblock1": (256, 56, 56),
            "features.denseblock2": (512, 28, 28),
            "features.denseblock3": (1024, 14, 14),
            "features:relu": (1024, 7, 7),
        },
        "classifier:input",
    ),
    ("lenet5", 28, {"relu1": (6, 28, 28), "relu2": (16, 10, 10), "pool2": (16, 5, 5)}, "fc3:input"),
    (
        "tresnet_m",
        96,
        {"body.layer1": (64, 24, 24), "body.layer2": (128, 12, 12), "body.layer3": (1024, 6, 6), "body": (2048, 3, 3)},
        "head.fc:input",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "blocks", "embedding"), TABLE, ids=[row[0] for row in TABLE])
def test_blocks(name: str, side: int, blocks: dict[str, tuple[int, int, int]], embedding: str) -> None:
    torch.manual_seed(0)
    network = load(name, weights="random") if name in NAMED else None
    module = network.module if network is not None else build(name)
    look = Transform((side, side), network.mean, network.std) if network is not None else Transform((side, side))
    lens = Lens(module, transform=look)
    assert {stage.name: stage.shape for stage in lens.layout.stages if stage.chosen} == blocks
    assert lens.embedding == embedding
    batch = torch.rand(1, len(look.mean), side, side)
    captured = lens.trace(batch, n=None).activations
    assert {block: tuple(h.shape[1:]) for block, h in captured.items()} == blocks


SAMPLE = (
    *("resnet34", "densenet161", "vgg13_bn", "mobilenet_v3_large", "efficientnet_b1", "regnet_x_400mf", "mnasnet0_5"),
    *(
        "timm/resnetv2_50",
        "timm/cspresnet50",
        "timm/dla34",
        "timm/dpn68",
        "timm/hrnet_w18_small",
        "timm/mambaout_femto",
    ),
    *("timm/poolformer_s12", "timm/res2net50_26w_4s", "timm/rexnet_100", "timm/selecsls42b", "timm/skresnet18"),
    *("timm/xception41", "timm/ese_vovnet19b_dw", "timm/repvgg_a0", "timm/ghostnet_100", "timm/inception_next_atto"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_registries(name: str) -> None:
    """Blocks at several resolutions, the embedding a function of the last one, GAM in [0,1], the model untouched."""
    found = examine(name)
    assert len(set(found.sizes)) >= 2
    assert found.pooling in ("mean", "max", "pool, then layers") or name.startswith("vgg")
    assert len(found.blocks) == len(found.sizes)


def test_examine_notices_a_wrong_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a block beside the path does not determine the embedding."""
    from gamlens import GamlensError

    module = build("resnet18")
    monkeypatch.setattr(Lens, "blocks", property(lambda self: ("layer3", "layer4.1.conv1")))
    with pytest.raises(GamlensError, match="not a function of the last block"):
        examine("resnet18", module)
