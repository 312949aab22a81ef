"""Read the text that names an explainer: `captum:Occlusion?window=32`, `my_file.py:explain`, `maps:FOLDER`."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gamlens.errors import GamlensError, near
from gamlens.evaluation.explainers.explainer import FUNCTION_MARK, Explainer
from gamlens.models.zoo.from_file import is_python_file

OPENING, CLOSING, QUOTES = "([{", ")]}", "\"'"
IN_PYTHON = "python"  # the part before the colon in the name of an explainer that is a function of this process


@dataclass(frozen=True)
class ExplainerSpec:
    """The parts of the text that names an explainer.

    Attributes:
        text: The whole text.
        package: What stands before the colon: a name of EXPLAINER_PACKAGES, "python", or the path of a Python file.
        entry: What stands after it: a class, a function, or a folder.
        options: What stands after the question mark: {name: value}.
        title: The name in tables.
    """

    text: str
    package: str
    entry: str
    options: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    @property
    def in_file(self) -> bool:
        """Whether it names a function in a Python file."""
        return is_python_file(self.package)

    @property
    def shown_options(self) -> str:
        """The options as tables show them: "window=32, stride=16"."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


@dataclass(frozen=True)
class ExplainerPackage:
    """An entry of EXPLAINER_PACKAGES: where explainers come from that are not ours.

    Attributes:
        make: Makes the explainer that a text names.
        title: What tables call the package.
        entries: The names of the classes that can be used, which imports the package; () where there are none to name.
        spaced: Whether tables write the words of a class apart: "Integrated Gradients".
    """

    make: Callable[[ExplainerSpec], Explainer]
    title: str
    entries: Callable[[], tuple[str, ...]] = tuple
    spaced: bool = False


def parse_spec(text: str) -> ExplainerSpec:
    """Read the name of an explainer. The options of a call are values of Python; what cannot be read so is text.

    >>> parse_spec("captum:Occlusion?window=32&sign=positive")
    ExplainerSpec(text='captum:Occlusion?window=32&sign=positive', package='captum', entry='Occlusion', \
options={'window': 32, 'sign': 'positive'}, title='')
    """
    head, _, tail = text.partition("?")
    in_file = is_python_file(head) and FUNCTION_MARK in head
    package, colon, entry = head.rpartition(":") if in_file else head.partition(":")
    if not colon or not package or not entry:
        raise GamlensError(
            f"{text!r} names no explainer: write captum:CLASS, grad_cam_lib:CLASS, torchcam:CLASS, PATH.py:FUNCTION or "
            "maps:FOLDER, with options as in captum:Occlusion?window=32&stride=16."
        )
    options: dict[str, Any] = {}
    for part in filter(None, tail.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise GamlensError(
                f"Cannot read the option {part!r} of {text!r}: write NAME=VALUE, with & between several."
            )
        options[name] = _value(value)
    return ExplainerSpec(text, package, entry, options)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas, but not at those inside brackets or quotes.

    >>> split_names("gam, captum:Lime?cells=(7, 7), my_file.py:explain")
    ('gam', 'captum:Lime?cells=(7, 7)', 'my_file.py:explain')
    """
    names, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in QUOTES:
            quote = char
        else:
            depth = max(depth + (char in OPENING) - (char in CLOSING), 0)
            if char == "," and depth == 0:
                names.append("")
                continue
        names[-1] += char
    return tuple(name.strip() for name in names if name.strip())


def is_external(name: str) -> bool:
    """Whether the name of a method is that of an explainer that is not one of METHODS: it has a colon."""
    return ":" in name


def take_options(spec: ExplainerSpec, known: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an explainer: those that the text gives, and the defaults in `known` of all others."""
    for name in spec.options:
        if name not in known:
            some = f"its options are {', '.join(known)}" if known else "it has no options"
            raise GamlensError(f"{spec.text!r} has no option {name!r}: {some}.")
    return {**known, **spec.options}


def package_version(package: str) -> str:
    """The name and version of an installed package, for the record of a run: "captum 0.9.0"."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def unknown_class(spec: ExplainerSpec, package: str, names: Iterable[str], why: str = "") -> GamlensError:
    """The error for a class that the package does not have, or that explains no class of an image."""
    reason = why or f"{package} has no such class that explains the class of an image"
    return GamlensError(f"Cannot use {spec.text!r}, since {reason}: {near(spec.entry, names)}")


def file_name(path: str) -> str:
    """The last part of a path, for tables."""
    return Path(path).name or path
