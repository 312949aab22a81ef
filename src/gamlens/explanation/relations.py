"""ContrastExplanation and GroupExplanation: maps of more than two images that are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image
from torch import Tensor

from gamlens import render
from gamlens.explanation.map_bar import EndWords, beside_with_bars
from gamlens.explanation.result import SHOWN, Explanation, draw_beside

CONTRAST_WORDS = EndWords("for image 3", "for image 2")  # b is the third image that is drawn, and a the second


@dataclass(frozen=True, eq=False)
class ContrastExplanation:
    """Why x is more like a than like b: maps of P contrasts on three images each. The result of `Lens.contrast`.

    Maps are signed by default: positive pixels speak for a, negative ones for b.

    Attributes:
        x: The maps on the image that is compared: row p belongs to contrast p.
        a: The maps on the image that x is compared with first, of s(x,a).
        b: The maps on the other image, of -s(x,b).
        scores: The explained differences s(x,a) - s(x,b), (P,).
        score_a, score_b: The similarities s(x,a) and s(x,b), (P,) each.

    Example:
        >>> found = lens.contrast(photo, other, photo.crop((0, 0, 99, 99)), method="gam", n=1)
        >>> torch.allclose(found.scores, found.score_a - found.score_b, atol=1e-6)
        True
        >>> found.x.signed, found.a.maps.shape
        (True, torch.Size([1, 224, 224]))
    """

    x: Explanation
    a: Explanation
    b: Explanation
    scores: Tensor
    score_a: Tensor
    score_b: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        rows = zip(self.scores.tolist(), self.score_a.tolist(), self.score_b.tolist(), strict=True)
        shown = ", ".join(f"{value:.3g} = {a:.3g} - {b:.3g}" for value, a, b in list(rows)[:4])
        return f"<ContrastExplanation of {len(self)} by {self.about.get('method', '?')}: {shown}>"

    @property
    def about(self) -> Mapping[str, Any]:
        """How the maps were made: model, weights, method, n, fuse, score, sign, blocks, versions."""
        return self.x.about

    def overlay(self, i: int = 0, *, opacity: float = 0.7, cmap: str = "ember", bar: bool = False) -> Image.Image:
        """Draw the maps of contrast i over its images: x, a and b side by side, at the height of the smallest.

        With `bar`, a colour bar stands below each of them, as in `Explanation.overlay`; its ends say what speaks for a,
        the second image, and what for b, the third.
        """
        sides = (self.x, self.a, self.b)
        return draw_beside(sides, i, opacity=opacity, cmap=cmap, bar=bar, words=CONTRAST_WORDS)

    def save(self, folder: str, *, cmap: str = "ember") -> list[str]:
        """Write the result to a folder: x/, a/ and b/ as `Explanation.save` writes them, and one PNG per contrast.

        Returns the paths of the files. Files that are there already are treated as `Explanation.save` treats them.
        """
        from gamlens.explanation.saving import save_sides

        sides, draw = {"x": self.x, "a": self.a, "b": self.b}, partial(self.overlay, bar=bool(self.x.scales))
        return save_sides(sides, draw, folder, cmap=cmap, words=CONTRAST_WORDS)

    def _repr_html_(self) -> str:
        """Show the first contrasts in a notebook."""
        drawn = partial(self.overlay, bar=bool(self.x.scales))
        rows = zip(range(SHOWN), self.scores.tolist(), strict=False)
        return render.fragment(
            [render.Panel(drawn(row), "x, a, b", f"{score:.4g}", "why a rather than b") for row, score in rows]
        )


@dataclass(frozen=True, eq=False)
class GroupExplanation:
    """Why k images are alike: one map per image. The result of `Lens.group`.

    Attributes:
        images: One row per image: what makes it like the others. Its `scores` are the mean similarities to the others.
        pair_scores: The similarity of every two images, (k,k).

    Example:
        >>> found = lens.group([photo, other, photo.crop((0, 0, 99, 99))], method="gam", n=1)
        >>> found.images.maps.shape, found.pair_scores.shape
        (torch.Size([3, 224, 224]), torch.Size([3, 3]))
    """

    images: Explanation
    pair_scores: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"<GroupExplanation of {len(self)} images by {self.about.get('method', '?')}: mean {self.score:.3g}>"

    @property
    def about(self) -> Mapping[str, Any]:
        """How the maps were made: model, weights, method, n, fuse, score, blocks, versions."""
        return self.images.about

    @property
    def score(self) -> float:
        """The mean similarity over all pairs of two different images."""
        return float(self.images.scores.mean())

    def overlay(self, *, opacity: float = 0.7, cmap: str = "ember", bar: bool = False) -> Image.Image:
        """Draw the maps over all images, side by side, at the height of the smallest; with `bar` each has its bar."""
        rows = range(len(self))
        pictures = [self.images.overlay(row, opacity=opacity, cmap=cmap) for row in rows]
        return (
            beside_with_bars(pictures, [self.images.bar(row, cmap=cmap) for row in rows])
            if bar
            else (render.beside(pictures))
        )

    def save(self, folder: str, *, cmap: str = "ember") -> list[str]:
        """Write the maps, overlays and JSON of all images to a folder like `Explanation.save`; returns the paths."""
        return self.images.save(folder, cmap=cmap)

    def _repr_html_(self) -> str:
        """Show the first images in a notebook."""
        return self.images._repr_html_()
