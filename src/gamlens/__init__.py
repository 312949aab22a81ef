"""Saliency maps for vision models: which parts of an image a class score, or the similarity of two images, rests on.

`Lens` wraps a model, and all else follows from it:

    lens = gamlens.Lens("resnet50")                   # a name of gamlens.MODELS, or any nn.Module
    result = lens.classify("cat.jpg")                 # an Explanation: maps, scores, overlays, boxes, files
    pair = lens.compare("cat.jpg", "other_cat.jpg")   # a PairExplanation: one map on each of the two images

`Lens.contrast` and `Lens.group` explain three and more images (ContrastExplanation, GroupExplanation), and
`PairTrace.interactions` says which place of one image matches which of the other (Interactions).

`METHODS`, `MODELS`, `DATASETS` and `METRICS` list what can be asked for by name. `gamlens.methods`, `gamlens.fuse` and
`gamlens.refine` hold the formulas as plain functions on tensors. Every error is a `GamlensError`, every
warning a `GamlensWarning`.

`gamlens.Index` is a search index on disk whose hits are explained (Hits).

`gamlens.bench` measures any explainer by every metric; `gamlens.adapters` gives our maps to Quantus, captum and xaitk.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gamlens import fuse, methods, refine
from gamlens._version import __version__
from gamlens.data import DATASETS
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.explanation import ContrastExplanation, Explanation, GroupExplanation, PairExplanation
from gamlens.inputs import images, transform
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.methods import METHODS, Method
from gamlens.metrics import METRICS
from gamlens.models import MODELS
from gamlens.pairs.interactions import Interactions
from gamlens.pairs.pair_trace import PairTrace
from gamlens.pairs.set_trace import SetTrace
from gamlens.refine import Refinement
from gamlens.retrieval import Gallery
from gamlens.trace import Trace

if TYPE_CHECKING:  # for type checkers, editors and the API pages; see CLASSES_LOADED_WHEN_USED
    from gamlens.index.hits import Hits as Hits
    from gamlens.index.index import Index as Index

# Results pickled by version 0.1 name their classes by these module paths, so the paths must stay importable.
sys.modules["gamlens.geometry"], sys.modules["gamlens.images"] = transform, images
sys.modules["gamlens.gallery.record"] = sys.modules[Gallery.__module__]

# Parts that most users do not need, so that `import gamlens` stays fast, and classes with the modules that hold them.
LOADED_WHEN_USED = ("adapters", "bench")
CLASSES_LOADED_WHEN_USED = {"Index": "gamlens.index.index", "Hits": "gamlens.index.hits"}


def __getattr__(name: str) -> Any:
    """Import `gamlens.adapters`, `gamlens.bench` and `gamlens.Index` when they are first used."""
    if name in LOADED_WHEN_USED:
        return importlib.import_module(f"gamlens.{name}")
    if name in CLASSES_LOADED_WHEN_USED:
        return getattr(importlib.import_module(CLASSES_LOADED_WHEN_USED[name]), name)
    raise AttributeError(f"module 'gamlens' has no attribute {name!r}")


__all__ = [
    "DATASETS",
    "METHODS",
    "METRICS",
    "MODELS",
    "ContrastExplanation",
    "Explanation",
    "Gallery",
    "GamlensError",
    "GamlensWarning",
    "GroupExplanation",
    "Interactions",
    "Lens",
    "Method",
    "PairExplanation",
    "PairTrace",
    "Refinement",
    "SetTrace",
    "Trace",
    "Transform",
    "__version__",
    "fuse",
    "methods",
    "refine",
]
