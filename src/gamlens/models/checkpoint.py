"""Reading weights from a file without running code that is in it."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.errors import GamlensError

WRAPPINGS = ("state_dict", "model", "model_state_dict", "net", "module")
CODE = re.compile(r"GLOBAL|class", re.IGNORECASE)
PREFIXES = ("module.", "_orig_mod.", "model.")


def read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: safetensors, or a torch file loaded with weights_only."""
    file = Path(path)
    if not file.is_file():
        raise GamlensError(f"There is no weights file {str(file)!r}.")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(str(file))
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise GamlensError("Reading .safetensors needs the package safetensors: pip install safetensors.") from error
    except pickle.UnpicklingError as error:
        if not CODE.search(str(error)):
            raise GamlensError(f"{str(file)!r} is not a checkpoint: no torch or safetensors file.") from error
        raise GamlensError(
            f"{str(file)!r} holds more than tensors, and loading it would run code from the file. Save the tensors "
            "alone (torch.save(model.state_dict(), ...) or safetensors) and pass that file."
        ) from error
    except Exception as error:
        raise GamlensError(
            f"Cannot read weights from {str(file)!r} (truncated, or not a checkpoint?): {type(error).__name__}: {error}"
        ) from error
    return tidy(found, str(file))


def tidy(found: Any, name: str) -> dict[str, Tensor]:
    """Tensors by name, out of the common wrappings."""
    while isinstance(found, Mapping):
        inner = next((found[key] for key in WRAPPINGS if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise GamlensError(f"{name!r} holds no tensors by name, so it is not a checkpoint of weights.")
    return {str(key): value for key, value in found.items() if isinstance(value, Tensor)}


def bare(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Names without the prefixes of wrappers, `module.` and `_orig_mod.`, unless `like` has them so."""
    tensors = dict(tensors)
    while not (like is not None and any(key in like for key in tensors)):
        prefix = next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, name: str) -> None:
    """Load tensors into a module; what does not fit is listed, and then nothing is loaded."""
    own = module.state_dict()
    tensors = bare(tensors, own)
    counters = {key for key in own if key.endswith("num_batches_tracked")}
    missing = [key for key in own if key not in tensors and key not in counters]
    unexpected = [key for key in tensors if key not in own]
    shapes = [
        f"{key} {tuple(tensors[key].shape)} into {tuple(own[key].shape)}"
        for key in own
        if key in tensors and own[key].shape != tensors[key].shape
    ]
    if missing or unexpected or shapes:
        parts = [("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)]
        found = "; ".join(f"{len(keys)} {what}: {_some(keys)}" for what, keys in parts if keys)
        raise GamlensError(f"The weights {name!r} do not fit {type(module).__name__}: {found}.")
    module.load_state_dict(dict(tensors), strict=False)


def fill_classes(
    make: Callable[[int], nn.Module], tensors: dict[str, Tensor], *, name: str, classes: int
) -> tuple[nn.Module, int]:
    """A module with as many classes as the weights have, filled: `make(classes)` builds it."""
    module = make(classes)
    own = module.state_dict()
    tensors = bare(tensors, own)
    other = [key for key in own if key in tensors and own[key].shape != tensors[key].shape]
    heads = {(int(tensors[key].shape[0]), int(own[key].shape[0])) for key in other if tensors[key].ndim}
    if other and len(heads) == 1 and next(iter(heads))[1] == classes:
        classes = next(iter(heads))[0]
        module = make(classes)
    fill(module, tensors, name=name)
    return module, classes


def needs_file(name: str, what: str) -> GamlensError:
    """The error for a model whose weights no package brings."""
    return GamlensError(
        f"{name} has no weights of its own here: pass {what}, weights='file.pth' or --weights file.pth; "
        "or weights='random' for an untrained network."
    )


def _some(keys: list[str], most: int = 4) -> str:
    return ", ".join(keys[:most]) + (", ..." if len(keys) > most else "")
