"""Small transformers of every family of torchvision, timm and transformers, and what gamlens finds in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import transformers
from token_models import lively
from torch import nn
from torchvision.models import VisionTransformer

from gamlens import Lens, Transform

quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
TINY = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
SMALL = {"image_size": 64, "patch_size": 8, "num_labels": 7, **TINY}
PYRAMID = {"image_size": 64, "hidden_sizes": [16, 32, 32, 48], "depths": [1, 1, 1, 1], "num_labels": 7}
SWIN = {"image_size": 64, "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [2, 2, 4, 4]}
HIERA = {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4], "num_labels": 7}
HALVES = {
    "vision_config": {"image_size": 64, "patch_size": 8, "intermediate_size": 64, **TINY},
    "text_config": {
        **{"vocab_size": 50, "max_position_embeddings": 8, "intermediate_size": 64, **TINY},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    },
}

Row = tuple[Callable[[], nn.Module], tuple[int, int], list[str], tuple[int, int, int], int, str]


def zoo(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=7, **options)


def hf(model: str, config: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options))


def vit() -> nn.Module:
    return VisionTransformer(64, 8, num_layers=4, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=7)


def norms(pattern: str, *numbers: int, last: str = "") -> list[str]:
    """The names of the last blocks that are read."""
    return [f"{pattern.format(number)}:tokens" for number in numbers] + ([f"{last}:tokens"] if last else [])


N1, BEFORE = "blocks.{}.norm1", ".layers.{}.layernorm_before"
TABLE: dict[str, Row] = {
    "torchvision vit": (
        *(vit, (64, 64), norms("encoder.layers.encoder_layer_{}.ln_1", 1, 2, 3)),
        *((32, 8, 8), 1, "class token"),
    ),
    "vit, wide image": (
        *(zoo("vit_tiny_patch16_224", depth=3, img_size=(64, 112)), (64, 112), norms(N1, 1, 2)),
        *((192, 4, 7), 1, "class token"),
    ),
    "vit, registers": (
        *(zoo("vit_tiny_patch16_224", depth=3, img_size=96, reg_tokens=4), (96, 96), norms(N1, 1, 2)),
        *((192, 6, 6), 5, "class token"),
    ),
    "vit, mean": (
        *(zoo("vit_tiny_patch16_224", depth=3, img_size=96, global_pool="avg"), (96, 96)),
        *(norms("blocks.{}", 0, 1, 2), (192, 6, 6), 1, "mean"),
    ),
    "siglip": (
        *(zoo("vit_base_patch16_siglip_224", depth=2, img_size=96), (96, 96), norms("blocks.{}", 0, 1)),
        *((768, 6, 6), 0, "attention"),
    ),
    "deit, distilled": (
        *(zoo("deit_tiny_distilled_patch16_224", depth=3, img_size=96), (96, 96), norms(N1, 1, 2)),
        *((192, 6, 6), 2, "class token"),
    ),
    "beit": (
        *(zoo("beit_base_patch16_224", depth=2, img_size=96), (96, 96), norms("blocks.{}", 0, 1)),
        *((768, 6, 6), 1, "mean"),
    ),
    "eva": (
        *(zoo("eva02_tiny_patch14_224", depth=2, img_size=98), (98, 98), norms("blocks.{}", 0, 1)),
        *((192, 7, 7), 1, "mean"),
    ),
    "mixer": (
        *(zoo("mixer_s32_224"), (224, 224), norms("blocks.{}", 5, 6, 7)),
        *((512, 7, 7), 0, "mean"),
    ),
    "cait": (
        *(zoo("cait_xxs24_224", depth=2, img_size=96), (96, 96), ["blocks.1.norm1:tokens", "blocks.1:tokens"]),
        *((192, 6, 6), 0, "class token"),
    ),
    "levit": (zoo("levit_128s"), (224, 224), norms("stages.{}", 0, 1, last="stages"), (384, 4, 4), 0, "mean"),
    "hiera": (zoo("hiera_tiny_224"), (224, 224), norms("blocks.{}", 0, 2, 9, 11), (768, 7, 7), 0, "mean"),
    "swin": (
        *(zoo("swin_tiny_patch4_window7_224"), (224, 224), [f"layers.{i}:nhwc" for i in range(3)] + ["norm:nhwc"]),
        *((768, 7, 7), 0, "mean"),
    ),
    "hf vit": (
        *(hf("ViTForImageClassification", "ViTConfig", **SMALL), (64, 64), norms("vit" + BEFORE, 1, 2, 3)),
        *((32, 8, 8), 1, "class token"),
    ),
    "hf dinov2": (
        *(hf("Dinov2ForImageClassification", "Dinov2Config", **SMALL), (64, 64)),
        *(norms("dinov2.encoder.layer.{}", 0, 1, 2, 3), (32, 8, 8), 1),
        "class token and mean",
    ),
    "hf dinov2, registers": (
        *(hf("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", num_register_tokens=4, **SMALL), (64, 64)),
        *(norms("encoder.layer.{}.norm1", 1, 2, 3), (32, 8, 8), 5, "class token"),
    ),
    "hf dinov3": (
        *(hf("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=4, **SMALL), (64, 64)),
        *(norms("model.layer.{}.norm1", 1, 2, 3), (32, 8, 8), 5, "class token"),
    ),
    "hf beit": (
        *(hf("BeitForImageClassification", "BeitConfig", **SMALL), (64, 64)),
        *(norms("beit.layers.{}", 0, 1, 2, 3), (32, 8, 8), 1, "mean"),
    ),
    "hf swin": (
        *(hf("SwinForImageClassification", "SwinConfig", num_labels=7, window_size=4, **SWIN), (64, 64)),
        *(norms("swin.encoder.layers.{}", last="swin.layernorm"), (128, 4, 4), 0, "mean"),
    ),
    "hf hiera": (
        *(hf("HieraForImageClassification", "HieraConfig", **HIERA), (64, 64)),
        *(norms("hiera.encoder.stages.{}", 0, 1, 2, 3), (128, 2, 2), 0, "mean"),
    ),
    "hf segformer": (
        *(hf("SegformerForImageClassification", "SegformerConfig", **PYRAMID), (64, 64)),
        *(["segformer.stages.2", "segformer.stages.3:permute:reshape:tokens"], (48, 2, 2), 0, "mean"),
    ),
    "hf clip": (
        *(hf("CLIPModel", "CLIPConfig", projection_dim=24, **HALVES), (64, 64)),
        *(norms("vision_model.encoder.layers.{}.layer_norm1", 1, 2, 3), (32, 8, 8), 1, "class token"),
    ),
    "hf siglip": (
        *(hf("SiglipModel", "SiglipConfig", **HALVES), (64, 64)),
        *(norms("vision_model.encoder.layers.{}", 0, 1, 2, 3), (32, 8, 8), 0),
        "attention",
    ),
}


def look(make: Callable[[], nn.Module], size: tuple[int, int]) -> Lens:
    torch.manual_seed(0)
    return Lens(lively(make()).eval(), transform=Transform(size))


WHOLE = ("hiera", "swin", "levit", "siglip", "beit")  # wide or deep as they are published
