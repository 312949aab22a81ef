"""Of which transformer layers the attention can be read: found by trying it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.attention import AttentionTap, SkippedLayers
from gamlens.capture.layer_points import TokenGrid
from gamlens.errors import GamlensError

TOLERANCE = 1e-3  # by which the output may change, relative to its largest value: fused kernels round differently


@dataclass(frozen=True)
class AttentionLayers:
    """Of which transformer layers the attention can be read.

    Attributes:
        modules: The paths of the layers, in the order in which they run; () if it cannot be read.
        grid: Where their tokens lie in the image.
        reason: Why it cannot be read; "" if it can, or if the network has no transformer layers.
        own_tokens: Whether the rest of the network can be applied to the tokens of every layer.
    """

    modules: tuple[str, ...] = ()
    grid: TokenGrid | None = None
    reason: str = ""
    own_tokens: bool = False


def find_attention(
    model: nn.Module,
    image: Tensor,
    layers: Sequence[tuple[str, TokenGrid]],
    pick_scores: Callable[[Any], Any],
) -> AttentionLayers:
    """Try to read the attention of transformer layers: two forwards, and one of the part after the layers.

    It can be read if the attention of every layer is a matrix from all tokens to all tokens whose rows sum to 1, and if
    the network gives the same output with it. The caller puts the model into eval mode and switches gradients off.

    Args:
        model: The network.
        image: One image (1,C,H,W); noise is run in its place, since a blank image may hide a difference.
        layers: The path of each layer, and where its tokens lie.
        pick_scores: Takes the class scores, or the embedding, out of what the model returns.
    """
    if not layers:
        return AttentionLayers()
    modules, grid = tuple(name for name, _ in layers), layers[-1][1]
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(image.shape, generator=generator).to(image)
    tap = AttentionTap(model, modules, graph="")
    try:
        plain = pick_scores(model(noise.clone()))
        with tap.attached():
            read = pick_scores(model(noise.clone()))
    except GamlensError as error:
        return AttentionLayers(reason=str(error))
    except Exception as error:  # noqa: BLE001 - whatever an attention of its own kind raises, other methods are there
        return AttentionLayers(reason=f"{type(error).__name__}: {error}")
    for name, layer in tap.layers.items():
        shape, count = tuple(layer.attention.shape), grid.count
        if len(shape) != 4 or shape[0] != 1 or shape[2:] != (count, count):
            return AttentionLayers(
                reason=f"the attention of layer {name!r} is {shape}, not one matrix of all {count} tokens per head"
            )
        if not bool(((layer.attention.float().sum(dim=-1) - 1).abs() < TOLERANCE).all()):
            return AttentionLayers(reason=f"the rows of the attention of layer {name!r} do not sum to 1")
        if layer.tokens is None or layer.tokens.ndim != 3:
            return AttentionLayers(reason=f"layer {name!r} does not return tokens (B,N,C)")
    if not _same(plain, read):
        return AttentionLayers(reason="the network gives another output if its attention is computed in plain steps")
    return AttentionLayers(modules, grid, own_tokens=_takes_own_tokens(model, noise, tap, plain, pick_scores))


def _takes_own_tokens(
    model: nn.Module, noise: Tensor, tap: AttentionTap, plain: Any, pick_scores: Callable[[Any], Any]
) -> bool:
    """Whether the rest of the network, applied to the tokens of all layers at once, gives the output for the last."""
    tokens = torch.cat([layer.kept_tokens() for layer in tap.layers.values()])
    try:
        with torch.no_grad(), SkippedLayers(model, tap.modules, tokens, tap.tuples):
            found = pick_scores(model(noise.clone()))
    except Exception:  # noqa: BLE001 - a network whose rest does not take other tokens
        return False
    return isinstance(found, Tensor) and len(found) == len(tokens) and _same(plain, found[-1:])


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= TOLERANCE * one.abs().max())
