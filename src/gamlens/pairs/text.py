"""Captions beside images: their embeddings, and the cosine of each image with each caption."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gamlens import scores
from gamlens.errors import GamlensError

CaptionEncoder = Callable[[Sequence[str]], Any]
TEXT_OUTPUTS = ("text_embeds", "pooler_output")


def as_captions(captions: str | Sequence[str]) -> tuple[str, ...]:
    """One caption or several, as a tuple."""
    found = (captions,) if isinstance(captions, str) else tuple(captions)
    if not found or not all(isinstance(caption, str) and caption.strip() for caption in found):
        raise GamlensError(f"Captions are texts such as ['a cheetah', 'a lion']; found {captions!r:.80}.")
    return found


def embed_captions(captions: tuple[str, ...], encode: CaptionEncoder | None, given: Any, name: str) -> Tensor:
    """The embeddings (T,D) of T captions, without a graph: those `given`, or what `encode` makes of them.

    `name` is the model's, for the error message.
    """
    if given is None and encode is None:
        raise GamlensError(
            f"{name} reads no text: take a dual encoder ('hf/openai/clip-vit-base-patch32'), give Lens(text=...) a "
            "function from captions to embeddings (T,D), or give compare_text(embeddings=...)."
        )
    if given is None:
        assert encode is not None
        with torch.inference_mode(False), torch.no_grad():
            given = encode(list(captions))
        given = next((part for key in TEXT_OUTPUTS if (part := getattr(given, key, None)) is not None), given)
    found = torch.as_tensor(given).detach()
    if found.ndim != 2 or len(found) != len(captions) or not found.is_floating_point():
        raise GamlensError(
            f"Embeddings of {len(captions)} captions are ({len(captions)}, D) and real; found {tuple(found.shape)} of "
            f"{found.dtype}."
        )
    return found


def cosines(images: Tensor, texts: Tensor, place: str) -> Tensor:
    """Embeddings of images (B,D) and captions (T,D) -> cosines (B,T), in the graph of the images.

    `place` names the layer where the images' embeddings were read, for the error message.
    """
    if images.shape[1] != texts.shape[1]:
        raise GamlensError(
            f"A caption's embedding has {texts.shape[1]} numbers, but the image's embedding, read at {place!r}, has "
            f"{images.shape[1]}: name the layer that is compared with text, Lens(embedding='output') or another."
        )
    texts = texts.to(images)
    return torch.stack([scores.cosine(images, text.expand_as(images)) for text in texts], dim=1)
