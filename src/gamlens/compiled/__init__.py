"""A model made fast: traced once into a graph, cut where blocks are read, its parts compiled.

The trunk is compiled without a graph for the backward, what follows the first wanted block with one. Batch norms are
folded into the convolutions before them, weights are brought to half precision ahead of time, and both are made anew
from the model's own weights in every call, so that a change to these is always seen. The model itself is not touched.
"""

from gamlens.compiled.program import Program, build
from gamlens.compiled.split import Unsupported
from gamlens.compiled.tracing import reason
