"""Weights: reading them from a file, without running any code in that file, and loading them into a network."""

import os
import pickle
import pickletools
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import torch
from torch import Tensor, nn

from gamlens.data.plausible import check_expansion, check_zip
from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError, reworded
from gamlens.models.class_order import NamedTensors, class_names_in

WRAPPINGS = ("state_dict", "model", "model_state_dict", "net", "module")
MOST_WRAPPINGS = 20  # real checkpoints have one or two; a dict that contains itself has no end
CODE = re.compile(r"GLOBAL|class", re.IGNORECASE)  # in torch's message if a file holds objects other than tensors
SAFE = ".safetensors"
OLD_PICKLES = 5  # how many pickles are at the beginning of a file in torch's format before version 1.6
BYTE_ARRAY = b"bytearray"
ZIP_HEAD = b"PK\x03\x04"  # how a zip file begins
OTHERS = "weights='file.pth' or --weights file.pth (or .safetensors); or weights='random' for an untrained network."
NAME_OF_WEIGHTS = re.compile(r"(\w+_Weights\.)?[A-Z][A-Z0-9_]*")  # such as IMAGENET1K_V1
PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class NamedWeights:
    """Pretrained weights that the user chose by their name in torchvision, such as "IMAGENET1K_V1" or "DEFAULT"."""

    name: str


LoadedWeights = dict[str, Tensor] | NamedWeights | Literal["random"] | None


def find(weights: str | os.PathLike[str] | Mapping[str, Any], *, class_names: bool = False) -> LoadedWeights:
    """What the user gave as `weights`: "random", the name of pretrained weights, or tensors, which are read.

    A file of that name in the working directory comes before the name of pretrained weights. `class_names` is as in
    `read`.
    """
    if isinstance(weights, str) and weights == "random":
        return "random"
    if isinstance(weights, str) and NAME_OF_WEIGHTS.fullmatch(weights) and not Path(weights).exists():
        return NamedWeights(weights)
    return read(weights, class_names=class_names)


def not_named(name: str, weights: NamedWeights) -> GamlensError:
    """The error for a network whose weights cannot be chosen by a name."""
    return GamlensError(
        f"{name} has no weights {weights.name!r}: only torchvision's networks have weights by such names, as in "
        f"Lens('resnet101', weights='IMAGENET1K_V1'). Leave weights out for the network's own, or pass {OTHERS}"
    )


def read(weights: str | os.PathLike[str] | Mapping[str, Any], *, class_names: bool = False) -> NamedTensors:
    """The tensors by name in a state dict, in a .safetensors file, or in a torch file, loaded with weights_only.

    With `class_names` also the names of the classes, where the checkpoint has them.
    """
    if isinstance(weights, Mapping):
        return _unwrapped(weights, "state dict", class_names)
    file = Path(weights)
    if not file.is_file():
        raise GamlensError(f"There is no weights file {str(file)!r}: give the path of a .pth or .safetensors file.")
    safe = import_extra("safetensors.torch", "Reading .safetensors", extra="hf") if file.suffix == SAFE else None
    with reworded(f"Cannot read weights from {str(file)!r} (truncated, or not a checkpoint?)"):
        if not safe:
            check_torch_file(file)
        try:
            found = safe.load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if not CODE.search(str(error)):
                raise GamlensError(
                    f"{str(file)!r} is not a checkpoint: expected a file of torch.save or safetensors."
                ) from error
            raise GamlensError(
                f"{str(file)!r} holds more than tensors, and loading it would run code from the file. Save the tensors "
                "alone (torch.save(model.state_dict(), ...) or safetensors) and pass that file."
            ) from error
    tensors = _unwrapped(found, str(file), class_names)
    check_expansion(repr(str(file)), sum(map(_claimed, tensors.values())), file.stat().st_size)
    return tensors


