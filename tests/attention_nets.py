"""Small transformers whose attention is computed in every way that torch has, with the same weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, PATCH, GRID = 8, 2, 4, 3


class Attention(nn.Module):
    """Self-attention (B,N,C) -> (B,N,C): "fused" by torch's kernel, or "plain" in steps."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.proj = how, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.how == "fused":
            found = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            found = F.dropout(weights.softmax(dim=-1), 0.1, self.training) @ v
        return self.proj(found.transpose(1, 2).flatten(2))


class MultiHead(nn.Module):
    """The same by nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Layer(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = MultiHead() if how == "multi_head" else Attention(how)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Two layers of two heads over 3 x 3 patches, and a class token unless tokens are pooled by their mean."""

    def __init__(self, how: str = "fused", *, mean: bool = False, layers: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.mean, self.calls = mean, 0
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, GRID * GRID + (not mean), WIDTH))
        self.layers = nn.ModuleList([Layer(how) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        if not self.mean:
            tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1)
        tokens = tokens + self.places
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        return self.head(tokens.mean(dim=1) if self.mean else tokens[:, 0])


def transformer(how: str = "fused", *, mean: bool = False, dtype: torch.dtype = torch.float64) -> Transformer:
    """A Transformer in eval mode; those with the same `mean` have the same weights, however attention is computed."""
    torch.manual_seed(0)
    plain = Transformer("plain", mean=mean)
    found = Transformer(how, mean=mean)
    weights = plain.state_dict()
    if how == "multi_head":
        names = {"qkv.weight": "in_proj_weight", "qkv.bias": "in_proj_bias", "proj.": "out_proj."}
        for old in list(weights):
            new = old
            for part, other in names.items():
                new = new.replace(f"attention.{part}", f"attention.inner.{other}")
            weights[new] = weights.pop(old)
    found.load_state_dict(weights)
    return found.to(dtype).eval()


def images(count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 3, GRID * PATCH, GRID * PATCH, generator=torch.Generator().manual_seed(1)).to(dtype)
