"""Interactions: a pair's score as a sum over pairs of positions, one position in each image.

With f(x) = f(b) + sum_p F_p and f(y) = f(b') + sum_q F'_q (see `embedding_parts`), a score <f(x), f(y)> / d, such as
the cosine with d = |f(x)| |f(y)|, is

    s(x,y) = sum_{p,q} <F_p, F'_q> / d  +  remainder,    remainder = s(x,b') + s(b,y) - s(b,b'),

where s(u,v) stands for <f(u), f(v)> / d with this same d. The term of p and q is what the match of these two places
adds to the score. The remainder is measured by forwards of the baselines b and b'. The terms converge to the score
minus the remainder as the steps of the integral grow; `Interactions.gap` is what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from gamlens import boxes, fuse, render
from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.pairs.embedding_parts import EmbeddingParts, checked_count, overlaps

PairSide = Literal["x", "y"]
Regions = Mapping[str, Any]  # {name: a box (x0,y0,x1,y1) in original pixels, or a mask (height,width) of bool}
ELSEWHERE = "elsewhere"
FOUND_AT = 0.5  # the map value from which pixels belong to a region that is found


class Link(NamedTuple):
    """What one place of x and one place of y add to the score together.

    Attributes:
        x, y: The middle of the places, (x, y) in original pixels of each image.
        value: What they add, in units of the score; negative if they lower it.
        share: `value` as a share of the score's size, so that it has the sign of `value`; 0 if the score is 0.
        x_box, y_box: The places, (x0, y0, x1, y1) in original pixels.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    value: float
    share: float
    x_box: tuple[float, float, float, float]
    y_box: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class RegionParts:
    """A score split between the regions of x and those of y.

    Attributes:
        values: (A+1,B+1), in units of the score: row a is region a of x, column b region b of y; the last row and
            column are everything outside of regions. All of them add up to the sum of the interactions.
        x_names, y_names: The names of the rows and columns; the last is "elsewhere".
        score: The score of the pair.
    """

    values: Tensor
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    score: float

    @property
    def shares(self) -> Tensor:
        """The values as shares of the score's size, with their own signs, (A+1,B+1); zeros if the score is 0."""
        return self.values / abs(self.score) if self.score else torch.zeros_like(self.values)

    def sentences(self, most: int = 5) -> list[str]:
        """The largest parts in words, such as "dog matches dog: 71 % of the score"."""
        most = checked_count("most", most)
        order = self.values.flatten().abs().argsort(descending=True, stable=True)[:most].tolist()
        width, shares = len(self.y_names), self.shares.flatten()
        of = "the score" if self.score >= 0 else "the size of the negative score"
        return [
            f"{self.x_names[at // width]} {'matches' if shares[at] >= 0 else 'speaks against'} "
            f"{self.y_names[at % width]}: {100 * float(shares[at]):.0f} % of {of}"
            for at in order
        ]


