"""Weights: read from a file without running code that is in it, and loaded into a network that they fit."""

import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError, reworded

WRAPPINGS = ("state_dict", "model", "model_state_dict", "net", "module")
CODE = re.compile(r"GLOBAL|class", re.IGNORECASE)
SAFE = ".safetensors"
OTHERS = "weights='file.pth' or --weights file.pth (or .safetensors); or weights='random' for an untrained network."
LoadedWeights = dict[str, Tensor] | Literal["random"] | None
PREFIXES = ("module.", "_orig_mod.", "model.")


def read(weights: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors by name: of a state dict, of safetensors, or of a torch file, which is loaded with weights_only."""
    if isinstance(weights, Mapping):
        return _unwrapped(weights, "state dict")
    file = Path(weights)
    if not file.is_file():
        raise GamlensError(f"There is no weights file {str(file)!r}.")
    safe = import_extra("safetensors.torch", "Reading .safetensors", extra="hf") if file.suffix == SAFE else None
    with reworded(f"Cannot read weights from {str(file)!r} (truncated, or not a checkpoint?)"):
        try:
            found = safe.load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if not CODE.search(str(error)):
                raise GamlensError(f"{str(file)!r} is not a checkpoint: no torch or safetensors file.") from error
            raise GamlensError(
                f"{str(file)!r} holds more than tensors, and loading it would run code from the file. Save the tensors "
                "alone (torch.save(model.state_dict(), ...) or safetensors) and pass that file."
            ) from error
    return _unwrapped(found, str(file))


def _unwrapped(found: Any, name: str) -> dict[str, Tensor]:
    """Tensors by name, taken out of the common wrappings, such as {"state_dict": ...}."""
    while isinstance(found, Mapping) and (keys := [key for key in WRAPPINGS if isinstance(found.get(key), Mapping)]):
        found = found[keys[0]]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise GamlensError(f"{name!r} holds no tensors by name, so it is not a checkpoint of weights.")
    return {str(key): value for key, value in found.items() if isinstance(value, Tensor)}


def without_prefixes(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Names without the prefixes that wrappers add, such as `module.`, unless `like` has such names itself."""
    tensors = dict(tensors)
    while like is None or not any(key in like for key in tensors):
        prefix = next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, name: str) -> None:
    """Load tensors into a module. If some do not fit, the error lists them and nothing is loaded."""
    own = module.state_dict()
    tensors = without_prefixes(tensors, own)
    shapes = [
        f"{key} {tuple(tensors[key].shape)} into {tuple(own[key].shape)}"
        for key in own
        if key in tensors and own[key].shape != tensors[key].shape
    ]
    misfits = {
        "missing": [key for key in own if key not in tensors and not key.endswith("num_batches_tracked")],
        "unexpected": [key for key in tensors if key not in own],
        "of another shape": shapes,
    }
    said = [
        f"{len(keys)} {what}: " + ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
        for what, keys in misfits.items()
        if keys
    ]
    if said:
        raise GamlensError(f"The weights {name!r} do not fit {type(module).__name__}: {'; '.join(said)}.")
    module.load_state_dict(dict(tensors), strict=False)


def build(
    name: str,
    make: Callable[[int], nn.Module],
    classes: int,
    weights: LoadedWeights,
    *,
    pretrained: Callable[[], nn.Module] | str = "a checkpoint of this network",
    translate: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] | None = None,
) -> tuple[nn.Module, int]:
    """A network with the weights that are wanted, in eval mode, and its number of classes.

    Args:
        name: What errors call the network.
        make: Builds the untrained network for a number of classes.
        classes: The usual number of classes.
        weights: A user's weights by name: the network is built for as many classes as they have. "random" leaves it
            untrained, None gives it its own weights.
        pretrained: Builds the network with its own weights. Text where no package brings them: the file to pass.
        translate: Gives the user's weights the names that the untrained network has.
    """
    if weights is None:
        if isinstance(pretrained, str):
            raise GamlensError(f"{name} has no weights of its own here: pass {pretrained}, {OTHERS}")
        with reworded(f"The weights of {name} could not be loaded", todo=f". Offline, pass a file: {OTHERS}"):
            return pretrained().eval(), classes
    module = make(classes)
    if weights != "random":
        own = module.state_dict()
        tensors = translate(without_prefixes(weights), module) if translate else without_prefixes(weights, own)
        found = _classes_of(tensors, own, classes)
        if found != classes:
            module, classes = make(found), found
        fill(module, tensors, name=name)
    return module.eval(), classes


def _classes_of(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int) -> int:
    """The number of classes of weights that differ from a network's own in nothing but that number."""
    others = [(tensors[key].shape, own[key].shape) for key in own if key in tensors]
    heads = {(theirs[0], ours[0]) for theirs, ours in others if theirs != ours and theirs and ours}
    found, usual = heads.pop() if len(heads) == 1 else (classes, classes)
    return found if usual == classes else classes
