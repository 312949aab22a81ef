"""gamlens: why does a vision model think so?"""

import sys

from gamlens import fuse, methods
from gamlens._version import __version__
from gamlens.data import DATASETS
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.explanation import Explanation, PairExplanation
from gamlens.inputs import images, transform
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.methods import METHODS, Method
from gamlens.metrics import METRICS
from gamlens.models import MODELS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.retrieval import Gallery
from gamlens.trace import Trace

# Where results that version 0.1 pickled look for the classes inside them.
sys.modules["gamlens.geometry"], sys.modules["gamlens.images"] = transform, images
sys.modules["gamlens.gallery.record"] = sys.modules[Gallery.__module__]

__all__ = [
    "DATASETS",
    "METHODS",
    "METRICS",
    "MODELS",
    "Explanation",
    "Gallery",
    "GamlensError",
    "GamlensWarning",
    "Lens",
    "Method",
    "PairExplanation",
    "PairTrace",
    "Trace",
    "Transform",
    "__version__",
    "fuse",
    "methods",
]
