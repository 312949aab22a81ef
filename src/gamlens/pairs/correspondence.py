"""Point to point: what in one image matches a point of the other? One row of the interactions of a pair.

Let h (C,u,v) and h' (C,u',v') be the last blocks of two images. If the embeddings are averages over positions,
e = 1/(uv) sum_p h_p and e' = 1/(u'v') sum_q h'_q, then <e, e'> = 1/(uv u'v') sum_{p,q} <h_p, h'_q>. A score
<e, e'> / d(e, e'), such as the cosine with d = |e| |e'|, divides every term of this sum by the same number d. So the
terms add up to the score: the term of p and q is what the match of these two positions contributes. For any other
embedding `interactions` computes the terms by integrated Jacobians; they add up to the score minus a remainder.
"""

from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from gamlens import fuse, render
from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.pairs.interactions import PairSide


@dataclass(frozen=True, eq=False)
class Matches:
    """What one position of the image `side` adds to a pair's score, split over the positions of the other image.

    Attributes:
        map: What each position of the other image contributes, (h,w), in units of the score. The maps of all positions
            of `side` add up to `score` if the embedding is the pooled last block, and else to `score` less what belongs
            to no pair of places (`Interactions.remainder`, `aside` and `gap`).
        score: The score of the pair.
        side: The image that the position lies in, "x" or "y".
        cell: The position, (row, column) among the cells of that image.
        cells: How many rows and columns of cells that image has: those of the last block, or fewer if positions were
            taken together.
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
