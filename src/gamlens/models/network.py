"""What a network is, beside its layers: its input, its labels, where its weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gamlens.models.outputs import Output

TextEncoder = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Network:
    """A model with what comes with it. `weights` says where they are from; "random" means untrained.

    `size`, `mean`, `std` and `short` (the short side before a centre crop) describe its input; `aliases` are other
    names of its labels; a multi-label model's probabilities are sigmoids. `output` picks the class scores or the
    embedding out of what it returns; `text` is the other half of a dual encoder, captions -> embeddings (T,D).
    `embeds` says that what it returns is an embedding, and is what pairs are compared by.
    """

    module: nn.Module
    name: str
    weights: str
    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    short: int = 256
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    multi_label: bool = False
    output: Output = None
    text: TextEncoder | None = None
    embeds: bool = False
