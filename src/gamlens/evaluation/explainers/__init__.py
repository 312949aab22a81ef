"""Explainers that are not ours: methods of other packages, functions of the user, and maps from files.

find("captum:IntegratedGradients")             a class of captum
find("captum:Occlusion?window=32&stride=16")   with options
find("grad_cam_lib:ScoreCAM")                  a class of grad-cam (pytorch_grad_cam)
find("torchcam:LayerCAM")                      a class of torchcam
find("my_file.py:explain")                     a function in a Python file
find("maps:FOLDER")                            maps that another program wrote
external(explain)                              a function of this process
"""

from __future__ import annotations

import re
from dataclasses import replace

from gamlens.errors import GamlensError, Registry
from gamlens.evaluation.explainers.captum_explainers import captum_explainer, captum_names
from gamlens.evaluation.explainers.explainer import BoundExplainer, ClassFunction, Explainer, NamedImage, PairFunction
from gamlens.evaluation.explainers.explainer_specs import (
    IN_PYTHON,
    ExplainerPackage,
    ExplainerSpec,
    file_name,
    is_external,
    parse_spec,
    split_names,
)
from gamlens.evaluation.explainers.function_files import external, file_explainer
from gamlens.evaluation.explainers.grad_cam_explainers import grad_cam_explainer, grad_cam_names
from gamlens.evaluation.explainers.map_files import maps_explainer
from gamlens.evaluation.explainers.network_parts import Embedder
from gamlens.evaluation.explainers.torchcam_explainers import torchcam_explainer, torchcam_names

EXPLAINER_PACKAGES: dict[str, ExplainerPackage] = Registry(
    "explainer package",
    {
        "captum": ExplainerPackage(captum_explainer, "captum", captum_names, spaced=True),
        "grad_cam_lib": ExplainerPackage(grad_cam_explainer, "grad-cam", grad_cam_names),
        "torchcam": ExplainerPackage(torchcam_explainer, "torchcam", torchcam_names),
        "maps": ExplainerPackage(maps_explainer, "maps"),
    },
    hint=" A function in a file is named PATH.py:FUNCTION.",
)


def find(spec: str) -> Explainer:
    """The explainer of a name, such as "captum:IntegratedGradients" or "my_file.py:explain".

    Raises:
        GamlensError: If the package is not installed, or has no such class; if the file or its function is not there;
            or if an option is not known.
    """
    parsed = replace(parse_spec(spec), title=title_of(spec))
    if parsed.in_file:
        return file_explainer(parsed)
    if parsed.package == IN_PYTHON:
        raise GamlensError(
            f"{spec!r} is a function of the process that measured it: in Python give what external(...) returns, or "
            "put the function into a file and name it PATH.py:FUNCTION."
        )
    return EXPLAINER_PACKAGES[parsed.package].make(parsed)


def title_of(name: str) -> str:
    """The name of an explainer in tables, from its name alone; no package is imported and no file is read.

    >>> title_of("captum:Occlusion?window=32&stride=16")
    'Occlusion (captum, window=32, stride=16)'
    >>> title_of("my/file.py:explain"), title_of("python:explain")
    ('explain (file.py)', 'explain')
    """
    spec = parse_spec(name)
    if spec.package == IN_PYTHON:
        return spec.entry
    if spec.in_file:
        entry, package = spec.entry, file_name(spec.package)
    else:
        entry, package = _entry_title(spec), EXPLAINER_PACKAGES[spec.package].title
    return f"{entry} ({', '.join(filter(None, (package, spec.shown_options)))})"


def _entry_title(spec: ExplainerSpec) -> str:
    """A class by its name, or with its words apart; a folder by its last part."""
    if EXPLAINER_PACKAGES[spec.package].spaced:
        return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", spec.entry)
    return file_name(spec.entry)
