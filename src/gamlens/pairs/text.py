"""Captions beside images: their embeddings, and the cosine of each image with each caption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gamlens import scores
from gamlens.errors import GamlensError
from gamlens.models import TextEncoder

PARTS = ("text_embeds", "pooler_output")


def listed(captions: str | Sequence[str]) -> tuple[str, ...]:
    """One caption or several, as a tuple."""
    found = (captions,) if isinstance(captions, str) else tuple(captions)
    if not found or not all(isinstance(caption, str) and caption.strip() for caption in found):
        raise GamlensError(f"Captions are texts such as ['a cheetah', 'a lion']; found {captions!r:.80}.")
    return found


def embed(captions: tuple[str, ...], encode: TextEncoder | None, given: Any, name: str) -> Tensor:
    """The captions' embeddings (T,D), out of any graph: those `given`, or what `encode` makes of them."""
    if given is None and encode is None:
        raise GamlensError(
            f"{name} reads no text: take a dual encoder ('hf/openai/clip-vit-base-patch32'), give Lens(text=...) a "
            "function from captions to embeddings (T,D), or give compare_text(embeddings=...)."
        )
    if given is None:
        assert encode is not None
        with torch.inference_mode(False), torch.no_grad():
            given = encode(list(captions))
        given = next((part for key in PARTS if (part := getattr(given, key, None)) is not None), given)
    found = torch.as_tensor(given).detach()
    if found.ndim != 2 or len(found) != len(captions) or not found.is_floating_point():
        raise GamlensError(
            f"Embeddings of {len(captions)} captions are ({len(captions)}, D) and real; found {tuple(found.shape)} of "
            f"{found.dtype}."
        )
    return found


def cosines(images: Tensor, texts: Tensor, place: str) -> Tensor:
    """Image embeddings (B,D), captions (T,D) -> cosines (B,T), in the images' graph."""
    if images.shape[1] != texts.shape[1]:
        raise GamlensError(
            f"A caption's embedding has {texts.shape[1]} numbers and the image's, {place!r}, {images.shape[1]}: name "
            "the layer that is compared with text, Lens(embedding='output') or another."
        )
    texts = texts.to(images)
    return torch.stack([scores.cosine(images, text.expand_as(images)) for text in texts], dim=1)
