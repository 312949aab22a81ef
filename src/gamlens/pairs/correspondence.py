"""Point to point: a similarity of average-pooled features is a sum over pairs of positions, one of each image.

Let h (C,u,v) and h' (C,u',v') be the last blocks of two images, and e = 1/(uv) sum_p h_p their average over positions.
Then <e, e'> = 1/(uv u'v') sum_{p,q} <h_p, h'_q>, and the cosine divides this by |e| |e'|. The terms of the sum are the
score itself, taken apart. They exist only if the embedding is the pooled last block.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from gamlens import fuse, render, scores
from gamlens.capture.nonblocking import Checks
from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture

PairSide = Literal["x", "y"]
POOLING_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class Matches:
    """What one position of the image `side` adds to a pair's score, split over the positions of the other image.

    `map` (h,w) is in units of the score: the maps of all positions of `side` add up to `score`. `cell` is the position
    (row, column) that was asked for, of `cells` (rows, columns) that the block of that image has; `size` (the model's
    input), `picture` and `frame` are those of the other image.
    """

    map: Tensor
    score: float
    side: PairSide
    cell: tuple[int, int]
    cells: tuple[int, int]
    size: tuple[int, int]
    picture: Picture
    frame: Frame

    def __repr__(self) -> str:
        return f"<Matches of {self.side}{self.cell}: {self.part:.3g} of {self.score:.3g}, best at {self.best}>"

    @property
    def part(self) -> float:
        """What this position adds to the score: the sum over all its matches."""
        return float(self.map.sum())

    @property
    def best(self) -> tuple[float, float]:
        """The middle of the strongest match, (x, y) in original pixels of the other image."""
        height, width = self.map.shape
        row, column = divmod(int(self.map.argmax()), width)
        x0, y0, x1, y1 = self.frame.window
        return x0 + (column + 0.5) / width * (x1 - x0), y0 + (row + 0.5) / height * (y1 - y0)

    def full(self) -> Tensor:
        """The positive matches as a map (H,W) in [0,1] at the original size of the other image: ReLU, RSZ, NRM."""
        return self.frame.map(fuse.normalize(fuse.resize(self.map.relu()[None], self.size))[0])

    def overlay(self, *, opacity: float = 0.7, cmap: str = "ember") -> Image.Image:
        """The matches drawn over the other image."""
        return render.overlay(self.picture.open(), self.full().cpu().numpy(), opacity=opacity, cmap=cmap)


def parts(h: Tensor, other: Tensor, cell: tuple[int, int], factor: Tensor) -> Tensor:
    """factor * <h_p, h'_q> for p = cell and every q: blocks (C,u,v) and (C,u',v') -> (u',v')."""
    return factor * torch.einsum("k,khw->hw", h[:, cell[0], cell[1]], other)


def factor(
    h: tuple[Tensor, Tensor], embeddings: tuple[Tensor, Tensor], score: str | scores.PairScoreFunction, *, eps: float
) -> Tensor:
    """What each <h_p, h'_q> is multiplied by, so that all of them add up to the score, from both blocks and embeddings.

    Average pooling, sum pooling and a pooled vector brought to length 1 differ by one number per image. `h` are blocks
    (C,u,v), `embeddings` (D,); `eps` is that of the precision in which the network pooled.
    """
    entry = scores.find_pair_score(score)
    if entry.dot_divisor is None:
        sums = ", ".join(repr(name) for name, other in scores.PAIR_SCORES.items() if other.sums_over_positions)
        raise GamlensError(
            f"The score {scores.score_name(score)!r} is not known to be a multiple of the dot product, so it is no sum "
            f"over pairs of positions and has no matches: use one of {sums}."
        )
    result, most = h[0].new_ones(()), min(1000 * eps, POOLING_TOLERANCE)
    for activation, embedding in zip(h, embeddings, strict=True):
        result = result * _pooled(activation, embedding, most) / math.prod(activation.shape[1:])
    x, y = embeddings[0][None], embeddings[1][None]
    if entry.undefined is not None:
        Checks().with_check(entry.defined(x, y), x.device)
    return result / entry.dot_divisor(x, y)[0]


def cell_of(point: tuple[float, float], frame: Frame, size: tuple[int, int]) -> tuple[int, int]:
    """The position (row, column) of a block (h,w) that lies under a point (x, y) of the original image."""
    try:
        x, y = (float(value) for value in point)
    except (TypeError, ValueError) as error:
        raise GamlensError(f"A point is (x, y) in pixels of the original image; found {point!r}.") from error
    x0, y0, x1, y1 = frame.window
    across, down = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
    inside = 0 <= x <= frame.original[1] and 0 <= y <= frame.original[0]
    if not inside or not (0 <= across <= 1 and 0 <= down <= 1):
        raise GamlensError(
            f"The point ({x:g}, {y:g}) lies outside what the model saw: x from {max(x0, 0):g} to "
            f"{min(x1, frame.original[1]):g}, y from {max(y0, 0):g} to {min(y1, frame.original[0]):g}, in pixels of "
            "the original image."
        )
    return min(int(down * size[0]), size[0] - 1), min(int(across * size[1]), size[1] - 1)


def _pooled(activation: Tensor, embedding: Tensor, most: float) -> Tensor:
    """The number c in embedding = c * mean_p h_p; an error if the embedding is anything else."""
    what = "so the similarity is no sum over pairs of positions; compare by the pooled last block (embedding=) for that"
    if len(activation) != len(embedding):
        raise GamlensError(
            f"The embedding has {len(embedding)} numbers and the last block {len(activation)} channels: it is not its "
            f"average, {what}."
        )
    mean = activation.mean(dim=(1, 2))
    scale = (embedding @ mean) / (mean @ mean).clamp(min=torch.finfo(mean.dtype).tiny)
    off = float((embedding - scale * mean).norm() / embedding.norm().clamp(min=torch.finfo(mean.dtype).tiny))
    if not off <= most:
        raise GamlensError(f"The embedding is not the average of the last block ({100 * off:.3g} % off), {what}.")
    return scale
