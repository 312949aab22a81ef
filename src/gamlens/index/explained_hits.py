"""Why hits were found: maps with a sign, and images as an index remembers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gamlens.data.plausible import stored_frame
from gamlens.errors import GamlensError
from gamlens.explanation import PairExplanation, concat
from gamlens.index import vector_file
from gamlens.index.catalogue import IndexedImage
from gamlens.index.hits import Hits
from gamlens.index.snapshot import blocks_name
from gamlens.refine import Refine
from gamlens.retrieval import Gallery
from gamlens.retrieval.embedding_form import UNIT_FORM
from gamlens.retrieval.gallery import lens_identity

if TYPE_CHECKING:
    from gamlens.index.index import Index


def explain_by_traces(
    index: Index, hits: Hits, side: int, sign: str | None, *, refine: Refine, **how: Any
) -> PairExplanation:
    """Both maps of the query and each hit, by a forward of both. `how` has method, n, fuse and lattice."""
    pairs = []
    for number in range(len(hits)):
        trace = index.trace(hits, number, side=side, n=how["n"], method=how["method"], refine=refine)
        pairs.append(trace.explain(score=index.score, sign=sign, refine=refine, **how))
        trace.release()
    scores = torch.cat([pair.scores for pair in pairs])
    return PairExplanation(concat(pair.x for pair in pairs), concat(pair.y for pair in pairs), scores)


def remembered_gallery(index: Index, images: Sequence[IndexedImage]) -> Gallery:
    """A Gallery of remembered activations; its embeddings are the vectors of the index."""
    now = index.snapshot()
    settings = now.settings
    places = [image.block for image in images if image.block is not None]
    try:
        blocks = vector_file.read_blocks(index.folder / blocks_name(settings), places, settings["block_shape"])
    except GamlensError as error:
        raise index.catalogue.damaged(str(error)) from error
    activations = torch.from_numpy(blocks).float()
    vectors = torch.from_numpy(np.array(now.vectors[[image.slot for image in images]], dtype=np.float32))
    scales = torch.full((len(images),), float(settings["scale"]))
    if settings["law"] == UNIT_FORM:
        mean = activations.mean(dim=(2, 3))
        scales = 1 / (activations[0, 0].numel() * mean.norm(dim=1))
    height, width = settings["size"]
    frames = tuple(stored_frame({"name": image.name, **image.frame}, (height, width)) for image in images)
    return Gallery(
        activations=activations,
        embeddings=vectors,
        law=str(settings["law"]),
        scales=scales,
        size=(height, width),
        pictures=tuple(index.picture_of(image.slot) for image in images),
        frames=frames,
        about=lens_identity(index.lens),
    )
