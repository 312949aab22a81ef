"""Attribution methods of captum: `captum:IntegratedGradients`, `captum:Occlusion?window=32&stride=16`.

Attributions to the input, (B,C,H,W), become a map by summing over the channels and taking the absolute value, as
captum's own `visualize_image_attr` shows them by default; sign=positive takes the positive part instead. Attributions
to a layer are summed over its channels, only their positive part is kept (sign=absolute takes the absolute value), and
the map is resized bilinearly to the input. The layer is the lens's last block, or layer=NAME.

What stands for "nothing there" is the value 0 of the normalised input, that is the mean colour (option baseline=).
Methods that hide parts of the image hide squares of a grid of cells x cells (option cells=), Occlusion a window that
moves in steps of `stride` pixels. The model runs in its own precision, without autocast.

GuidedBackprop, Deconvolution and GuidedGradCam change the backward of nn.ReLU modules alone, and DeepLift and LRP know
modules alone: an F.relu in the network's code has its plain backward (DenseNet has one, after its features).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.guard import unwrap
from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError, reworded
from gamlens.evaluation.explainers.checked_maps import checked_maps, size_of
from gamlens.evaluation.explainers.class_inspection import classes_of, needed_by, options_of, parameters_of
from gamlens.evaluation.explainers.explainer import BoundExplainer, Explainer
from gamlens.evaluation.explainers.explainer_specs import ExplainerSpec, package_version, take_options, unknown_class
from gamlens.evaluation.explainers.held_model import left_as_it_was
from gamlens.evaluation.explainers.network_parts import (
    ClassScores,
    Embedder,
    ExplainedLayers,
    PairSimilarity,
    explained_layers,
    for_model,
)
from gamlens.lens import Lens
from gamlens.scores import PairScoreFunction

CAPTUM = "captum"
REPEATED_ROWS = 32  # about how many images captum runs in one forward, where it repeats a batch
MADE_OF = {"forward_func", "model", "layer"}  # what the constructor of a class may need
CALLED_WITH = {"inputs", "baselines", "sliding_window_shapes"}  # what its `attribute` may need
NOT_OPTIONS = (
    "target", "additional_forward_args", "feature_mask", "baselines", "strides", "show_progress", "verbose",
    "return_convergence_delta", "return_input_shape", "custom_attribution_func", "grad_kwargs", "device_ids",
    "interpretable_model", "similarity_func", "perturb_func", "perm_func", "layer_baselines", "layer_mask",
    "attr_dim_summation", "memory_efficient",
)  # fmt: skip
NOT_MAPS = {  # classes of which no map can be made here, and why
    "FeaturePermutation": "it exchanges parts of the images of a batch with one another",
    "LayerFeaturePermutation": "it exchanges parts of the images of a batch with one another",
    "LayerFeatureAblation": "it hides every number of a layer one by one, which takes a forward each",
    "LayerLRP": "it knows no rule for a layer that is made of others, as a block is",
    "ShapleyValues": "it tries all orders of all cells, and 9 cells have 362880",
}
READ_RELUS = ("Deconvolution", "GuidedBackprop", "GuidedGradCam")  # they change the backward of nn.ReLU modules
READ_CHANNELS = ("GuidedGradCam", "LayerGradCam")  # they average gradients over all axes after the second
SIGNS = {"absolute": torch.abs, "positive": torch.relu}


def captum_names() -> tuple[str, ...]:
    """The classes of captum that can be used."""
    return tuple(_classes())


def captum_explainer(spec: ExplainerSpec) -> Explainer:
    """The explainer that `captum:CLASS` names."""
    found = _classes()
    if spec.entry not in found:
        raise unknown_class(spec, CAPTUM, found, NOT_MAPS.get(spec.entry, ""))
    kind: Any = found[spec.entry]
    options = take_options(spec, _known_options(kind))
    if options["sign"] not in SIGNS:
        raise GamlensError(f"{spec.text!r}: sign={options['sign']!r} is none of {', '.join(SIGNS)}.")
    return Explainer(
        name=spec.text,
        title=spec.title,
        bind=partial(_bind, spec.text, kind, options),
        source=package_version(CAPTUM),
        pairs="additional_forward_args" in parameters_of(kind.attribute),
    )


def _classes() -> dict[str, type]:
    return classes_of(import_extra("captum.attr", "An explainer of captum", extra="peers"), _usable)


def _usable(kind: Any) -> bool:
    """Whether an explainer can be made of a class: it takes a network, perhaps a layer, and images with a target."""
    if not hasattr(kind, "attribute") or kind.__name__ in NOT_MAPS:
        return False
    call, made = parameters_of(kind.attribute), needed_by(kind.__init__)
    fits = bool(made) and made <= MADE_OF and needed_by(kind.attribute) <= CALLED_WITH
    return fits and "inputs" in call and "target" in call


def _known_options(kind: Any) -> dict[str, Any]:
    """The options of a class and their defaults: those of captum, and ours."""
    call, of_layer = parameters_of(kind.attribute), _reads_layer(kind) and not _explains_input(kind)
    known: dict[str, Any] = {"sign": "positive" if of_layer else "absolute"}
    known |= {"layer": None} if _reads_layer(kind) else {}
    known |= {"baseline": 0.0} if "baselines" in call else {}
    known |= {"cells": 7} if "feature_mask" in call else {}
    known |= {"window": 32, "stride": 16} if "sliding_window_shapes" in call else {}
    return {**options_of(kind.__init__, NOT_OPTIONS), **options_of(kind.attribute, NOT_OPTIONS), **known}


def _reads_layer(kind: Any) -> bool:
    return "layer" in parameters_of(kind.__init__)


def _explains_input(kind: Any) -> bool:
    """Whether a class that reads a layer attributes to the input all the same, as GuidedGradCam does."""
    return not kind.__module__.startswith("captum.attr._core.layer.")


def _bind(name: str, kind: Any, options: Mapping[str, Any], lens: Lens) -> BoundExplainer:
    scores_of: list[ClassScores] = []  # filled at the first batch

    def layers(batch: Tensor) -> ExplainedLayers | None:
        if not _reads_layer(kind):
            return None
        found = explained_layers(lens, batch, layer=options["layer"])
        if found.reshape is not None and kind.__name__ in READ_CHANNELS:
            raise GamlensError(
                f"{name!r} takes the second axis of a layer for its channels, and that of {lens.blocks[-1]!r} is "
                "another one: use captum:LayerGradientXActivation, or grad_cam_lib:GradCAM."
            )
        return found

    def classify(batch: Tensor, targets: Tensor) -> Tensor:
        images = for_model(lens, batch)
        with reworded(f"{name!r} failed on {lens.name}"), _held(name, kind, lens):
            if not scores_of:
                scores_of.append(ClassScores(lens, images))
            found = _attribute(kind, scores_of[0], layers(images), images, options, target=targets.to(images.device))
        return checked_maps(found, len(batch), size_of(batch), name=name, device=lens.device)

    def compare(x: Tensor, y: Tensor, score: PairScoreFunction) -> tuple[Tensor, Tensor]:
        sides = for_model(lens, x), for_model(lens, y)
        maps = []
        with reworded(f"{name!r} failed on {lens.name}"), _held(name, kind, lens):
            network = PairSimilarity(Embedder(lens, sides[0]), score)
            embeddings = [network.embedder(side).detach() for side in sides]
            for side, other in zip(sides, reversed(embeddings), strict=True):
                extra = {"additional_forward_args": (other,)}
                found = _attribute(kind, network, layers(side), side, options, **extra)
                maps.append(checked_maps(found, len(side), size_of(side), name=name, device=lens.device))
        return maps[0], maps[1]

    return BoundExplainer(classify, compare if "additional_forward_args" in parameters_of(kind.attribute) else None)


@contextmanager
def _held(name: str, kind: Any, lens: Lens) -> Iterator[None]:
    """Hold the model for a call of captum, without the warnings by which captum tells what it does."""
    network = unwrap(lens.model)
    with left_as_it_was(network, frozen=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"captum(\..*)?$")
        if "model" in parameters_of(kind.__init__):  # captum puts hooks on the modules themselves
            _check_modules(name, kind, lens, network)
            for module in network.modules():
                if getattr(module, "inplace", False) is True:
                    vars(module)["inplace"] = False  # a tensor under a backward hook must not be written to
        yield


def _check_modules(name: str, kind: Any, lens: Lens, network: nn.Module) -> None:
    """Refuse a network of whose modules the class knows too few: its map would be another one without a word."""
    if kind.__name__ in READ_RELUS and not any(isinstance(module, nn.ReLU) for module in network.modules()):
        raise GamlensError(
            f"{name!r} changes the backward of nn.ReLU modules, and {lens.name} has none (nn.ReLU6, SiLU or functions "
            "do not count), so that its map would be another one, made of the plain gradient: use captum:Saliency or "
            "captum:InputXGradient, or our own guided_backprop."
        )
    if "deep_lift" in kind.__module__:
        rules = import_extra(kind.__module__.replace("layer.layer_", ""), "captum", extra="peers").SUPPORTED_NON_LINEAR
        plain = [module for module in network.modules() if type(module).__module__ == nn.ReLU.__module__]
        if unknown := sorted({type(module).__name__ for module in plain if type(module) not in rules}):
            raise GamlensError(
                f"{name!r} has no rule for nn.{', nn.'.join(unknown)}, which {lens.name} has, and would take the plain "
                "gradient in its place, as captum:InputXGradient does: use that, or captum:IntegratedGradients."
            )


def _attribute(
    kind: Any,
    network: nn.Module,
    layers: ExplainedLayers | None,
    images: Tensor,
    options: Mapping[str, Any],
    **target: Any,
) -> Tensor:
    """Run captum and return maps that are neither resized nor normalised: (B,h,w)."""
    made, call = parameters_of(kind.__init__), parameters_of(kind.attribute)
    place = {} if layers is None else {"layer": layers.modules[-1]}
    own = {name: value for name, value in options.items() if name in made and name not in place}
    method = kind(network, **place, **own)
    settings = {name: value for name, value in options.items() if name in call}
    if "baselines" in call:
        value = float(options["baseline"])
        settings["baselines"] = value
        if "baselines" in needed_by(kind.attribute):  # a sample of baselines, of which captum wants more than one
            settings["baselines"] = images.new_full((2, *images.shape[1:]), value)
    if "feature_mask" in call:
        settings["feature_mask"] = grid_of_cells(size_of(images), int(options["cells"])).to(images.device)
    if "sliding_window_shapes" in call:
        channels, window, stride = images.shape[1], int(options["window"]), int(options["stride"])
        settings |= {"sliding_window_shapes": (channels, window, window), "strides": (channels, stride, stride)}
    if settings.get("perturbations_per_eval") == 1:
        settings["perturbations_per_eval"] = max(1, REPEATED_ROWS // len(images))
    if "internal_batch_size" in call and settings["internal_batch_size"] is None:
        settings["internal_batch_size"] = max(REPEATED_ROWS, len(images))
    found = method.attribute(images.requires_grad_(layers is not None), **settings, **target)
    found = found[0] if isinstance(found, tuple) else found
    if layers is not None and layers.reshape is not None and found.shape[1:] != images.shape[1:]:
        found = layers.reshape(found)
    return SIGNS[options["sign"]](found.detach().sum(dim=1))


def grid_of_cells(size: tuple[int, int], cells: int) -> Tensor:
    """The number of the cell that each pixel belongs to, in a grid of cells x cells: (1,1,H,W).

    >>> grid_of_cells((2, 4), 2)[0, 0]
    tensor([[0, 0, 1, 1],
            [2, 2, 3, 3]])
    """
    rows, columns = (torch.arange(length) * min(cells, length) // length for length in size)
    return (rows[:, None] * min(cells, size[1]) + columns)[None, None]
