"""Which positions of a block a network reads: found by forwards of noise and their backwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamlens.capture import backward
from gamlens.capture.forward import run_forward
from gamlens.capture.guard import ModelGuard, outside_inference_mode
from gamlens.capture.layer_points import LayerPoint, TokenGrid, tensors
from gamlens.lattice import Lattice, find_lattice

SMALLEST_BLOCK = 4  # a block with fewer rows or columns does not show whether rows or columns are skipped
NOISE_IMAGES = 8  # how many images of noise must show the same lattice


@dataclass(frozen=True)
class ReadPositions:
    """What is known about the positions of a block that are read.

    Attributes:
        lattice: The lattice of positions that are read; None if there is none.
        everywhere: Whether every position is read. There is then no lattice at another size of the input either, except
            in a network that resizes its activations to a fixed size by dropping positions.
    """

    lattice: Lattice | None = None
    everywhere: bool = False


def read_positions(
    guard: ModelGuard, like: Tensor, points: Sequence[LayerPoint], grids: Mapping[str, TokenGrid]
) -> dict[str, ReadPositions]:
    """Find out which positions of blocks a network reads: {block: ReadPositions}.

    The gradient of a random combination of all outputs is taken with respect to the blocks, for images of noise. A
    position is read if it is not zero in some channel of some image. One image is enough for blocks that are read
    everywhere; a lattice must hold for NOISE_IMAGES, since a network with a global max pooling reads few positions of
    each image. Noise is used because a max pooling of equal values, as an image of one colour gives, passes its
    gradient to the first of them only, which looks like a lattice and is none.

    Args:
        guard: Holds the network.
        like: A batch (B,C,H,W); the noise has its size, type and device.
        points: The blocks.
        grids: For blocks of tokens, where in the image each token lies.

    Returns:
        What was found. A block is missing if nothing can be said: if its gradient is zero everywhere, as with a head
        that is not trained yet, or not finite; all of them are if the network has no backward.

    Raises:
        torch.OutOfMemoryError, or a GamlensError caused by one: If memory does not suffice.
    """
    devices = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices):  # a network that draws random numbers must not change those of the user
        read = _read_of_noise(guard, like, points, grids, seed=0)
        doubtful = [point for point in points if point.name in read and find_lattice(read[point.name]) is not None]
        for seed in range(1, NOISE_IMAGES) if doubtful else ():
            for name, more in _read_of_noise(guard, like, doubtful, grids, seed=seed).items():
                read[name] |= more
    found = {}
    for name, positions in read.items():
        large = min(positions.shape) >= SMALLEST_BLOCK
        found[name] = ReadPositions(find_lattice(positions), everywhere=large and bool(positions.all()))
    return found


def _read_of_noise(
    guard: ModelGuard, like: Tensor, points: Sequence[LayerPoint], grids: Mapping[str, TokenGrid], *, seed: int
) -> dict[str, Tensor]:
    """Which positions of each block one image of noise has a gradient at: {block: bool (h,w) on the CPU}."""
    made = torch.Generator().manual_seed(seed)
    noise = torch.randn((1, *like.shape[1:]), generator=made).to(like)
    try:
        record = run_forward(guard, noise, points, grids=grids)
        with outside_inference_mode(), torch.enable_grad():
            outputs = [output for output in tensors(record.output) if output.requires_grad]
            weighted = [(output * torch.randn(output.shape, generator=made).to(output)).sum() for output in outputs]
            total = torch.stack([part.to(noise) for part in weighted]).sum().view(1)
        (gradients,) = backward.gradients(total, [record], keep_graph=False)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
        return {}  # the caller's own backward, if it needs one, says more
    found = {}
    for name, gradient in gradients.items():
        positions = (gradient != 0).any(dim=1)[0].cpu()
        if bool(positions.any()) and bool(gradient.isfinite().all()):
            found[name] = positions
    return found