@dataclass(frozen=True, eq=False)
class Interactions:
    """What every place of x and every place of y add together to the score of a pair. Made by `PairTrace.interactions`.

    score = matrix.sum() + aside + remainder + gap.

    Attributes:
        matrix: (h,w,h',w'), in units of the score: matrix[i,j,k,l] is what cell (i,j) of x and cell (k,l) of y add.
        score: The score of the pair.
        remainder: What is left without the one image or the other: s(x,b') + s(b,y) - s(b,b'), by forwards of the
            baselines b and b'. It belongs to no pair of places.
        aside: What class and register tokens add, together with each other and with places.
        gap: What the numerical integral misses; it goes to 0 as `steps` grow.
        exact: Whether the parts are exact, because the embedding is the average of the block.
        steps: The number of steps of the integral; 0 if `exact`.
        baseline: The name of the baseline: "zeros", "blank" (an image of the mean colour), "average" (what both images
            have on average) or "given".
        forwards: How many times the network was run for this. The layers up to the block see one image each time, those
            after it as many rows as fit into memory.
        pictures, frames: Both images, and where the model's input lies in each of them.
        name: The name of the score.

    Example:
        >>> found = lens.trace_pair(photo, other).interactions()
        >>> found.exact, found.matrix.ndim  # the small network of this example averages over positions
        (True, 4)
        >>> total = float(found.matrix.sum()) + found.aside + found.remainder + found.gap
        >>> round(total - found.score, 5) == 0
        True
        >>> picture = found.overlay(5)  # lines between the places that match best
    """

    matrix: Tensor
    score: float
    remainder: float
    aside: float
    gap: float
    exact: bool
    steps: int
    baseline: str
    forwards: int
    pictures: tuple[Picture, Picture]
    frames: tuple[Frame, Frame]
    name: str = "score"

    @classmethod
    def from_parts(
        cls, x: EmbeddingParts, y: EmbeddingParts, divisor: Tensor, *, score: float, **known: Any
    ) -> Interactions:
        """Multiply the parts of two embeddings with each other.

        Args:
            x, y: The parts of both embeddings.
            divisor: d, by which the dot product is divided, a scalar tensor.
            score: The score that the network's own embeddings give.
            known: The other attributes.
        """
        matrix = torch.einsum("ijd,kld->ijkl", x.parts, y.parts) / divisor
        whole_x, whole_y = x.parts.sum(dim=(0, 1)), y.parts.sum(dim=(0, 1))
        aside = ((whole_x + x.aside) @ (whole_y + y.aside) - whole_x @ whole_y) / divisor
        end_x, end_y = known.pop("embeddings")
        remainder = (end_x @ y.baseline + x.baseline @ end_y - x.baseline @ y.baseline) / divisor
        total = matrix.double().sum() + aside.double() + remainder.double()
        return cls(
            matrix=matrix,
            score=score,
            remainder=float(remainder),
            aside=float(aside),
            gap=score - float(total),
            exact=x.exact and y.exact,
            baseline=x.name,
            **known,
        )

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.matrix.shape))
        return (
            f"<Interactions {shape} of {self.name} {self.score:.4g}: matches {float(self.matrix.sum()):.4g}, aside "
            f"{self.aside:.3g}, remainder {self.remainder:.3g} ({self.baseline}), gap {self.gap:.2g}>"
        )

    def swapped(self) -> Interactions:
        """The same with x and y exchanged."""
        return Interactions(
            **{
                **vars(self),
                "matrix": self.matrix.permute(2, 3, 0, 1),
                "pictures": self.pictures[::-1],
                "frames": self.frames[::-1],
            }
        )

    def map(self, side: PairSide = "x", *, positive: bool = False) -> Tensor:
        """What each place of an image adds, over all places of the other: (h,w), in units of the score.

        With `positive`, only pairs of places that raise the score count.
        """
        matrix = self.matrix.relu() if positive else self.matrix
        return matrix.sum(dim=(2, 3) if _number(side) == 0 else (0, 1))

    def full(self, side: PairSide = "x", *, positive: bool = False) -> Tensor:
        """The positive part of `map`, resized and normalised, as a map in [0,1] at the size of the original image."""
        frame = self.frames[_number(side)]
        sized = fuse.resize(self.map(side, positive=positive).relu()[None].float(), frame.size)
        return frame.map(fuse.min_max(sized)[0][0])

    # The strongest links

    def links(self, most: int = 8) -> list[Link]:
        """The strongest links between both images, strongest first; neighbouring ones are taken together.

        The strongest pair of cells that is left, together with those pairs of the same sign that lie at most one cell
        from it in both images and are at least half as strong, makes one link; this is repeated `most` times.
        """
        most = checked_count("most", most)
        left, found = self.matrix.detach().double().cpu().clone(), []
        for _ in range(min(most, left.numel())):
            at = int(left.abs().argmax())
            seed = float(left.flatten()[at])
            if seed == 0:
                break
            centre = torch.unravel_index(torch.tensor(at), left.shape)
            near = tuple(slice(max(0, int(c) - 1), int(c) + 2) for c in centre)
            part = left[near]
            together = part * seed >= 0.5 * seed * seed
            found.append(self._link(torch.where(together, part, 0), [span.start for span in near]))
            left[near] = torch.where(together, 0, part)
        return sorted(found, key=lambda link: -abs(link.value))

    def _link(self, part: Tensor, starts: list[int]) -> Link:
        value = float(part.sum())
        places: list[Any] = []
        for side, (kept, gone) in enumerate((((0, 1), (2, 3)), ((2, 3), (0, 1)))):
            weight = part.sum(dim=gone).abs()
            used = weight.nonzero()
            (top, low), (first, last) = ((int(used[:, d].min()), int(used[:, d].max()) + 1) for d in (0, 1))
            offset = [starts[d] for d in kept]
            middle = [
                float((weight.sum(dim=1 - d) * (torch.arange(weight.shape[d]) + 0.5)).sum() / weight.sum())
                for d in (0, 1)
            ]
            box = (offset[1] + first, offset[0] + top, offset[1] + last, offset[0] + low)
            places += [self._original(side, (offset[1] + middle[1], offset[0] + middle[0])), self._original(side, box)]
        share = value / abs(self.score) if self.score else 0.0
        return Link(x=places[0], y=places[2], value=value, share=share, x_box=places[1], y_box=places[3])

    def _original(self, side: int, cells: tuple[float, ...]) -> tuple[float, ...]:
        """A point or box (x,y,...) in cells of one image, in pixels of the original image."""
        frame = self.frames[side]
        height, width = self.matrix.shape[2 * side : 2 * side + 2]
        x0, y0, x1, y1 = frame.window
        steps, starts = ((x1 - x0) / width, (y1 - y0) / height), (x0, y0)
        found = [starts[place % 2] + value * steps[place % 2] for place, value in enumerate(cells)]
        return tuple(min(max(value, 0.0), float(frame.original[1 - place % 2])) for place, value in enumerate(found))

    def overlay(self, most: int = 8) -> Image.Image:
        """Both images side by side with the strongest links drawn between them, each with its share of the score."""
        links = self.links(most)
        largest = max((abs(link.value) for link in links), default=1.0)
        marks = [
            render.LinkMark(
                start=link.x,
                end=link.y,
                weight=link.value / largest,
                label=f"{100 * link.share:.0f} %",
                start_box=_drawable(link.x_box),
                end_box=_drawable(link.y_box),
            )
            for link in links
        ]
        return render.linked(self.pictures[0].open(), self.pictures[1].open(), marks)

    # Objects to objects

    def between(self, x_regions: Regions, y_regions: Regions) -> RegionParts:
        """Split the score between regions of x and regions of y: which object matches which?

        A cell that a region covers in part counts for that part; where regions overlap, they share it equally.

        Args:
            x_regions, y_regions: {name: region} for each image. A region is a box (x0,y0,x1,y1) in pixels of the
                original image, or a mask of bool, (height,width) of the original image. `regions` finds some.
        """
        for own in (x_regions, y_regions):
            if not isinstance(own, Mapping):
                raise GamlensError(f"Regions are given by name, {{'dog': (0, 0, 90, 80)}}; found {own!r:.80}.")
        weights = [self._coverage(0, x_regions), self._coverage(1, y_regions)]
        values = torch.einsum("aij,ijkl,bkl->ab", weights[0], self.matrix.double().cpu(), weights[1])
        names = [(*regions, ELSEWHERE) for regions in (x_regions, y_regions)]
        return RegionParts(values=values, x_names=names[0], y_names=names[1], score=self.score)

    def regions(self, side: PairSide = "x", *, threshold: float = FOUND_AT, most: int = 4) -> dict[str, Tensor]:
        """Regions where the map of an image is high: its connected components, largest first, as masks by name.

        The map is that of the pairs of places that raise the score: from an average baseline, all pairs of a place
        nearly cancel.

        Args:
            side: The image.
            threshold: The map value (`full` with positive=True) from which a pixel belongs to a region.
            most: How many regions at most.
        """
        boxes.check_threshold(threshold)
        most = checked_count("most", most)
        bright = self.full(side, positive=True) >= threshold
        labels = boxes.components(bright[None].cpu())[0]
        sizes = {int(label): int((labels == label).sum()) for label in set(labels.flatten().tolist()) if label}
        best = sorted(sizes, key=lambda label: -sizes[label])[:most]
        return {f"{side}{number}": labels == label for number, label in enumerate(best, 1)}

    def _coverage(self, side: int, regions: Regions) -> Tensor:
        """Which part of each cell each region covers, and what is left: (A+1,h,w), which add up to 1 in every cell."""
        frame, cells = self.frames[side], self.matrix.shape[2 * side : 2 * side + 2]
        masks = torch.zeros(len(regions), *frame.size, dtype=torch.float64)
        for number, (name, region) in enumerate(regions.items()):
            masks[number] = _mask_of(name, region, frame)
        masks /= masks.sum(dim=0).clamp(min=1)
        shares = [overlaps(pixels, count) for pixels, count in zip(frame.size, cells, strict=True)]
        rows, columns = (own / own.sum(dim=1, keepdim=True) for own in shares)  # means over the pixels of each cell
        covered = torch.einsum("gy,ayx,kx->agk", rows, masks, columns)
        return torch.cat([covered, (1 - covered.sum(dim=0, keepdim=True))])


