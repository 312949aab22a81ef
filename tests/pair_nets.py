"""Networks with several ways from the last block to the embedding, and pairs of images traced by them."""

from __future__ import annotations

from collections.abc import Callable

import nets
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import Lens
from gamlens.pairs.pair_trace import PairTrace

X, Y = nets.images(2), nets.images(2, seed=1)


class Head(nets.Small):
    """Small with another way from the last block to the embedding."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.last, self.norm = pool, nn.Identity(), nn.LayerNorm(32)
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 16)
        self.attend, self.query = nn.MultiheadAttention(32, 4, batch_first=True), nn.Parameter(torch.randn(1, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.embed(self.features(x)))

    def embed(self, h: Tensor) -> Tensor:
        mean = h.mean(dim=(2, 3))
        if self.pool == "attention":
            tokens = h.flatten(2).transpose(1, 2)
            return self.attend(self.query.expand(len(h), -1, -1), tokens, tokens)[0][:, 0]
        ways: dict[str, Callable[[], Tensor]] = {
            "mean": lambda: mean,
            "max": lambda: h.amax(dim=(2, 3)),
            "gem": lambda: h.clamp(min=1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3),
            "fc": lambda: self.second(F.relu(self.first(mean))),
            "bias": lambda: mean + 0.1,
            "whole": lambda: h.flatten(1),
            "normalised": lambda: F.normalize(self.second(F.gelu(self.first(mean)))),
            "layer_norm": lambda: self.norm(mean),
        }
        return ways[self.pool]()


def traced(pool: str, x: Tensor = X, y: Tensor = Y) -> PairTrace:
    return Lens(nets.seeded(Head, pool), embedding="last").trace_pair(x, y)


class Tokens(nn.Module):
    """A transformer of two layers whose embedding is its class token."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.net = VisionTransformer(32, 8, 2, heads, 16, 32, num_classes=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def transformer(heads: int = 2) -> PairTrace:
    """A pair of images of 4 x 4 patches, traced by `Tokens`."""
    net = nets.seeded(Tokens, heads)
    nn.init.normal_(net.net.heads.head.weight)  # type: ignore[union-attr]
    return Lens(net).trace_pair(nets.images(1, 32), nets.images(1, 32, seed=1))
