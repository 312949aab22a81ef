"""What a network is, beside its layers: its input, its labels, where its weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gamlens.inputs.transform import IMAGENET_MEAN, IMAGENET_STD
from gamlens.models.outputs import Output

TextEncoder = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Network:
    """A model with what comes with it.

    Attributes:
        weights: Where the weights are from; "random" means untrained.
        size, mean, std, short: Its input; `short` is the short side before a centre crop.
        labels: Class names. `aliases` gives other names of the same classes.
        multi_label: Whether probabilities are sigmoids.
        output: How the class scores, or the embedding, are picked out of what the module returns.
        text: The text half of a dual encoder: captions -> embeddings (T,D).
        embeds: Whether what the module returns is an embedding, by which pairs are compared.
    """

    module: nn.Module
    name: str
    weights: str
    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    short: int = 256
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    multi_label: bool = False
    output: Output = None
    text: TextEncoder | None = None
    embeds: bool = False
