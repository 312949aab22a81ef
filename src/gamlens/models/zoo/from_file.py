"""A model from the user's own Python file: `path/to/file.py:build`."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gamlens.errors import GamlensError, near, reworded


def is_python_file(text: str) -> bool:
    """Whether a model's name is a Python file, with a function in it (`file.py:build`) or without one."""
    return text.endswith(".py") or ".py:" in text


def python_file_error(text: str) -> str:
    """What to do with the name of a Python file where the name of a model is expected. The file is not run."""
    file = Path(text.partition(".py")[0] + ".py")
    if ".py:" in text:
        return f"{text!r} is a function in a Python file: call it, and give what it returns (a module) in its place."
    if not file.is_file():
        return f"There is no file {text!r} to take the model from: write PATH.py:FUNCTION."
    found: list[str] = []
    with suppress(SyntaxError, ValueError, OSError):
        body = ast.parse(file.read_bytes()).body
        found = [part.name for part in body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
    choices = f" It has {', '.join(found)}." if found else ""
    example = f"{text}:{found[0] if found else 'build'}"
    return f"{text!r} is a Python file: name the function in it that returns the model, as in {example}.{choices}"


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
        with reworded(f"{text!r} failed"), _without_exit(text):
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


@contextmanager
def _without_exit(text: str) -> Iterator[None]:
    """Turn a call of sys.exit in the user's file into an error, so that it does not end the program that asked."""
    try:
        yield
    except SystemExit as error:
        raise GamlensError(
            f"{text!r} called sys.exit({error.code!r}): let it return a model, and run what belongs to a program only "
            "under if __name__ == '__main__'."
        ) from error
