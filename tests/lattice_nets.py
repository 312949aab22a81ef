"""Small networks that read every position of a block, or a lattice of them, and images for them."""

import torch
from torch import Tensor, nn

from gamlens import Lens

SIZE = (32, 32)


def net(*between: nn.Module, channels: int = 4, seed: int = 1) -> nn.Module:
    """One block at half the input size, then `between`, a second block, and a linear head on the mean."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU())
    second = nn.Sequential(*between, nn.Softplus())
    return nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def skipping(stride: int | tuple[int, int] = 2, channels: int = 8) -> nn.Module:
    return net(nn.Conv2d(channels, channels, 1, stride=stride), channels=channels)


def lens_of(model: nn.Module) -> Lens:
    return Lens(model, blocks=["0", "1"])


def images(count: int = 2, size: tuple[int, int] = SIZE) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(3))
