"""Pairs whose gradients need the network: one forward per image, and one backward through its last part per pair."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.capture.backward import batched_gradients
from gamlens.explanation import PairExplanation
from gamlens.fuse import at_least_float32
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.pair_maps import PairMaps, PairOptions
from gamlens.retrieval.remember import EmbeddedBatch, embed_batches
from gamlens.retrieval.select import select_pairs

if TYPE_CHECKING:
    from gamlens.lens import Lens


def explain(
    lens: Lens,
    x: Gallery | list[Picture],
    y: Gallery | list[Picture],
    options: PairOptions,
    *,
    held: Sequence[EmbeddedBatch],
    top: int | None,
    pairs: Sequence[tuple[int, int]] | None,
) -> PairExplanation:
    """Both maps of every chosen pair. The queries x are held with their graphs while the images y pass in batches.

    `held` are the forwards of the queries where they are made already. `top` needs a Gallery as y.
    """
    queries, images = (list(side.pictures) if isinstance(side, Gallery) else side for side in (x, y))
    size = options.batch_size
    forwards = partial(embed_batches, lens, method=options.method, n=options.n, batch_size=size)
    held = held or list(forwards(queries))
    ex = torch.cat([at_least_float32(batch.embeddings.detach()) for batch in held])
    known = (ex, y.embeddings.to(ex.device)) if isinstance(y, Gallery) else None
    chosen = select_pairs((len(queries), len(images)), known, options.score, top, pairs)
    maps = PairMaps(chosen, options, ex.device)
    ey, wanted = ex.new_zeros(len(images), ex.shape[1]), torch.unique(chosen[:, 1])
    passing = forwards([images[number] for number in wanted.tolist()])
    seen: dict[int, tuple[Picture, Frame]] = {}
    for numbers, batch in zip(torch.split(wanted, size), passing, strict=True):
        ey[numbers.to(ey.device)] = at_least_float32(batch.embeddings.detach())
        _backward(maps, 1, batch, numbers, (ex, ey))
        seen.update(zip(numbers.tolist(), zip(batch.images.pictures, batch.images.frames, strict=True), strict=True))
    for numbers, batch in zip(torch.split(torch.arange(len(queries)), size), held, strict=True):
        _backward(maps, 0, batch, numbers, (ex, ey))
    x_shown = [pair for batch in held for pair in zip(batch.images.pictures, batch.images.frames, strict=True)]
    # An image in no pair was never run. It keeps its number; its frame, which no row refers to, is any other's.
    unused = next(iter(seen.values()))[1]
    y_shown = [seen.get(number, (picture, unused)) for number, picture in enumerate(images)]
    return maps.explanation(x_shown, y_shown)


def _backward(
    maps: PairMaps, side: int, batch: EmbeddedBatch, numbers: Tensor, embeddings: tuple[Tensor, Tensor]
) -> None:
    """Add the maps of one side of all chosen pairs whose image is in `batch`; `numbers` (B,) are its images, ascending.

    An image is in several pairs: its k-th pair belongs to the k-th backward through the batch. As many backwards as
    make up `batch_size` images run together.
    """
    images = len(numbers)
    pairs = torch.isin(maps.chosen[:, side], numbers).nonzero()[:, 0]
    image = torch.searchsorted(numbers, maps.chosen[pairs, side].contiguous())
    turn = F.one_hot(image, images).cumsum(dim=0).gather(1, image[:, None])[:, 0] - 1
    step = max(1, maps.options.batch_size // images)
    for part in (turn // step == number for number in range(int(turn.max()) // step + 1 if len(turn) else 0)):
        places, index, backward = pairs[part], image[part], turn[part] % step
        ends = [e[maps.chosen[places, number].to(e.device)] for number, e in enumerate(embeddings)]
        values, vectors = maps.score(places, ends[0], ends[1])
        v = vectors[side].new_zeros(int(backward.max()) + 1, images, vectors[side].shape[1])
        at = (backward.to(v.device), index.to(v.device))
        v[at] = vectors[side]
        found = batched_gradients(batch.embeddings, v, batch.record, keep_graph=True, most=maps.options.batch_size)
        maps.add(
            side,
            places,
            activations=batch.record.activations(),
            gradients={name: gradient[at] for name, gradient in found.items()},
            values=values,
            index=index.tolist(),
            size=batch.size,
        )
