"""A model from the user's own Python file: `path/to/file.py:build`."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from gamlens.errors import GamlensError, near, reworded


def from_file(text: str) -> Any:
    """Call the function that `file.py:build` names and return its result, a module or a Lens.

    The file is run as Python, as if it were imported: give only files that you trust.
    """
    place, _, name = text.rpartition(":")
    file = Path(place)
    if not file.is_file():
        raise GamlensError(f"There is no file {place!r} to take the model from: write PATH.py:FUNCTION.")
    spec = importlib.util.spec_from_file_location(f"gamlens_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise GamlensError(f"{place!r} is not a Python file: write PATH.py:FUNCTION.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        with reworded(f"{text!r} failed"):
            spec.loader.exec_module(module)
            build = getattr(module, name, None)
            if not callable(build):
                functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
                raise GamlensError(f"{place!r} has no function {name!r}: {near(name, functions)}")
            built = build()
            if built is None:
                raise GamlensError(f"{text!r} returned None: let the function return an nn.Module or a Lens.")
            return built
    finally:
        sys.path.remove(str(file.parent.resolve()))
