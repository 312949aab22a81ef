"""What is searched for: an image, a region of one, several images added and subtracted, or a caption, as one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError, readable
from gamlens.fuse import at_least_float32
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture, pictures
from gamlens.pairs.text import as_captions, embed_captions
from gamlens.retrieval import Gallery
from gamlens.retrieval.embedding_form import LINEAR_FORM, OTHER_FORM
from gamlens.scores import PAIR_SCORES

if TYPE_CHECKING:
    from gamlens.lens import Lens

POINT_CROP = 0.25  # the side of the square around a point that is cut out, as a share of the image's shorter side
CANCELLED = 4e-6  # a sum that is shorter than this share of its parts is rounding, as between batches of the same image
PixelBox = tuple[float, float, float, float]  # x0,y0,x1,y1 in pixels of the original image
PixelPoint = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Query:
    """What is searched for.

    Attributes:
        vector: The embedding that is compared with those of the index, (D,) float32.
        title: The query in words.
        sides: What hits are explained with: one remembered image for each image that speaks for the query.
        minus: The remembered images that speak against it.
        caption: The caption, if the query is a text.
        region: Which part of the first image is searched for, x0,y0,x1,y1 in its pixels; None for the whole image.
        by_crop: Whether the region was cut out and embedded by itself, because the embedding of this network is no
            average over positions.
        regions: The region of the image of each side, as far as maps must be restricted to it: None for a whole image,
            and for a region that was cut out.
        cut_from: The files of images of which a region was cut out.
    """

    vector: np.ndarray[Any, Any]
    title: str
    sides: tuple[Gallery, ...] = ()
    minus: tuple[Gallery, ...] = ()
    caption: str | None = None
    region: PixelBox | None = None
    by_crop: bool = False
    regions: tuple[PixelBox | None, ...] = ()
    cut_from: tuple[str, ...] = ()

    def region_of(self, side: int) -> PixelBox | None:
        """The region to which maps of a side must be restricted."""
        return self.regions[side] if side < len(self.regions) else None

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the query's images."""
        found = [side.pictures[0].path for side in (*self.sides, *self.minus)]
        return (*(path for path in found if path is not None), *self.cut_from)


def image_query(
    lens: Lens, image: Any, *, box: PixelBox | None = None, point: PixelPoint | None = None, refine: Any = False
) -> Query:
    """Search for an image, or for a region of it.

    The embedding of a region is that of its positions of the last block, if the embedding of the network is an average
    over positions. Otherwise the region is cut out of the image and embedded by itself.

    Args:
        lens: The model.
        image: One image, as `Lens` takes it.
        box: The region, x0,y0,x1,y1 in pixels of the upright original image.
        point: The position of the last block that lies there, (x,y) in these pixels.
        refine: By which earlier blocks maps will be refined.
    """
    found = list(pictures(image))
    if len(found) != 1:
        raise GamlensError(f"A query is one image; found {len(found)}: give several as plus= and minus=.")
    if box is not None and point is not None:
        raise GamlensError("Give box= or point=, not both.")
    whole = lens.remember(found, refine=refine)
    title = readable(found[0].name)
    if box is None and point is None:
        return Query(_vector(whole.embeddings[0]), title, (whole,))
    frame = whole.frames[0]
    region = _checked_box(box, frame) if box is not None else None
    spot = _checked_point(point, frame) if point is not None else None
    shown = " ".join(f"{value:.0f}" for value in region or spot or ())
    title = f"{title}, {'box' if region else 'point'} {shown}"
    if whole.law == OTHER_FORM:
        region = region or _around(spot, frame)
        cut = Picture(title, pixels=found[0].open().crop(_whole_pixels(region)))
        side = lens.remember([cut], refine=refine)
        own = () if found[0].path is None else (found[0].path,)
        return Query(_vector(side.embeddings[0]), title, (side,), region=region, by_crop=True, cut_from=own)
    weights = coverage(region, spot, frame, whole.activations.shape[2:]).to(whole.activations)
    side = _restricted(whole, weights)
    region = region or _cell_box(weights, frame)
    return Query(_vector(side.embeddings[0]), title, (side,), region=region, regions=(region,))


