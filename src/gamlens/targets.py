"""Resolve which classes are explained on which image, and compute their gradients in as few backwards as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gamlens.capture import attention_backward, backward
from gamlens.capture.attention_backward import LayerTensors
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.nonblocking import indices_on
from gamlens.errors import GamlensError, near, warn

TOP = -1  # a placeholder for "the image's top class", which `resolve` replaces by the index of that class


@dataclass(frozen=True, eq=False)
class ResolvedTargets:
    """The explained classes as R rows, one row per image and target.

    Attributes:
        images: The index of each row's image, R numbers.
        classes: The class index of each row, (R,) int64.
        turns: For each row, the position of its class among the targets of its image: 0 for the first, 1 for the
            second. Rows with the same turn belong to different images, so one backward can serve them all.
    """

    images: tuple[int, ...]
    classes: Tensor
    turns: tuple[int, ...]


def per_image(target: Any, images: int) -> list[Any]:
    """Spread a `target` argument over the images: one entry per image, each None, a class, or a list of classes."""
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
    """Turn targets into class indices. None means the class with the highest score.

    Args:
        target: What the user gave to `Lens.trace`: None, a class number or name, or a list with one entry per image.
            ResolvedTargets are returned as they are.
        output: The scores of K classes, (B,K).
        labels: The names of the classes, or an empty sequence.
        aliases: Other names for labels: {alias: label}.
    """
    if isinstance(target, ResolvedTargets):
        return target
    count, known = output.shape
    if labels and len(labels) != known:
        warn(
            f"There are {len(labels)} labels, but the model gives {known} class scores: names may be those of other "
            "classes. Give labels= with one name per class score."
        )
    images: list[int] = []
    classes: list[int] = []
    turns: list[int] = []
    for image, entry in enumerate(per_image(target, count)):
        entry = entry.tolist() if isinstance(entry, Tensor | np.ndarray) else entry
        several = list(entry) if isinstance(entry, list | tuple | set) else [entry]
        if not several:
            raise GamlensError(f"target[{image}] is an empty list: give a class, or None for the top class.")
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
    """Return the index of a class that is given by number or by name; a string of digits counts as a number."""
    if isinstance(item, str) and item.isdigit() and item not in labels:
        item = int(item)
    if isinstance(item, str):
        return _by_name(item, labels)
    try:
        number = int(item)
    except (TypeError, ValueError) as error:
        raise GamlensError(f"A class is given by its number or its name; found {item!r}.") from error
    if isinstance(item, bool) or number != item or not 0 <= number < classes:
        raise GamlensError(f"There is no class {item!r}: the model has {classes} classes, numbered 0 to {classes - 1}.")
    return number


def attention_gradients(
    values: Tensor, wanted: ResolvedTargets, record: ForwardRecord, own_values: Tensor | None
) -> LayerTensors:
    """Compute the gradients of the wanted classes' scores with respect to the attention layers that a record kept.

    The k-th targets of all images share one backward. The graph is kept.

    Args:
        values: The scores of all classes, (B,K), in the graph.
        wanted: The R rows of image and class.
        record: The forward that `values` come from.
        own_values: The scores of all classes for every layer's own tokens, (L*B,K), layer by layer, where a method
            needs them.

    Returns:
        {layer: {what: (R,...)}}; {} where the record kept no attention.
    """
    if record.attention is None:
        return {}
    turns = []
    with outside_inference_mode(), torch.enable_grad():
        images = indices_on(wanted.images, values.device)
        place = (indices_on(wanted.turns, values.device), images)
        vectors = torch.zeros(max(wanted.turns) + 1, *values.shape, dtype=values.dtype, device=values.device)
        vectors[(*place, wanted.classes)] = 1
        for vector in vectors:
            own = None
            if own_values is not None:
                own = (own_values * vector.repeat(len(own_values) // len(vector), 1)).sum(dim=1)
            score = (values * vector).sum(dim=1)
            turns += attention_backward.gradients_of(score, [record], partial(_same_for_every_record, own))
    if wanted.images == tuple(range(len(values))):
        return turns[0]
    return attention_backward.stacked_rows(turns, place)


def _same_for_every_record(own: Tensor | None, number: int) -> Tensor | None:
    return own


def target_gradients(
    values: Tensor, wanted: ResolvedTargets, record: ForwardRecord, *, keep_graph: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the scores of the wanted classes and their gradients with respect to the blocks.

    The images of a batch do not influence each other, so the gradient of a sum of scores of different images holds
    the gradient of each. The first targets of all images therefore share one backward, the second targets the next,
    and so on. Several of these run as one batched backward (`backward.batched_gradients`).

    Args:
        values: The scores of all classes, (B,K), in the graph if there is one.
        wanted: The R rows of image and class.
        record: The forward that `values` come from.
        keep_graph: Whether the graph is kept for a later backward.

    Returns:
        The scores (R,) and {block: gradient (R,C,h,w)}, both detached. Without a graph, no backward runs
        and there are no gradients: {}.
    """
    with outside_inference_mode(), torch.enable_grad():  # the caller may have switched gradients off
        classes = wanted.classes.clone() if wanted.classes.is_inference() else wanted.classes
        if wanted.images == tuple(range(values.shape[0])):
            scores = values.gather(1, classes[:, None]).squeeze(1)
            (found,) = backward.gradients(scores, [record], keep_graph=keep_graph)
            return scores.detach(), found
        images = indices_on(wanted.images, values.device)
        scores = values.detach()[images, classes]
        place = (indices_on(wanted.turns, values.device), images)
        vectors = torch.zeros(max(wanted.turns) + 1, *values.shape, dtype=values.dtype, device=values.device)
        vectors[(*place, classes)] = 1  # vectors[turn, image] is one-hot: it selects the score of one class
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
        raise GamlensError(
            f"{name!r} is the name of several classes ({', '.join(map(str, hits))}): give the number of one of them."
        )
    raise GamlensError(f"There is no class {name!r}: {near(name, labels)}")
