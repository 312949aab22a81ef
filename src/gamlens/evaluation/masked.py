"""The model on image x map: confidences and embeddings of masked images, batched across methods."""

from __future__ import annotations

from collections.abc import Iterator
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
from gamlens.models import pick

LARGEST = 64


def raw(lens: Lens, side: ModelInput) -> Tensor:
    """The images in 0..1 at input size, on the model's device: (N,3,H,W)."""
    look = _look(lens)
    batch = lens.sight.fit(side.batches[0])
    mean, std = (batch.new_tensor(value)[:, None, None] for value in (look.mean, look.std))
    return (batch * std + mean).clamp(0, 1)


def confidences(output: Tensor, labels: Tensor, *, multi_label: bool) -> dict[str, Tensor]:
    """Logit and probability of the true class: (M N,K), (N,) -> {name: (M,N)}."""
    output = at_least_float32(output).cpu()
    chance = scores.probabilities(output, multi_label=multi_label)
    chosen = labels.repeat(len(output) // len(labels))[:, None]
    found = {"logit": output, "probability": chance}
    return {name: values.gather(1, chosen).view(-1, len(labels)) for name, values in found.items()}


def under_maps(lens: Lens, images: Tensor, maps: list[Tensor], labels: Tensor, protocol: Protocol) -> dict[str, Tensor]:
    """Logit and probability of the true class under every map (N,H,W): {name: (M,N)}."""
    outputs = [_output(lens, batch) for batch in _masked(lens, images, maps, protocol)]
    return confidences(torch.cat(outputs), labels, multi_label=lens.multi_label)


def embeddings(lens: Lens, images: Tensor, maps: list[Tensor], protocol: Protocol) -> Tensor:
    """Embeddings under every map: (M,N,D)."""
    found = []
    for batch in _masked(lens, images, maps, protocol):
        tail = lens.sight.look(batch, [], embedding=True)
        assert tail.embedding is not None
        found.append(at_least_float32(tail.embedding).flatten(1).cpu())
    flat = torch.cat(found)
    return flat.view(-1, len(images), flat.shape[1])


def curves(lens: Lens, images: Tensor, maps: Tensor, labels: Tensor, protocol: Protocol) -> dict[str, Tensor]:
    """Area under the probability while pixels appear, or vanish, in the map's order: {name: (N,)}."""
    order = [mask.to(images) for mask in metrics.steps(maps, protocol.curves)]
    shown = under_maps(lens, images, order, labels, protocol)["probability"]
    hidden = under_maps(lens, images, [1 - mask for mask in order], labels, protocol)["probability"]
    return {"insertion": metrics.auc(shown), "deletion": metrics.auc(hidden)}


def _masked(lens: Lens, images: Tensor, maps: list[Tensor], protocol: Protocol) -> Iterator[Tensor]:
    """Image x map for every map, as batches for the model: several maps together up to LARGEST."""
    look = _look(lens)
    fill: Any = protocol.fill
    together = max(1, LARGEST // len(images))
    for start in range(0, len(maps), together):
        part = torch.cat([values.to(images) for values in maps[start : start + together]])
        several = images.repeat(len(part) // len(images), 1, 1, 1)
        yield lens.sight.fit(metrics.explain_mask(several, part, mean=look.mean, std=look.std, fill=fill))


def _output(lens: Lens, batch: Tensor) -> Tensor:
    return pick(lens.sight.look(batch, []).output, lens.sight.output).detach()


def _look(lens: Lens) -> Transform:
    if not isinstance(lens.transform, Transform):
        raise GamlensError("Masking needs to know the model's mean and std: give the Lens a gamlens.Transform.")
    return lens.transform