def check_torch_file(file: Path) -> None:
    """Raise a GamlensError if loading a torch file would take implausibly much memory.

    The file is a zip file with one pickle; in torch's older format it begins with several pickles.
    """
    with open(file, "rb") as old:
        if old.read(4) == ZIP_HEAD:
            check_zip(file)
            with zipfile.ZipFile(file) as archive:
                pickles = [archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")]
            filled = sum(_filled(given) for given in pickles if BYTE_ARRAY in given)
        elif tarfile.is_tarfile(file):
            raise GamlensError(
                f"{str(file)!r} is a tar file, the format of torch before version 0.2, which cannot be read without "
                "running code in it: ask its authors for a state dict in a newer format."
            )
        else:
            old.seek(0)
            filled = 0
            with suppress(ValueError, OverflowError, MemoryError):  # torch says what is wrong with the pickle
                for _ in range(OLD_PICKLES):
                    filled += _filled(old)
    check_expansion(repr(str(file)), filled, file.stat().st_size)


def _filled(given: bytes | IO[bytes]) -> int:
    """How many bytes the calls of `bytearray(n)` in a pickle can fill, at most.

    It is the one call that torch makes on behalf of a pickle and that fills memory which the file has no bytes for. The
    result is the number of all calls times the largest number in the pickle; 0 if it does not name `bytearray`.
    """
    calls = largest = 0
    fills = False
    for code, value, _ in pickletools.genops(given):
        fills = fills or (code.name == "GLOBAL" and str(value).encode().endswith(BYTE_ARRAY))
        calls += code.name in ("REDUCE", "NEWOBJ")
        largest = max(largest, value if isinstance(value, int) else 0)
    return calls * largest if fills else 0


def _claimed(tensor: Tensor) -> int:
    """How many bytes a tensor takes if every element has its own: a few values may be repeated to any shape."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise GamlensError(
            f"A tensor of the checkpoint has the layout {tensor.layout} and lies on the device '{tensor.device}'; "
            "weights are dense tensors with values: save tensor.to_dense(), from a model on the CPU or a GPU."
        )
    return tensor.numel() * tensor.element_size()


def _unwrapped(found: Any, name: str, class_names: bool) -> NamedTensors:
    """The tensors by name, taken out of wrappings such as {"state_dict": ...}; `name` names the source in errors.

    With `class_names` also the class names that are beside them in a wrapping.
    """
    names: tuple[str, ...] = ()
    for _ in range(MOST_WRAPPINGS):
        if class_names and isinstance(found, Mapping):
            names = names or class_names_in(found, name)
        keys = [key for key in WRAPPINGS if isinstance(found, Mapping) and isinstance(found.get(key), Mapping)]
        if not keys:
            break
        found = found[keys[0]]
    else:
        raise GamlensError(
            f"{name!r} has more than {MOST_WRAPPINGS} dicts inside each other, or a dict that contains itself, so its "
            "weights were not found: give the state dict alone, as model.state_dict() returns it."
        )
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise GamlensError(
            f"{name!r} holds no tensors by name, so it is not a checkpoint of weights: give a state dict, or its file."
        )
    tensors = NamedTensors({str(key): value for key, value in found.items() if isinstance(value, Tensor)})
    tensors.class_names = names
    return tensors


def without_prefixes(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors under names without the prefixes that wrappers add, such as `module.`.

    A prefix is removed if all names have it, and then the next one. This stops as soon as one of the names occurs in
    `like`, the tensors of the network to fill, because a network may itself have a part that is called `model`.
    """
    tensors = dict(tensors)
    while tensors and (like is None or not any(key in like for key in tensors)):
        prefix = next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Load tensors into a module. If some do not fit, nothing is loaded, and the error lists them.

    Args:
        module: The network to fill.
        tensors: Its weights by name; prefixes such as `module.` may stand before all of the names.
        source: The file of the weights, or the network that they were given for, for the error.
    """
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
        raise GamlensError(f"The weights {source} do not fit {type(module).__name__}: {'; '.join(said)}.")
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
    """Build a network with the weights that are wanted.

    Args:
        name: What errors call the network.
        make: Builds the untrained network for a given number of classes.
        classes: The usual number of classes.
        weights: None for the network's own weights, "random" for an untrained network, or a user's weights by name. The
            network is then built for as many classes as these weights have.
        pretrained: A function that builds the network with its own weights. If no package has such weights, a text
            instead that says what the user must pass, such as "the checkpoint of its authors", for the error.
        translate: Renames a user's weights to the names that the untrained network, its second argument, has.

    Returns:
        The network in eval mode, and its number of classes.
    """
    if weights is None:
        if isinstance(pretrained, str):
            raise GamlensError(f"{name} has no weights of its own here: pass {pretrained}, {OTHERS}")
        with reworded(f"The weights of {name} could not be loaded", todo=f". Offline, pass a file: {OTHERS}"):
            return pretrained().eval(), classes
    if isinstance(weights, NamedWeights):
        raise not_named(name, weights)
    module = make(classes)
    if weights != "random":
        own = module.state_dict()
        tensors = translate(without_prefixes(weights), module) if translate else without_prefixes(weights, own)
        found = _classes_of(tensors, own, classes)
        if found != classes:
            module, classes = make(found), found
        fill(module, tensors, source=f"given for {name!r}")
    return module.eval(), classes


def _classes_of(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int) -> int:
    """How many classes the weights `tensors` are for.

    `own` are the tensors of the network, built for `classes` classes. If every tensor of another shape has the same
    number of rows, where the network has `classes` rows, and only that number differs, it is the number of classes.
    Otherwise it is `classes`, and `fill` will say what does not fit.
    """
    pairs = [(tensors[key].shape, own[key].shape) for key in own if key in tensors]
    others = [(theirs, ours) for theirs, ours in pairs if theirs != ours and theirs and ours]
    heads = {(theirs[0], ours[0]) for theirs, ours in others}
    found, usual = heads.pop() if len(heads) == 1 else (classes, classes)
    fits = all(theirs[1:] == ours[1:] for theirs, ours in others)
    return found if usual == classes and fits else classes
