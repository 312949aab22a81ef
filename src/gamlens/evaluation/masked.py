"""Confidences and embeddings of the model on image x map, in batches across all methods."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics, scores
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import Protocol
from gamlens.fuse import at_least_float32
from gamlens.inputs.batch import ModelInput
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens

IMAGES_AT_ONCE = 64


def as_model_takes(lens: Lens, batch: Tensor) -> Tensor:
    """The batch on the model's device and of its dtype."""
    own = chain(lens.model.parameters(), lens.model.buffers())
    return batch.to(next((tensor for tensor in own if tensor.is_floating_point()), batch))


def raw(lens: Lens, side: ModelInput) -> Tensor:
    """Undo the normalisation: the images in 0..1 at input size, on the model's device, (N,3,H,W)."""
    transform, batch = _transform(lens), as_model_takes(lens, side.batches[0])
    mean, std = (batch.new_tensor(value)[:, None, None] for value in (transform.mean, transform.std))
    return (batch * std + mean).clamp(0, 1)


def confidences(output: Tensor, labels: Tensor, *, multi_label: bool, temperature: float = 1.0) -> dict[str, Tensor]:
    """Return the logit and the probability (at a temperature) of each image's label, for M versions of N images.

    Shapes: outputs (M*N,K) for K classes, all images of the first version first, and labels (N,) -> {name: (M,N)}.
    """
    output = at_least_float32(output).cpu()
    chance = scores.probabilities(output, multi_label=multi_label, temperature=temperature)
    chosen = labels.repeat(len(output) // len(labels))[:, None]
    found = {"logit": output, "probability": chance}
    return {name: values.gather(1, chosen).view(-1, len(labels)) for name, values in found.items()}


def under_maps(
    lens: Lens,
    images: Tensor,
    maps: list[Tensor],
    labels: Tensor,
    protocol: Protocol,
    *,
    background: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the logit and the probability of each image's label on image x map, for M sets of maps (N,H,W).

    Hidden pixels have the protocol's colour, or show the `background` (N,3,H,W).

    Returns:
        {name: (M,N)}.
    """
    outputs = torch.cat([lens.outputs(batch) for batch in _masked(lens, images, maps, protocol, background)])
    return confidences(outputs, labels, multi_label=lens.multi_label, temperature=protocol.temperature)


def embeddings(lens: Lens, images: Tensor, maps: list[Tensor], protocol: Protocol) -> Tensor:
    """Return the embeddings of image x map, for M sets of maps (N,H,W): (M,N,D)."""
    found = [at_least_float32(lens.embed(batch)).cpu() for batch in _masked(lens, images, maps, protocol)]
    return torch.cat(found).view(-1, len(images), found[0].shape[1])


def curves(lens: Lens, images: Tensor, maps: Tensor, labels: Tensor, protocol: Protocol) -> dict[str, Tensor]:
    """The probability while pixels appear (`inserted`) or vanish (`deleted`) in the map's order: (S,N) each."""
    order = [mask.to(images) for mask in metrics.steps(maps, protocol.curves)]
    background = None
    if protocol.curve_background == "blur":
        background = metrics.blurred(images, kernel=protocol.blur_kernel, sigma=protocol.blur_sigma)
    shown = [*order, *(1 - mask for mask in order[1:-1])]  # both curves have the same ends, the other way round
    found = under_maps(lens, images, shown, labels, protocol, background=background)["probability"]
    inserted, inner = found[: len(order)], found[len(order) :]
    return {"inserted": inserted, "deleted": torch.cat([inserted[-1:], inner, inserted[:1]])}


def _masked(
    lens: Lens, images: Tensor, maps: list[Tensor], protocol: Protocol, background: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield batches of image x map: all images under several of the maps at once, up to IMAGES_AT_ONCE images."""
    transform = _transform(lens)
    fill: Any = protocol.fill
    together = max(1, IMAGES_AT_ONCE // len(images))
    for start in range(0, len(maps), together):
        part = torch.cat([values.to(images) for values in maps[start : start + together]])
        times = len(part) // len(images)
        several = images.repeat(times, 1, 1, 1)
        behind = None if background is None else background.repeat(times, 1, 1, 1)
        yield metrics.explain_mask(several, part, mean=transform.mean, std=transform.std, fill=fill, background=behind)


def _transform(lens: Lens) -> Transform:
    if not isinstance(lens.transform, Transform):
        raise GamlensError("Masking needs to know the model's mean and std: give the Lens a gamlens.Transform.")
    return lens.transform