def caption_query(lens: Lens, caption: str) -> Query:
    """Search for a caption, with a dual encoder."""
    (vector,) = embed_captions(as_captions(caption), lens.text, None, lens.name)
    return Query(_vector(vector), f"'{caption}'", caption=caption)


def combined_query(plus: Sequence[Query], minus: Sequence[Query], *, score: str) -> Query:
    """Search for images that are like all of `plus` and unlike all of `minus`: the sum of their vectors.

    For the cosine, every vector is brought to length 1 before, so that every image counts as much as another.
    """
    if not plus:
        raise GamlensError("A query needs something to search for: an image or a caption, beside what speaks against.")
    if len(plus) == 1 and not minus:
        return plus[0]
    units = PAIR_SCORES[score].undefined is not None  # a score of directions, which a vector of zeros has none of
    parts = [_unit(query) if units else query.vector for query in plus]
    parts += [-(_unit(query) if units else query.vector) for query in minus]
    if len({len(part) for part in parts}) > 1:
        raise GamlensError("The embeddings of these queries have different lengths, so they cannot be added.")
    total = np.asarray(np.sum(parts, axis=0, dtype=np.float64), dtype=np.float32)
    if np.linalg.norm(total) <= CANCELLED * sum(float(np.linalg.norm(part)) for part in parts):
        raise GamlensError(
            "What speaks for this query and what speaks against it cancel: nothing is left to search for."
        )
    names = " + ".join(query.title for query in plus) + "".join(f" - {query.title}" for query in minus)
    first = next((query for query in plus if query.sides), plus[0])
    return Query(
        vector=total,
        title=names,
        sides=tuple(side for query in plus for side in query.sides),
        minus=tuple(side for query in minus for side in query.sides),
        caption=next((query.caption for query in plus if query.caption is not None), None),
        region=first.region,
        by_crop=first.by_crop,
        regions=tuple(query.region_of(side) for query in plus for side in range(len(query.sides))),
        cut_from=tuple(file for query in (*plus, *minus) for file in query.cut_from),
    )


def _restricted(whole: Gallery, weights: Tensor) -> Gallery:
    """The same remembered image as if it consisted of some positions alone.

    With weights w_p (h,w) of positions that add up to their number, the activations w_p h_p have the weighted average
    m' of the block. A linear embedding e = a m + b becomes e + a (m' - m), and m / |m| becomes m' / |m'|.
    """
    h = at_least_float32(whole.activations)
    count = weights.numel()
    own = h * (weights * (count / weights.sum()))
    before, after = h.mean(dim=(2, 3)), own.mean(dim=(2, 3))
    if whole.law == LINEAR_FORM:
        embeddings = at_least_float32(whole.embeddings) + whole.scales[:, None] * count * (after - before)
        return replace(whole, activations=own, embeddings=embeddings)
    length = after.norm(dim=1)
    return replace(whole, activations=own, embeddings=F.normalize(after), scales=1 / (count * length))


def coverage(box: PixelBox | None, point: PixelPoint | None, frame: Frame, cells: Sequence[int]) -> Tensor:
    """How much of each position a box covers, or 1 where a point lies, (h,w)."""
    rows, columns = cells
    if point is not None:
        x, y = (frame.boxes_in(torch.tensor([[*point, *point]], dtype=torch.float64))[0, :2]).tolist()
        found = torch.zeros(rows, columns, dtype=torch.float64)
        row, column = int(y * rows / frame.size[0]), int(x * columns / frame.size[1])
        found[min(row, rows - 1), min(column, columns - 1)] = 1
        return found
    x0, y0, x1, y1 = frame.boxes_in(torch.tensor([box], dtype=torch.float64))[0].tolist()
    sides = []
    for low, high, length, count in ((y0, y1, frame.size[0], rows), (x0, x1, frame.size[1], columns)):
        edges = torch.linspace(0, length, count + 1, dtype=torch.float64)
        sides.append((edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)).clamp(min=0))
    return sides[0][:, None] * sides[1][None]