def _mask_of(name: str, region: Any, frame: Frame) -> Tensor:
    """A region of the original image as a mask at the size of the model's input, (H,W) of float64 in {0,1}."""
    if name == ELSEWHERE:
        raise GamlensError(f"A region cannot be called {ELSEWHERE!r}, which is all that lies outside of regions.")
    try:
        found = torch.as_tensor(region)
    except (TypeError, ValueError, RuntimeError):  # a text, None, or rows of several lengths
        raise _no_region(name, frame, f"{region!r:.80}") from None
    if found.shape == (4,) and found.dtype != torch.bool:
        x0, y0, x1, y1 = frame.boxes_in(found[None].double())[0].tolist()
        if not (x0 < x1 and y0 < y1):
            raise GamlensError(
                f"The box of {name!r}, {found.tolist()}, is empty or outside what the model saw: give x0, y0, x1, y1 "
                f"in pixels of the original image, {frame.original[1]} x {frame.original[0]}."
            )
        down, across = (torch.arange(side, dtype=torch.float64) for side in frame.size)
        rows = ((down + 1).clamp(max=y1) - down.clamp(min=y0)).clamp(min=0)
        columns = ((across + 1).clamp(max=x1) - across.clamp(min=x0)).clamp(min=0)
        return rows[:, None] * columns[None]
    if found.shape != frame.original or found.dtype != torch.bool:
        raise _no_region(name, frame, f"{found.dtype} {tuple(found.shape)}")
    if not bool(found.any()):
        raise GamlensError(f"The mask of {name!r} is empty: leave it out, or give one with a pixel that is True.")
    return frame.mask_in(found.cpu()).double()


def _no_region(name: str, frame: Frame, found: str) -> GamlensError:
    return GamlensError(
        f"The region {name!r} is neither a box (x0,y0,x1,y1) nor a mask of bool of the original size {frame.original} "
        f"(height,width); found {found}."
    )


def _drawable(box: tuple[float, float, float, float]) -> tuple[float, float, float, float] | None:
    """The box; None if it is empty, because the place lies in the padding beside the image."""
    return box if box[0] < box[2] and box[1] < box[3] else None


def _number(side: str) -> int:
    if side not in ("x", "y"):
        raise GamlensError(f"side= is 'x' or 'y', not {side!r}.")
    return "xy".index(side)
