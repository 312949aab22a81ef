"""Which positions of a block a network reads: found by one forward of noise and one backward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens.capture import backward
from gamlens.capture.forward import run_forward
from gamlens.capture.guard import ModelGuard, outside_inference_mode
from gamlens.capture.layer_points import LayerPoint, TokenGrid, tensors
from gamlens.errors import GamlensError
from gamlens.lattice import Lattice, find_lattice

SMALLEST_BLOCK = 4  # a block with fewer rows or columns does not show whether rows or columns are skipped


@dataclass(frozen=True)
class ReadPositions:
    """What is known about the positions of a block that are read.

    Attributes:
        lattice: The lattice of positions that are read; None if there is none.
        everywhere: Whether it is certain that there is none, at any size of the input.
    """

    lattice: Lattice | None = None
    everywhere: bool = False


def read_positions(
    guard: ModelGuard, like: Tensor, points: Sequence[LayerPoint], grids: Mapping[str, TokenGrid]
) -> dict[str, ReadPositions]:
    """Find out which positions of blocks a network reads: {block: ReadPositions}.

    The gradient of a random combination of all outputs is taken with respect to the blocks, for one image of noise. A
    position is read if it is not zero in some channel. Noise is used because a max pooling of equal values, as an image
    of one colour gives, passes its gradient to the first of them only, which looks like a lattice and is none.

    Args:
        guard: Holds the network.
        like: A batch (B,C,H,W); the noise has its shape, type and device.
        points: The blocks.
        grids: For blocks of tokens, where in the image each token lies.

    A network that has no backward, or whose outputs do not depend on the blocks, is left to the caller's own backward,
    whose error says more: nothing is found here.
    """
    devices = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices):  # a network that draws random numbers must not change those of the user
        made = torch.Generator().manual_seed(0)
        noise = torch.randn((1, *like.shape[1:]), generator=made).to(like)
        try:
            record = run_forward(guard, noise, points, grids=grids)
            with outside_inference_mode(), torch.enable_grad():
                outputs = [output for output in tensors(record.output) if output.requires_grad]
                weighted = [(output * torch.randn(output.shape, generator=made).to(output)).sum() for output in outputs]
                total = torch.stack([part.to(noise) for part in weighted]).sum().view(1)
            (gradients,) = backward.gradients(total, [record], keep_graph=False)
        except (GamlensError, RuntimeError):
            return {point.name: ReadPositions() for point in points}
    return {name: _positions(gradient) for name, gradient in gradients.items()}


def _positions(gradient: Tensor) -> ReadPositions:
    """What a gradient (1,C,h,w) shows."""
    read = (gradient != 0).any(dim=1)[0].cpu()
    return ReadPositions(find_lattice(read), everywhere=bool(read.all()) and min(read.shape) >= SMALLEST_BLOCK)
