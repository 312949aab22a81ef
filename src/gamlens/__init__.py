"""gamlens: why does a vision model think so?"""

from gamlens import fuse, methods
from gamlens._version import __version__
from gamlens.data import DATASETS
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.explanation import Explanation, PairExplanation
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.methods import METHODS, Method
from gamlens.metrics import METRICS
from gamlens.models import MODELS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.retrieval import Gallery
from gamlens.trace import Trace

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
