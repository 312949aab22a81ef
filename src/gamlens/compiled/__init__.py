"""The fast path of `Lens(compile=True)`: trace a model once, cut the graph at the wanted blocks, compile the parts.

1. `tracing` exports the model to a torch.fx graph, with a marker operator (`ops.MARK`) at each wanted tensor.
2. `passes` folds batch norms into the convolutions before them, replaces weights by copies in half precision, and fuses
   convolutions with the ReLUs after them.
3. `split` cuts the graph at the wanted blocks. The part before the first block, the trunk, runs without autograd; the
   parts after it run with autograd, for the backward.
4. `program` compiles the parts by torch.compile and runs them. `replay` records the trunk as a CUDA graph.

The user's model is not modified. The folded and converted weights (`folded_weights`) are computed again from the
model's own weights in every call, so that a change to those always takes effect.
"""

from gamlens.compiled.program import Program, build
from gamlens.compiled.split import Unsupported
from gamlens.compiled.tracing import reason
