"""Point to point: a similarity of average-pooled features is a sum over pairs of positions, one of each image.

Let h (C,u,v) and h' (C,u',v') be the last blocks of two images, and e = 1/(uv) sum_p h_p and e' = 1/(u'v') sum_q h'_q
their averages over positions. Then <e, e'> = 1/(uv u'v') sum_{p,q} <h_p, h'_q>. A score <e, e'> / d(e, e'), such as the
cosine with d = |e| |e'|, divides every term of this sum by the same number d. So the terms add up to the score: the
term of p and q is what the match of these two positions contributes. This holds only if the embedding is the pooled
last block and the score is a multiple of the dot product (`PairScore.sums_over_positions`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from gamlens import fuse, render, scores
from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture

PairSide = Literal["x", "y"]
POOLING_TOLERANCE = 0.02  # how far an embedding may be from a multiple of the average, relative to its length


@dataclass(frozen=True, eq=False)
class Matches:
    """What one position of the image `side` adds to a pair's score, split over the positions of the other image.

    Attributes:
        map: What each position of the other image contributes, (h,w), in units of the score. The maps of all positions
            of `side` add up to `score`.
        score: The score of the pair.
        side: The image that the position lies in, "x" or "y".
        cell: The position, (row, column) on the last block of that image.
        cells: How many rows and columns that block has.
        size: The size (H,W) of the model's input for the other image.
        picture: The other image.
        frame: Where the model's input lies in the other image.
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
        """The positive matches as a map in [0,1] at the original size of the other image, (height, width).

        The map goes through a ReLU, is resized to the model's input, normalised, and laid over the original image.
        """
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
    """The number (a scalar tensor) by which every <h_p, h'_q> is multiplied, so that all of them add up to the score.

    With average pooling it is 1/(uv u'v' d). Sum pooling, and an average that is brought to length 1, multiply each
    embedding by a further number, which is found by comparing it with the average of its block.

    Args:
        h: The last blocks of both images, (C,u,v) and (C,u',v').
        embeddings: The embeddings of both images, (D,) each.
        score: A pair score that is a multiple of the dot product; any other is an error.
        eps: The machine epsilon of the precision in which the network computed the embeddings.
    """
    entry = scores.find_pair_score(score)
    if entry.dot_divisor is None:
        sums = ", ".join(repr(name) for name, other in scores.PAIR_SCORES.items() if other.sums_over_positions)
        raise GamlensError(
            f"The score {scores.score_name(score)!r} has no matches: it is no sum over pairs of positions (only a "
            f"multiple of the dot product is one): use one of {sums}."
        )
    result, most = h[0].new_ones(()), min(1000 * eps, POOLING_TOLERANCE)
    for activation, embedding in zip(h, embeddings, strict=True):
        result = result * _pooled(activation, embedding, most) / math.prod(activation.shape[1:])
    return result / entry.dot_divisor(embeddings[0][None], embeddings[1][None])[0]


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
    """The number c in embedding = c * mean_p h_p; an error if the embedding is no multiple of the average.

    Args:
        activation: The last block of one image, (C,u,v).
        embedding: Its embedding, (D,).
        most: The largest allowed |embedding - c * mean_p h_p| / |embedding|.
    """
    what = "so the score is no sum over pairs of positions: give Lens(embedding=...) the pooled last block"
    if len(activation) != len(embedding):
        raise GamlensError(
            f"The embedding has {len(embedding)} numbers and the last block has {len(activation)} channels. The "
            f"embedding is therefore not the average of the block, {what}."
        )
    mean = activation.mean(dim=(1, 2))
    scale = (embedding @ mean) / (mean @ mean).clamp(min=torch.finfo(mean.dtype).tiny)
    off = float((embedding - scale * mean).norm() / embedding.norm().clamp(min=torch.finfo(mean.dtype).tiny))
    if not off <= most:
        raise GamlensError(f"The embedding is not the average of the last block ({100 * off:.3g} % off), {what}.")
    return scale
