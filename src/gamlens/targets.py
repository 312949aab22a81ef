"""Which classes are explained on which image, and their gradients by as few backwards as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gamlens.capture import backward
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.nonblocking import indices_on
from gamlens.errors import GamlensError, near

TOP = -1  # stands for an image's top class until the output is at hand


@dataclass(frozen=True, eq=False)
class ResolvedTargets:
    """One row per image and target.

    `images[r]` is the image of row r, `classes[r]` its class, and `turns[r]` says which of the image's own targets it
    is: 0 for the first.
    """

    images: tuple[int, ...]
    classes: Tensor
    turns: tuple[int, ...]


def per_image(target: Any, images: int) -> list[Any]:
    """One entry per image: None, a class, or a list of them."""
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


def resolve(
    target: Any, output: Tensor, labels: Sequence[str], aliases: Mapping[str, str] | None = None
) -> ResolvedTargets:
    """Targets as class indices; None becomes the image's top class.

    Args:
        target: As `Lens.trace` takes it, or targets that are resolved already.
        output: Class scores (B,K).
        labels: The names of the classes.
        aliases: Other names of labels.
    """
    if isinstance(target, ResolvedTargets):
        return target
    count, known = output.shape
    images: list[int] = []
    classes: list[int] = []
    turns: list[int] = []
    for image, entry in enumerate(per_image(target, count)):
        entry = entry.tolist() if isinstance(entry, Tensor | np.ndarray) else entry
        several = list(entry) if isinstance(entry, list | tuple | set) else [entry]
        if not several:
            raise GamlensError(f"target[{image}] is empty: give a class, or None for the top class.")
        for turn, item in enumerate(several):
            images.append(image)
            turns.append(turn)
            if type(item) is not int or not 0 <= item < known:
                item = aliases.get(item, item) if aliases and isinstance(item, str) else item
                item = TOP if item is None else class_index(item, known, labels)
            classes.append(item)
    if set(classes) == {TOP} and len(classes) == count:
        chosen = output.argmax(dim=1)
    else:
        chosen = indices_on(classes, output.device)
        if TOP in classes:
            chosen = torch.where(chosen == TOP, output.argmax(dim=1)[indices_on(images, output.device)], chosen)
    return ResolvedTargets(tuple(images), chosen, tuple(turns))


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


def target_gradients(
    values: Tensor, wanted: ResolvedTargets, record: ForwardRecord, *, keep_graph: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The wanted scores (R,) and their gradients by the blocks, {block: (R,C,h,w)}, outside of the graph.

    The first targets of all images share one backward, the second targets the next, and so on; as many of these as
    fit are one batched backward. Where the record has no graph, no backward runs and there are no gradients: {}.
    `values` (B,K) are the scores of all classes, in the graph if there is one.
    """
    with outside_inference_mode(), torch.enable_grad():
        classes = wanted.classes.clone() if wanted.classes.is_inference() else wanted.classes
        if wanted.images == tuple(range(values.shape[0])):
            scores = values.gather(1, classes[:, None]).squeeze(1)
            (found,) = backward.gradients(scores, [record], keep_graph=keep_graph)
            return scores.detach(), found
        images = indices_on(wanted.images, values.device)
        scores = values.detach()[images, classes]
        place = (indices_on(wanted.turns, values.device), images)
        vectors = torch.zeros(max(wanted.turns) + 1, *values.shape, dtype=values.dtype, device=values.device)
        vectors[(*place, classes)] = 1
    several = backward.batched_gradients(values, vectors, record, keep_graph=keep_graph)
    return scores, {name: gradient[place] for name, gradient in several.items()}


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
