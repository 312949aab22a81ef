"""Pairs by the thousand: every image is run once, however many pairs it is in.

If the embedding is a known function of the last block, and n = 1, the gradients of a pair's score with respect to that
block follow from a formula (`_by_formula`; `embedding_form` derives it). Otherwise each pair needs a backward through
the last n blocks of both images (`_by_backward`).

A method that needs no gradient uses the same two functions, which then compute none: `_by_formula` at n = 1, for every
embedding, and `_by_backward` at n > 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens import methods
from gamlens.capture.backward import batched_gradients
from gamlens.errors import GamlensError
from gamlens.explanation import PairExplanation
from gamlens.fuse import at_least_float32, without_autocast
from gamlens.inputs.images import Picture, pictures
from gamlens.refine import Refine, Refinement
from gamlens.retrieval.embedding_form import OTHER_FORM, block_gradient
from gamlens.retrieval.gallery import FramedPicture, Gallery
from gamlens.retrieval.pair_maps import PairMaps
from gamlens.retrieval.remember import EmbeddedBatch, embed_batches, gather
from gamlens.retrieval.select import PairOptions, select_pairs

if TYPE_CHECKING:
    from gamlens.lens import Lens

GalleryOrList = Gallery | list[Picture]


@torch.inference_mode(False)
@torch.no_grad()
def compare_many(lens: Lens, queries: Any, gallery: Any, options: PairOptions) -> PairExplanation:
    """Both maps of every chosen pair. `queries` and `gallery` are images, or a Gallery of them.

    The formula needs the last block only (n = 1). Where the method needs a gradient, it also needs an embedding of a
    known form on both sides.
    """
    entry = methods.find(options.method)
    if entry.kind == "attention":
        raise GamlensError(
            f"{entry.title} reads the attention of both images, which a gallery does not hold: use compare for single "
            f"pairs, or a method that reads blocks, such as method={methods.BLOCK_DEFAULT!r}."
        )
    x, y = (side if isinstance(side, Gallery) else list(pictures(side)) for side in (queries, gallery))
    for side in {repr(side.about): side for side in (x, y) if isinstance(side, Gallery)}.values():
        side.check(lens)  # only once if both were made in the same way
    reads_block, any_form = entry.kind != "input", not entry.needs_gradient
    forwards = partial(embed_batches, lens, batch_size=options.batch_size)
    if reads_block:
        forwards = partial(forwards, method=options.method)
    held = []
    if any_form and options.blocks == 1:  # such a gallery is run again; what needs a gradient goes by a backward
        x, y = (
            list(side.pictures) if isinstance(side, Gallery) and not _can_refine(lens, side, options.refine) else side
            for side in (x, y)
        )
    if options.blocks == 1 and reads_block and all(_can_refine(lens, side, options.refine) for side in (x, y)):
        if not isinstance(x, Gallery):
            held = list(forwards(x, refine=options.refine))
            x = gather(held, lens.device)
        if not isinstance(y, Gallery) and (any_form or x.law != OTHER_FORM):
            y = gather(forwards(y, refine=options.refine), lens.device)
        if isinstance(y, Gallery) and (any_form or OTHER_FORM not in (x.law, y.law)):
            return _by_formula(lens, x, y, options)
    if options.top is not None and not isinstance(y, Gallery):
        y = gather(forwards(y), lens.device)
    return _by_backward(lens, x, y, options, held)


def _can_refine(lens: Lens, side: GalleryOrList, refine: Refine) -> bool:
    """Whether the blocks that maps are refined by are in a gallery; images that are yet to be run are no obstacle.

    Which blocks these are is not known as long as the lens does not know its blocks.
    """
    how = Refinement.parse(refine)
    if how is None or not isinstance(side, Gallery):
        return True
    return lens.knows_blocks and set(how.choose(lens.blocks)) <= side.earlier.keys()


def _by_formula(lens: Lens, x: Gallery, y: Gallery, options: PairOptions) -> PairExplanation:
    """Both maps of every chosen pair of remembered images at n = 1, with neither forward nor backward."""
    device, entry = lens.device, methods.find(options.method)
    chosen = select_pairs(options, x, y, (x.embeddings.to(device), y.embeddings.to(device)))
    maps = PairMaps(lens, chosen, options)
    for places in torch.split(torch.arange(len(chosen)), options.batch_size):
        used = [torch.unique(numbers, return_inverse=True) for numbers in chosen[places].T]
        sides = [(side[own].to(device), at.tolist()) for side, (own, at) in zip((x, y), used, strict=True)]
        ex, ey = (at_least_float32(side.embeddings)[at] for side, at in sides)
        values, vectors = maps.score(places, ex, ey)
        given: tuple[Tensor | None, Tensor | None] = (None, None)
        if entry.kind == "pair":
            hx, hy = (side.activations[at] for side, at in sides)
            given = entry.of_pair(hx, hy)
        for number, (side, at) in enumerate(sides):
            block = side.about["block"]
            h, g = {block: side.activations}, {}
            if vectors is not None:
                g[block] = gradient_of(side, at, vectors[number])
            maps.add(number, places, at, side.size, values, h, g, given[number], earlier=side.earlier)
    return maps.explanation(zip(x.pictures, x.frames, strict=True), zip(y.pictures, y.frames, strict=True))


def gradient_of(side: Gallery, at: list[int], v: Tensor) -> Tensor:
    """Compute the gradients of R scores with respect to the last block from those with respect to the embeddings.

    ds/dh = J^T v is the same vector at every position: c v, or c (v - <v,e> e) for embeddings of length 1. The module
    `embedding_form` has the derivation, `side.scales` the factors c.

    Args:
        side: The images of one side.
        at: Which image of `side` each row belongs to, R numbers.
        v: The gradients with respect to the embeddings, (R,D).

    Returns:
        (R,C,h,w).
    """
    with torch.no_grad(), without_autocast(v):
        e = at_least_float32(side.embeddings)[at]
        gradient = at_least_float32(side.scales)[at][:, None] * block_gradient(side.law, v, e)
    return gradient[:, :, None, None].expand(-1, -1, *side.activations.shape[2:])


def _by_backward(
    lens: Lens, x: GalleryOrList, y: GalleryOrList, options: PairOptions, held: Sequence[EmbeddedBatch]
) -> PairExplanation:
    """Both maps of every chosen pair, by one backward per pair and side.

    The forwards of all queries x stay in memory, with their graphs, while the images y are run batch by batch.

    Args:
        lens: The lens.
        x, y: The queries and the images. With `options.top`, y must be a Gallery, whose embeddings choose the pairs.
        options: The options of `Lens.compare_many`.
        held: The forwards of the queries, if they have been run already; otherwise empty.
    """
    queries, images = (list(side.pictures) if isinstance(side, Gallery) else side for side in (x, y))
    size = options.batch_size
    forwards = partial(
        embed_batches, lens, method=options.method, n=options.blocks, refine=options.refine, batch_size=size
    )
    held = held or list(forwards(queries))
    ex = torch.cat([at_least_float32(batch.embeddings.detach()) for batch in held])
    known = (ex, y.embeddings.to(ex.device)) if isinstance(y, Gallery) else None
    chosen = select_pairs(options, queries, images, known)
    maps = PairMaps(lens, chosen, options)
    ey, wanted = ex.new_zeros(len(images), ex.shape[1]), torch.unique(chosen[:, 1])
    passing = forwards([images[number] for number in wanted.tolist()])
    seen: dict[int, FramedPicture] = {}
    for numbers, batch in zip(torch.split(wanted, size), passing, strict=True):
        ey[numbers.to(ey.device)] = at_least_float32(batch.embeddings.detach())
        _add_backward(maps, 1, batch, numbers, (ex, ey))
        seen.update(zip(numbers.tolist(), batch.shown, strict=True))
    for numbers, batch in zip(torch.split(torch.arange(len(queries)), size), held, strict=True):
        _add_backward(maps, 0, batch, numbers, (ex, ey))
    # An image that is in no pair was not run, so its frame is not known. It is listed with the frame of another image,
    # so that the numbers of the images stay as they are; no row of the result refers to it.
    unused = next(iter(seen.values()))[1]
    y_shown = [seen.get(number, (picture, unused)) for number, picture in enumerate(images)]
    return maps.explanation([image for batch in held for image in batch.shown], y_shown)


def _add_backward(
    maps: PairMaps, side: int, batch: EmbeddedBatch, numbers: Tensor, embeddings: tuple[Tensor, Tensor]
) -> None:
    """Add the maps of one side of all chosen pairs whose image on that side is in `batch`.

    One backward through the batch gives every image the gradient of one of its pairs. An image may be in several
    pairs: the k-th backward (`turn` k) is for the k-th pair of every image. Several backwards run as one batched
    backward, as long as they have no more than `batch_size` rows in all.

    Args:
        maps: Receives the maps.
        side: 0 for x, 1 for y.
        batch: One forward of B images of that side.
        numbers: The numbers of these images, (B,), ascending.
        embeddings: The embeddings of all images of x and of y. Those that the pairs of this batch need are filled in.
    """
    images, most = len(numbers), maps.options.batch_size
    pairs = torch.isin(maps.chosen[:, side], numbers).nonzero()[:, 0]
    image = torch.searchsorted(numbers, maps.chosen[pairs, side].contiguous())
    turn = F.one_hot(image, images).cumsum(dim=0).gather(1, image[:, None])[:, 0] - 1
    step = max(1, most // images)
    for part in (turn // step == number for number in torch.unique(turn // step)):
        places, index, backward = pairs[part], image[part], turn[part] % step
        ex, ey = (e[maps.chosen[places, number].to(e.device)] for number, e in enumerate(embeddings))
        values, vectors = maps.score(places, ex, ey)
        gradients = {}
        if vectors is not None:
            v = vectors[side].new_zeros(int(backward.max()) + 1, images, vectors[side].shape[1])
            at = (backward.to(v.device), index.to(v.device))
            v[at] = vectors[side]
            found = batched_gradients(batch.embeddings, v, batch.record, keep_graph=True, most=most)
            gradients = {name: gradient[at] for name, gradient in found.items()}
        record = batch.record
        maps.add(
            side,
            places,
            index.tolist(),
            batch.size,
            values,
            record.activations,
            gradients,
            lattices=record.lattices,
            earlier=record.earlier_activations,
        )
