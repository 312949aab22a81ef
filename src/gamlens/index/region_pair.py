"""The pair of a region of one photo and another photo: what the search for a region compares, with a graph."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.capture.forward import ForwardRecord, as_map
from gamlens.capture.guard import outside_inference_mode
from gamlens.fuse import at_least_float32
from gamlens.index.queries import PixelBox, Query, coverage
from gamlens.inputs.frame import Frame
from gamlens.pairs.embedding_parts import positions_of
from gamlens.pairs.pair_trace import PairTrace
from gamlens.retrieval.embedding_form import UNIT_FORM


def region_pair(pair: PairTrace, query: Query, side: int = 0) -> PairTrace:
    """The pair whose first photo consists of the region of a side of the query alone; the pair itself if it has none.

    The last block h of the photo becomes w_p h_p at position p, where the weights w_p are the part of the position that
    the region covers, times a number that makes their mean 1. With m the mean of a block over positions, and m' that of
    the weighted one, a linear embedding e = a m + b becomes a m' + b, and m / |m| becomes m' / |m'|, as in
    `gamlens.index.queries`. So the score is that of the search, the map of the last block lies in the region, and
    gradients reach earlier blocks through the positions of the region.
    """
    region = query.region_of(side)
    if region is None or not pair.blocks:
        return pair
    records, last = list(pair.records), pair.blocks[-1]
    shape = tuple(as_map(last, records[0].blocks[last].detach(), records[0].grids).shape[2:])
    weights = region_weights(region, pair.provenances[0].frames[0], (shape[0], shape[1]))
    asked, embeddings = query.sides[side], []
    scale = float(asked.scales[0]) * weights.numel()  # a, of a linear embedding
    with outside_inference_mode(), torch.enable_grad():
        for number, record in enumerate(records):
            records[number] = _weighted(record, last, weights, first=number == 0)
        for number, embedding in enumerate(pair.embeddings):
            record, row = (records[number], 0) if len(records) == 2 else (records[0], number)
            before = pair.records[number if len(records) == 2 else 0]
            means = [
                at_least_float32(as_map(last, one.blocks[last], one.grids)[row : row + 1]).mean(dim=(2, 3))
                for one in (before, record)
            ]
            if asked.law == UNIT_FORM:
                embeddings.append(F.normalize(means[1]))
            else:
                rest = at_least_float32(embedding.detach()) - scale * means[0].detach()  # b: no longer follows from h
                rest = rest if _matters(rest, embedding) else torch.zeros_like(rest)
                embeddings.append(scale * means[1] + rest)
    return PairTrace(records=tuple(records), embeddings=(embeddings[0], embeddings[1]), provenances=pair.provenances)


def region_weights(box: PixelBox, frame: Frame, cells: tuple[int, int]) -> Tensor:
    """How much of each of h x w positions a box covers, (h,w), times a number that makes the mean 1."""
    found = coverage(box, None, frame, cells)
    return found * (found.numel() / found.sum())


def _weighted(record: ForwardRecord, last: str, weights: Tensor, *, first: bool) -> ForwardRecord:
    """A record whose last block is weighted in its row 0, which holds the photo if it is the first record."""
    block, grid = record.blocks[last], record.grids.get(last)
    masks = positions_of(block[0], last, grid, None).masks[: weights.numel()]
    laid_out = torch.tensordot(weights.flatten().to(masks), masks, dims=1)  # as the block is laid out in the network
    rows = torch.ones(len(block), *laid_out.shape).to(block)
    if first:
        rows[0] = laid_out
    return replace(record, blocks={**record.blocks, last: block * rows}, attention=None)


def _matters(rest: Tensor, embedding: Tensor) -> bool:
    """Whether a difference is more than rounding."""
    return float(rest.norm()) > 1e-3 * float(embedding.detach().norm())
