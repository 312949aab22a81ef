"""Small networks and images for the tests. They depend on a seed only, and are float64 unless said otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from gamlens import Explanation, Lens

CLASSES = 10


def stage(inputs: int, outputs: int, *, inplace: bool = False) -> nn.Sequential:
    """Convolution with stride 2, batch norm and ReLU: halves the resolution."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=inplace)
    )


class Small(nn.Module):
    """A stem and three stages (output strides 2, 4, 8, 16), mean pooling, dropout and a linear head."""

    def __init__(self, *, channels: int = 3, inplace: bool = False, dropout: float = 0.5) -> None:
        super().__init__()
        self.stem = stage(channels, 12, inplace=inplace)
        self.layer1 = stage(12, 16, inplace=inplace)
        self.layer2 = stage(16, 24, inplace=inplace)
        self.layer3 = stage(24, 32, inplace=inplace)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(32, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(self.stem(x))))

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.dropout(self.features(x).mean(dim=(2, 3))))


class DenseLike(nn.Module):
    """Features that end in a batch norm and are followed by a functional ReLU, as in torchvision's DenseNet."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.features = nn.Sequential(
            stage(3, 12), stage(12, 16), stage(16, 24), nn.Conv2d(24, 32, 1), nn.BatchNorm2d(32)
        )
        self.classifier = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.features(x), inplace=self.inplace)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(h, (1, 1)), 1))


class Bottleneck(nn.Module):
    """Two branches that are added in place, as in a ResNet."""

    def __init__(self, inputs: int, outputs: int, *, biased: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=biased)
        self.bn = nn.BatchNorm2d(outputs)
        self.last = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.last_bn = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.last_bn(self.last(self.relu(self.bn(self.conv(x)))))
        h += self.short(x)
        return self.relu(h)


class Residual(nn.Module):
    """Three residual blocks and a linear head; returns a dict with the logits, as many training frameworks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = Bottleneck(3, 8, biased=True)
        self.layer2 = Bottleneck(8, 12, biased=False)
        self.layer3 = Bottleneck(12, 16, biased=True)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.fc(self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3))), "loss": None}


def dense() -> nn.Module:
    """A DenseNet of two blocks."""
    return models.DenseNet(8, (2, 2), 16, num_classes=CLASSES)


class Returns(Small):
    """`Small` whose output is wrapped by `wrap`, for example into a tuple, a dict or a dataclass."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(super().forward(x))


def seeded(make: Callable[..., nn.Module], *args: Any, seed: int = 0, **options: Any) -> nn.Module:
    """Call `make(...)` with weights and batch statistics that depend on `seed` only. Returns float64, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = make(*args, **options)
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias, std=0.3)
                nn.init.normal_(layer.running_mean, std=0.1)
                nn.init.uniform_(layer.running_var, 0.2, 0.6)
    return net.double().eval()


@cache
def zoo(name: str) -> Lens:
    """A lens on a torchvision classifier with random weights, in float32."""
    options = {"init_weights": False} if name in ("googlenet", "vgg11") else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Lens(models.get_model(name, weights=None, **options).eval())


def small(**options: Any) -> nn.Module:
    return seeded(Small, **options)


def skipping() -> nn.Module:
    """A network that reads every second row and column of its first block, "0"; the second is "1"."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2), nn.Softplus())
        return nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def images(count: int, size: int | tuple[int, int] = 64, *, channels: int = 3, seed: int = 0) -> Tensor:
    """Images (count,channels,H,W) in float64: noise, and a bright patch at another position in each image."""
    height, width = (size, size) if isinstance(size, int) else size
    batch = torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(seed)).double()
    for number, image in enumerate(batch):
        top, left = (number * 17) % (height // 2), (number * 29) % (width // 2)
        image[:, top : top + height // 3, left : left + width // 3] += 2
    return batch


def same(a: Explanation, b: Explanation, *, atol: float = 1e-6) -> None:
    """Assert that two explanations agree in maps, block maps, scores, targets and the image of each row."""
    assert list(a.blocks) == list(b.blocks)
    torch.testing.assert_close(a.maps, b.maps, atol=atol, rtol=0)
    for name in a.blocks:
        torch.testing.assert_close(a.blocks[name], b.blocks[name], atol=atol, rtol=0)
    torch.testing.assert_close(a.scores, b.scores, atol=atol, rtol=1e-5)
    assert a.targets.tolist() == b.targets.tolist()
    assert a.index.tolist() == b.index.tolist()