def _cell_box(weights: Tensor, frame: Frame) -> PixelBox:
    """The box of the position that has a weight, in original pixels."""
    row, column = (int(place) for place in weights.nonzero()[0])
    height, width = frame.size[0] / weights.shape[0], frame.size[1] / weights.shape[1]
    cell = torch.tensor([[column * width, row * height, (column + 1) * width, (row + 1) * height]])
    x0, y0, x1, y1 = frame.boxes(cell)[0].tolist()
    return x0, y0, x1, y1


def _checked_box(box: PixelBox, frame: Frame) -> PixelBox:
    try:
        x0, y0, x1, y1 = map(float, box)
    except (TypeError, ValueError):
        x0, y0, x1, y1 = 0.0, 0.0, 0.0, 0.0
    if not (np.isfinite([x0, y0, x1, y1]).all() and x0 < x1 and y0 < y1):
        raise GamlensError(f"box={box!r:.80}: give x0, y0, x1, y1 in pixels of the image, with x0 < x1 and y0 < y1.")
    inside = frame.boxes_in(torch.tensor([[x0, y0, x1, y1]], dtype=torch.float64))[0]
    if not bool((inside[0] < inside[2]) & (inside[1] < inside[3])):
        raise _outside(f"The box {x0:g}, {y0:g}, {x1:g}, {y1:g}", frame)
    return max(x0, 0.0), max(y0, 0.0), min(x1, float(frame.original[1])), min(y1, float(frame.original[0]))


def _checked_point(point: PixelPoint, frame: Frame) -> PixelPoint:
    try:
        x, y = map(float, point)
    except (TypeError, ValueError):
        raise GamlensError(f"point={point!r:.80}: give x, y in pixels of the image.") from None
    left, top, right, bottom = frame.window
    if not (max(left, 0) <= x < min(right, frame.original[1]) and max(top, 0) <= y < min(bottom, frame.original[0])):
        raise _outside(f"The point {x:g}, {y:g}", frame)
    return x, y


def _outside(what: str, frame: Frame) -> GamlensError:
    x0, y0, x1, y1 = frame.window
    return GamlensError(
        f"{what} lies outside of what the model sees: the image has {frame.original[1]} x {frame.original[0]} pixels, "
        f"and the model sees x from {max(x0, 0):.0f} to {min(x1, frame.original[1]):.0f} and y from {max(y0, 0):.0f} "
        f"to {min(y1, frame.original[0]):.0f}."
    )


def _around(point: PixelPoint | None, frame: Frame) -> PixelBox:
    """A square around a point that lies in the image."""
    assert point is not None
    height, width = frame.original
    side = max(1.0, POINT_CROP * min(height, width))
    left = min(max(point[0] - side / 2, 0), width - side)
    top = min(max(point[1] - side / 2, 0), height - side)
    return left, top, left + side, top + side


def _whole_pixels(box: PixelBox) -> tuple[int, int, int, int]:
    """A box in whole pixels, of at least one."""
    x0, y0, x1, y1 = (round(value) for value in box)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def _vector(embedding: Tensor) -> np.ndarray[Any, Any]:
    found = np.asarray(embedding.detach().float().cpu().numpy(), dtype=np.float32)
    if not np.isfinite(found).all():
        raise GamlensError("The embedding of the query is not finite: check the model on this image.")
    return found


def _unit(query: Query) -> np.ndarray[Any, Any]:
    length = float(np.linalg.norm(query.vector.astype(np.float64)))
    if length == 0:
        raise GamlensError(f"The embedding of {query.title} is all zeros, so it has no cosine: choose another image.")
    return np.asarray(query.vector / length, dtype=np.float32)
