"""Measures the top-1 accuracy of networks with real weights on real images, and saves overlays for inspection.

Images are squashed to the input size. ResNet-50 and EfficientNet-Lite 0, 1, 2 use ILSVRC (Kaggle layout), DenseNet-201
ten of its classes. Data and weights are in ../shared, or where GAMLENS_DATA and GAMLENS_WEIGHTS point.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torchvision import models

from gamlens import Lens, Transform

HERE = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("GAMLENS_DATA") or HERE / "data")
WEIGHTS = Path(os.environ.get("GAMLENS_WEIGHTS") or HERE / "weights")
NAMES = ("resnet50", "efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "densenet201")


def original_resnet50() -> nn.Module:
    """The original ResNet-50, whose stages have stride 2 in their first convolution, not in the second."""
    module = models.resnet50()
    for stage in (module.layer2, module.layer3, module.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return module


def resnet50() -> Lens:
    return Lens(original_resnet50(), weights=WEIGHTS / "resnet50_imagenet1k_fp16.pth", labels=labels("ILSVRC"))


def densenet201() -> Lens:
    """DenseNet-201 with ten classes."""
    return Lens("densenet201", weights=WEIGHTS / "densenet201_imagenette_fp16.pth", labels=labels("imagenette"))


def vit_class_token() -> Lens:
    """A ViT-tiny with a class token and ten classes."""
    module = models.VisionTransformer(
        image_size=224, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10
    )
    return Lens(module, weights=WEIGHTS / "vit_tiny_imagenette_fp16.pth", labels=labels("imagenette"))


def vit_mean() -> Lens:
    """Its twin that pools tokens by their mean. Its input is normalised like ImageNet's, not as timm says."""
    import timm

    module = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, num_classes=10, global_pool="avg", class_token=False
    )
    weights = WEIGHTS / "vit_tiny_mean_imagenette_fp16.pth"
    return Lens(module, weights=weights, labels=labels("imagenette"), transform=Transform((224, 224)))


BUILDERS = {
    "resnet50": resnet50, "densenet201": densenet201, "vit_class_token": vit_class_token, "vit_mean": vit_mean,
}  # fmt: skip


def lens(name: str) -> Lens:
    return BUILDERS.get(name, lambda: Lens(name))()


def labels(folder: str) -> list[str]:
    """Class names in the order of the class index."""
    lines = (DATA / folder / "LOC_synset_mapping.txt").read_text().splitlines()
    return [line.split(" ", 1)[1].split(",")[0] for line in lines]


def samples(folder: str) -> list[tuple[Path, int]]:
    """Images with their class index, sorted by file name."""
    order = [line.split()[0] for line in (DATA / folder / "LOC_synset_mapping.txt").read_text().splitlines()]
    with open(DATA / folder / "LOC_val_solution.csv", newline="") as file:
        rows = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    files = sorted((DATA / folder / "Data/CLS-LOC/val").iterdir())
    return [(file, order.index(rows[file.stem])) for file in files]


def hits(look: Lens, items: list[tuple[Path, int]], *, batch: int = 20) -> Iterator[bool]:
    """Whether each image's top class is its own."""
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        output = look.trace([str(file) for file, _ in part], n=1).output
        yield from (int(best) == label for best, (_, label) in zip(output.argmax(1), part, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--limit", type=int, help="use only this many images, the first ones (default: all)")
    parser.add_argument(
        "--overlays", type=Path, help="save 20 overlays below this folder, from images spread over the set"
    )
    parser.epilog = "example: python benchmarks/real.py --models resnet50 --overlays overlays"
    options = parser.parse_args()
    for name in options.models:
        folder = "imagenette" if name == "densenet201" else "ILSVRC"
        look, items = lens(name), samples(folder)[: options.limit]
        found = list(hits(look, items))
        print(f"{name}: top-1 {100 * sum(found) / len(found):.1f} % of {len(found)} images of {folder}", flush=True)
        if options.overlays:
            for file, label in items[:: max(1, len(items) // 20)][:20]:
                look.classify(str(file), label).save(str(options.overlays / name / file.stem))
            print(f"overlays of the true class: {options.overlays / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
