"""Methods of the package torchcam: `torchcam:LayerCAM`, `torchcam:ScoreCAM?n=1`.

The layers are the lens's last n blocks (n=1 by default), or layer=NAME; the maps of several layers are fused by the
package itself. Where a network writes to the output of a block in place, the package is shown the output as the block
gave it. The model runs in its own precision, without autocast. Pairs are not explained.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from gamlens.capture.guard import unwrap
from gamlens.data.reading import import_extra
from gamlens.errors import reworded
from gamlens.evaluation.explainers.checked_maps import checked_maps, size_of
from gamlens.evaluation.explainers.class_inspection import classes_of, options_of, parameters_of
from gamlens.evaluation.explainers.explainer import BoundExplainer, Explainer
from gamlens.evaluation.explainers.explainer_specs import ExplainerSpec, package_version, take_options, unknown_class
from gamlens.evaluation.explainers.held_model import left_as_it_was
from gamlens.evaluation.explainers.network_parts import (
    ClassScores,
    ExplainedLayers,
    blocks_read,
    copied_outputs,
    explained_layers,
    for_model,
)
from gamlens.lens import Lens

TORCHCAM = "torchcam"
GIVEN_TO_TORCHCAM = ("model", "target_layer", "input_shape", "enable_hooks", "score_projection", "base_method")


def torchcam_names() -> tuple[str, ...]:
    """The classes of torchcam that can be used."""
    return tuple(_classes())


def torchcam_explainer(spec: ExplainerSpec) -> Explainer:
    """The explainer that `torchcam:CLASS` names."""
    found = _classes()
    if spec.entry not in found:
        raise unknown_class(spec, TORCHCAM, found)
    kind: Any = found[spec.entry]
    options = take_options(
        spec, {**options_of(kind.__init__, GIVEN_TO_TORCHCAM), "n": blocks_read(kind), "layer": None}
    )
    bind = partial(_bind, spec.text, kind, options)
    return Explainer(name=spec.text, title=spec.title, bind=bind, source=package_version(TORCHCAM))


def _classes() -> dict[str, type]:
    return classes_of(import_extra("torchcam.methods", "An explainer of torchcam", extra="peers"), _usable)


def _usable(kind: Any) -> bool:
    """Whether a class reads blocks of any network. LeGrad does not, which takes transformers of torchvision alone."""
    return hasattr(kind, "compute_cams") and {"target_layer", "input_shape"} <= set(parameters_of(kind.__init__))


def _bind(name: str, kind: Any, options: Mapping[str, Any], lens: Lens) -> BoundExplainer:
    scores_of: list[ClassScores] = []  # filled at the first batch

    def classify(batch: Tensor, targets: Tensor) -> Tensor:
        images = for_model(lens, batch)
        with reworded(f"{name!r} failed on {lens.name}"), left_as_it_was(unwrap(lens.model), frozen=True):
            if not scores_of:
                scores_of.append(ClassScores(lens, images))
            layers = explained_layers(lens, images, n=options["n"], layer=options["layer"])
            found = _run(kind, scores_of[0], layers, images, [int(target) for target in targets], options)
        return checked_maps(found, len(batch), size_of(batch), name=name, device=lens.device)

    return BoundExplainer(classify)


def _run(
    kind: Any,
    network: ClassScores,
    layers: ExplainedLayers,
    images: Tensor,
    classes: list[int],
    options: Mapping[str, Any],
) -> Tensor:
    """Run the package and return its maps (B,h,w) at the size of the largest layer."""
    own = {key: value for key, value in options.items() if key in parameters_of(kind.__init__) and value is not None}
    if layers.reshape is not None:
        own["reshape_transform"] = layers.reshape
    with _quiet(), kind(network, layers.modules, **own) as method, copied_outputs(layers.modules):
        scores = network(images.requires_grad_(True))
        found: list[Tensor] = method(classes, scores)
        return found[0] if len(found) == 1 else method.fuse_cams(found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the package not log which layer it takes for the classifier, which it does at every batch."""
    logger = logging.getLogger(TORCHCAM)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
