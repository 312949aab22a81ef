"""Networks that can be loaded by name (MODELS), each with its input size and labels, and users' own modules.

To add a network, write a `Builder` in a file in `zoo/`, and add a line to MODELS. `discovery/` finds the blocks of a
network, and `hooked.py` runs it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError, Registry
from gamlens.models import checkpoint
from gamlens.models.class_order import NamedTensors, fitting_names
from gamlens.models.discovery.discover import NetworkLayout, Stage
from gamlens.models.discovery.model_blocks import ModelBlocks, find_blocks, points_named, token_grids
from gamlens.models.network import Builder, FamilyBuilder, Network, Output, TextEncoder, family, input_channels, pick
from gamlens.models.zoo import efficientnet_lite, tresnet
from gamlens.models.zoo import huggingface as hf_zoo
from gamlens.models.zoo import timm as timm_zoo
from gamlens.models.zoo import torchvision as torchvision_zoo
from gamlens.models.zoo.chexnet import chexnet
from gamlens.models.zoo.from_file import from_file, is_python_file, python_file_error
from gamlens.models.zoo.lenet5 import lenet5

WeightSource = str | os.PathLike[str] | Mapping[str, Tensor] | None
DEFAULT_MODEL = "efficientnet_lite0"  # its weights come with a package, so nothing is downloaded

MODELS: Registry[Builder] = Registry(
    "model",
    {
        **efficientnet_lite.EFFICIENTNETS,
        **torchvision_zoo.PAPER_NETWORKS,
        "chexnet": chexnet,
        **tresnet.TRESNETS,
        "lenet5": lenet5,
    },
    hint=" Other models are 'timm/NAME', 'hf/ID', 'file.py:build', or an nn.Module.",
)
PREFIXED: dict[str, FamilyBuilder] = {hf_zoo.HF_PREFIX: hf_zoo.build, timm_zoo.TIMM_PREFIX: timm_zoo.build}


def load(model: nn.Module | str, *, weights: WeightSource = None, own_labels: bool = True) -> Network:
    """Make a Network from a name or from a user's module.

    Args:
        model: A name, as `find` takes it, or a module.
        weights: A file or a state dict; "random" for an untrained network; torchvision's name of its weights, such
            as "IMAGENET1K_V1"; None for the network's own weights.
        own_labels: Whether class names in the file of weights (`idx_to_class`, `class_to_idx`, `classes`) become the
            labels of the network.
    """
    if not isinstance(model, nn.Module | str):
        raise GamlensError(f"A model is an nn.Module or a name such as 'resnet50'; found {type(model).__name__}.")
    loaded = None if weights is None else checkpoint.find(weights, class_names=own_labels)
    source = "state dict" if isinstance(weights, Mapping) else str(weights)
    network = find(model)(weights=loaded) if isinstance(model, str) else _adopt(model, loaded, source)
    _check_names(network)
    if isinstance(loaded, NamedTensors) and (names := _names_in(loaded, network, source)):
        network = replace(network, labels=names, aliases=_known(network.aliases, names))
    own = weights is None or isinstance(loaded, checkpoint.NamedWeights)
    return network if own else replace(network, weights=source)


def _names_in(loaded: NamedTensors, network: Network, source: str) -> tuple[str, ...]:
    """The class names of a checkpoint that fit the network into which it was loaded."""
    return fitting_names(loaded, unwrap(network.module).state_dict(), source) if loaded.class_names else ()


def _known(aliases: Mapping[str, str], labels: Sequence[str]) -> dict[str, str]:
    """The aliases of classes that `labels` has."""
    return {other: label for other, label in aliases.items() if label in labels}


def _check_names(network: Network) -> None:
    """Raise an error if a network names a block or an embedding that its module does not have."""
    module = unwrap(network.module)
    for what, names in (("blocks", network.blocks), ("embedding", filter(None, (network.embedding,)))):
        found = tuple(names)
        try:
            points_named(module, found or None)
        except GamlensError as error:
            listed = ", ".join(map(repr, found))
            raise GamlensError(f"The network {network.name!r} names {listed} as its {what}. {error}") from error


def find(name: str) -> Builder:
    """The builder of a name: a name in MODELS, `timm/NAME`, `hf/ID`, or any classifier of torchvision."""
    if name in MODELS:
        return MODELS[name]
    for prefix, build in PREFIXED.items():
        if name.startswith(prefix):
            return family(build, [name])[name]
    if is_python_file(name):
        raise GamlensError(python_file_error(name))
    others = family(torchvision_zoo.build, torchvision_zoo.names())
    return Registry(MODELS.kind, {**MODELS, **others}, hint=MODELS.hint)[name]


def _adopt(module: nn.Module, weights: checkpoint.LoadedWeights, source: str) -> Network:
    """A user's module as a Network, with weights loaded into it where they are given; `source` names them in errors.

    Modules of transformers and timm say their input and labels themselves.
    """
    lazy = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if is_lazy(tensor)]
    if lazy:
        raise GamlensError(
            f"This model has lazy parameters, which have no shape before it has run: {', '.join(lazy[:4])}"
            f"{', ...' if len(lazy) > 4 else ''}. Run it once on an image, as in "
            "model(torch.zeros(1, 3, 224, 224)), and then make the Lens."
        )
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise GamlensError("This model was built inside torch.inference_mode() and has no gradients: build it outside.")
    inner = unwrap(module)
    if isinstance(weights, checkpoint.NamedWeights):
        raise checkpoint.not_named(f"A module of the class {type(inner).__name__}", weights)
    if hf_zoo.is_ours(inner):
        network = hf_zoo.adopt(inner)
        network = network if isinstance(network.module, hf_zoo.ImageTower) else replace(network, module=module)
    else:
        own_input = timm_zoo.input_of(getattr(inner, "pretrained_cfg", None))
        network = Network(module, type(inner).__name__, "given", **own_input)
    if isinstance(weights, dict):
        checkpoint.fill(inner, weights, source=repr(source))
    return network
