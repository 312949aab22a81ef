"""Which classes are explained on which image, and their gradients by as few backwards as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gamlens.capture import batched_backward as turns
from gamlens.capture import forward as capture
from gamlens.capture.checks import indices_on
from gamlens.errors import GamlensError, near

TOP = -1


@dataclass(frozen=True, eq=False)
class Wanted:
    """One row per image and target: index[r] is the image, targets[r] the class, turn[r] which of the image's own."""

    index: tuple[int, ...]
    targets: Tensor
    turn: tuple[int, ...]


def per_image(target: Any, images: int) -> list[Any]:
    """One entry an image: None, a class, or a list of them."""
    if isinstance(target, Tensor | np.ndarray):
        target = target.tolist()
    if target is None or isinstance(target, int | str | np.integer):
        return [target] * images
    if not isinstance(target, Sequence) or len(target) != images:
        found = f"{len(target)} entries" if isinstance(target, Sequence) else repr(target)
        raise GamlensError(
            f"target needs one entry for each of the {images} images (a class, None, or a list of classes); "
            f"found {found}. Several classes of one image are written [[281, 285]]."
        )
    return list(target)


def resolve(target: Any, output: Tensor, labels: Sequence[str], aliases: Mapping[str, str] | None = None) -> Wanted:
    """Targets as class indices; None becomes the image's top class. output (B,K); aliases are other names of labels."""
    entries = per_image(target, len(output))
    if all(entry is None for entry in entries):
        return Wanted(tuple(range(len(output))), output.argmax(dim=1), (0,) * len(output))
    several = [entry if type(entry) is list else [entry] for entry in entries]
    if all(own and all(type(item) is int and 0 <= item < output.shape[1] for item in own) for own in several):
        index = tuple(image for image, own in enumerate(several) for _ in own)
        turn = tuple(number for own in several for number in range(len(own)))
        return Wanted(index, indices_on([item for own in several for item in own], output.device), turn)
    return _resolve_each(entries, output, labels, aliases or {})


def _resolve_each(entries: list[Any], output: Tensor, labels: Sequence[str], aliases: Mapping[str, str]) -> Wanted:
    """Entry by entry: names, numbers of any kind, None, and an error for what is none of these."""
    index, classes, turn = [], [], []
    for image, entry in enumerate(entries):
        several = list(entry) if isinstance(entry, list | tuple | set | Tensor | np.ndarray) else [entry]
        if not several:
            raise GamlensError(f"target[{image}] is empty: give a class, or None for the top class.")
        for number, item in enumerate(several):
            item = aliases.get(item, item) if isinstance(item, str) else item
            index.append(image)
            classes.append(TOP if item is None else class_index(item, output.shape[1], labels))
            turn.append(number)
    chosen = indices_on(classes, output.device)
    if TOP in classes:
        chosen = torch.where(chosen == TOP, output.argmax(dim=1)[indices_on(index, output.device)], chosen)
    return Wanted(tuple(index), chosen, tuple(turn))


def class_index(item: Any, classes: int, labels: Sequence[str]) -> int:
    """A class by number or by name."""
    if isinstance(item, str) and item.isdigit() and item not in labels:
        item = int(item)
    if isinstance(item, str):
        return _by_name(item, labels)
    try:
        number = int(item)
    except (TypeError, ValueError) as error:
        raise GamlensError(f"A class is a number or a name, not {item!r}.") from error
    if isinstance(item, bool) or number != item or not 0 <= number < classes:
        raise GamlensError(f"There is no class {item!r}: the model has {classes}, numbered 0 to {classes - 1}.")
    return number


def gradients(values: Tensor, wanted: Wanted, tail: capture.ForwardRecord, *, keep_graph: bool) -> dict[str, Tensor]:
    """d score / d block, one row per image and target: {block: (R,C,h,w)}.

    The first targets of all images share one backward, the second targets the next, and so on; as many of these as
    fit are one batched backward.
    """
    count = max(wanted.turn) + 1
    if count == 1 and wanted.index == tuple(range(len(values))):
        with torch.inference_mode(False), torch.enable_grad():
            chosen = values.gather(1, _usable(wanted.targets)[:, None])[:, 0]
        return capture.gradients(chosen, [tail], keep_graph=keep_graph)[0]
    at = (indices_on(wanted.turn, values.device), indices_on(wanted.index, values.device))
    with torch.inference_mode(False):
        vectors = torch.zeros(count, *values.shape, dtype=values.dtype, device=values.device)
        vectors[(*at, _usable(wanted.targets))] = 1
    found = turns.gradients(values, vectors, tail, keep_graph=keep_graph)
    return {name: gradient[at] for name, gradient in found.items()}


def _usable(targets: Tensor) -> Tensor:
    """Outside of inference mode, too."""
    return targets.clone() if targets.is_inference() else targets


def _by_name(name: str, labels: Sequence[str]) -> int:
    if not labels:
        raise GamlensError(
            f"The class {name!r} was asked for by name, but the model has no labels: give labels= or a number."
        )
    hits = [number for number, label in enumerate(labels) if label == name]
    hits = hits or [number for number, label in enumerate(labels) if label.lower() == name.lower()]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise GamlensError(f"{name!r} names the classes {', '.join(map(str, hits))}: give the number.")
    raise GamlensError(f"There is no class {name!r}: {near(name, labels)}")
