"""Methods of the package grad-cam (pytorch_grad_cam): `grad_cam_lib:ScoreCAM`, `grad_cam_lib:LayerCAM?n=2`.

They run as the package runs them: the map of a layer is made of its positive part, scaled to [0,1], resized bilinearly,
and averaged over layers. The layers are the lens's last n blocks (n=1 by default), or layer=NAME. Smoothing is off
unless asked for (aug_smooth=True, eigen_smooth=True). Where a network writes to the output of a block in place, the
package is shown the output as the block gave it. The model runs in its own precision, without autocast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

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
    Embedder,
    ExplainedLayers,
    blocks_read,
    copied_outputs,
    explained_layers,
    for_model,
)
from gamlens.lens import Lens
from gamlens.scores import PairScoreFunction

GRAD_CAM = "grad-cam"
OURS_TO_GIVE = ("model", "target_layers", "reshape_transform", "input_tensor", "targets", "target_idx")
RowTarget = Callable[[Tensor], Tensor]  # what is explained, of the output of one image: (K,) or (D,) -> ()


def grad_cam_names() -> tuple[str, ...]:
    """The classes of grad-cam that can be used."""
    return tuple(_classes())


def grad_cam_explainer(spec: ExplainerSpec) -> Explainer:
    """The explainer that `grad_cam_lib:CLASS` names."""
    found = _classes()
    if spec.entry not in found:
        raise unknown_class(spec, GRAD_CAM, found)
    kind: Any = found[spec.entry]
    options = take_options(spec, _known_options(kind))
    if (base := options.get("base_method")) is not None:
        if base not in found:
            raise unknown_class(spec, GRAD_CAM, found, f"{GRAD_CAM} has no class {base!r}")
        options["base_method"] = found[base]
    return Explainer(
        name=spec.text,
        title=spec.title,
        bind=partial(_bind, spec.text, kind, options),
        source=package_version(GRAD_CAM),
        pairs=_explains_any_score(kind),
    )


def _package() -> Any:
    return import_extra("pytorch_grad_cam", "An explainer of grad-cam", extra="peers")


def _classes() -> dict[str, type]:
    return classes_of(_package(), _usable)


def _usable(kind: Any) -> bool:
    """Whether a class is a method of the package: it takes a model and layers, and images with targets."""
    made = list(parameters_of(kind.__init__))
    return made[:2] == ["model", "target_layers"] and "targets" in _call_parameters(kind)


def _call_parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """The parameters by which an object of the class is called; `forward` has them where `__call__` passes all on."""
    found = parameters_of(kind.__call__) if "__call__" in dir(kind) else {}
    return found if "targets" in found else parameters_of(getattr(kind, "forward", _nothing))


def _nothing() -> None:
    """Stands for a method that a class does not have."""


def _explains_any_score(kind: Any) -> bool:
    """Whether the class explains any function of the output, as all do that are derived from BaseCAM."""
    return issubclass(kind, import_extra("pytorch_grad_cam.base_cam", "grad-cam", extra="peers").BaseCAM)


def _known_options(kind: Any) -> dict[str, Any]:
    call = _call_parameters(kind)
    found = {name: item.default for name, item in call.items() if name not in OURS_TO_GIVE}
    base = {"base_method": None} if "base_method" in parameters_of(kind.__init__) else {}
    return {**options_of(kind.__init__, OURS_TO_GIVE), **found, **base, "n": blocks_read(kind), "layer": None}


def _bind(name: str, kind: Any, options: Mapping[str, Any], lens: Lens) -> BoundExplainer:
    scores_of: list[ClassScores] = []  # filled at the first batch

    def classify(batch: Tensor, targets: Tensor) -> Tensor:
        images = for_model(lens, batch)
        with reworded(f"{name!r} failed on {lens.name}"), left_as_it_was(unwrap(lens.model), frozen=True):
            if not scores_of:
                scores_of.append(ClassScores(lens, images))
            layers = explained_layers(lens, images, n=options["n"], layer=options["layer"])
            classes = [int(target) for target in targets]
            if "target_idx" in parameters_of(getattr(kind, "forward", _nothing)):  # FinerCAM: one class for a batch
                rows = [
                    _run(kind, scores_of[0], layers, image[None], None, options, target_idx=label)
                    for image, label in zip(images, classes, strict=True)
                ]
                found = np.concatenate(rows)
            else:
                made = import_extra("pytorch_grad_cam.utils.model_targets", "grad-cam", extra="peers")
                wanted = [made.ClassifierOutputTarget(label) for label in classes]
                found = _run(kind, scores_of[0], layers, images, wanted, options)
        return checked_maps(found, len(batch), size_of(batch), name=name, device=lens.device)

    def compare(x: Tensor, y: Tensor, score: PairScoreFunction) -> tuple[Tensor, Tensor]:
        sides, maps = (for_model(lens, x), for_model(lens, y)), []
        with reworded(f"{name!r} failed on {lens.name}"), left_as_it_was(unwrap(lens.model), frozen=True):
            network = Embedder(lens, sides[0])
            embeddings = [network(side).detach() for side in sides]
            for side, others in zip(sides, reversed(embeddings), strict=True):
                layers = explained_layers(lens, side, n=options["n"], layer=options["layer"])
                wanted = [partial(_similarity, score, other) for other in others]
                found = _run(kind, network, layers, side, wanted, options)
                maps.append(checked_maps(found, len(side), size_of(side), name=name, device=lens.device))
        return maps[0], maps[1]

    return BoundExplainer(classify, compare if _explains_any_score(kind) else None)


def _similarity(score: PairScoreFunction, other: Tensor, embedding: Tensor) -> Tensor:
    """The score of one embedding (D,) and another: ()."""
    return score(embedding[None], other[None])[0]


def _run(
    kind: Any,
    network: nn.Module,
    layers: ExplainedLayers,
    images: Tensor,
    targets: Sequence[RowTarget] | None,
    options: Mapping[str, Any],
    **target: Any,
) -> Any:
    """Run the package and return its maps, an array (B,H,W)."""
    made, call = parameters_of(kind.__init__), _call_parameters(kind)
    own = {name: value for name, value in options.items() if name in made and value is not None}
    if "ablation_layer" in made:  # its default is one object for all, which keeps the activations of the last image
        own["ablation_layer"] = _package().AblationLayer()
    takes_layers = not _finds_its_layers(kind)
    method = kind(network, layers.modules if takes_layers else [], layers.reshape, **own)
    second = getattr(getattr(method, "base_cam", method), "detach", True) is False
    if second or not (_explains_any_score(kind) or target):
        # ShapleyCAM takes derivatives of parameters, too; SESS runs parts of the images without a gradient of theirs
        for parameter in network.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
    asked = {name: value for name, value in options.items() if name in call and value is not None}
    with copied_outputs(layers.modules), _without_progress_bars():
        return method(images.requires_grad_(True), targets, **asked, **target)


def _finds_its_layers(kind: Any) -> bool:
    """Whether the class reads all layers with a bias, and prints a warning if it is given some: FullGrad."""
    return issubclass(kind, _package().FullGrad)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Let the loops of the package run without tqdm's progress bars, which would fill the terminal."""
    names = ("score_cam", "ablation_cam")
    modules: list[Any] = [import_extra(f"pytorch_grad_cam.{name}", "grad-cam", extra="peers") for name in names]
    before = [module.tqdm for module in modules]
    try:
        for module in modules:
            module.tqdm = _Silent
        yield
    finally:
        for module, tqdm in zip(modules, before, strict=True):
            module.tqdm = tqdm


class _Silent:
    """In place of the module tqdm: its progress bar is the sequence itself."""

    @staticmethod
    def tqdm(items: Any, **options: Any) -> Any:
        return items
