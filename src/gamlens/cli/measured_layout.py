"""Which blocks and which embedding a lens reads, measured by one forward, whoever named them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from PIL import Image

from gamlens import GamlensError, Lens, Transform
from gamlens.capture.forward import ForwardRecord
from gamlens.errors import attempt
from gamlens.lattice import Lattice
from gamlens.models import NetworkLayout, Stage, input_channels

USUAL_SIDE = 224


def measure_layout(lens: Lens) -> tuple[NetworkLayout, Mapping[str, Lattice]]:
    """The blocks and the embedding that a lens reads, and as not chosen the other blocks that discovery found.

    The second result says of which blocks the network reads only some rows and columns, and of these which.

    Where discovery found nothing, the pooling is "unknown", and the embedding is "" unless it was named.
    """
    if not lens.knows_blocks:
        _forward(lens, n=0, embedding=False)  # blocks are found when the first image comes
    found, named = attempt(lambda: lens.layout), attempt(lambda: lens.embedding)
    layout = found if isinstance(found, NetworkLayout) else NetworkLayout((), "", 0)
    embedding = named if isinstance(named, str) else ""
    record, height = _forward(lens, n=None, embedding=bool(embedding))
    read: dict[str, Stage] = {}
    for name, activation in record.activations.items():
        channels, rows, columns = activation.shape[1:]
        shape, stride = (channels, rows, columns), max(1, round(height / rows))
        read[name] = Stage(name, shape, stride, True, record.grids.get(name))
    stages = {stage.name: replace(stage, chosen=False) for stage in layout.stages}
    if read.keys() <= stages.keys():
        stages |= read  # the order of the network
    else:
        stages = read | {name: stage for name, stage in stages.items() if name not in read}
    width = record.required_embedding().shape[1] if embedding else 0
    return NetworkLayout(tuple(stages.values()), embedding, width, layout.pooling), record.lattices


def _forward(lens: Lens, *, n: int | None, embedding: bool) -> tuple[ForwardRecord, int]:
    """One forward of a black image, and the height of the model's input."""
    if isinstance(lens.transform, Transform):
        shapes = [(1, channels, *lens.transform.size) for channels in dict.fromkeys((input_channels(lens.model), 3))]
        batches = [torch.zeros(shape) for shape in shapes]
    else:
        batches = [lens.prepare(Image.new("RGB", (USUAL_SIDE, USUAL_SIDE))).batches[0]]
    errors: list[GamlensError] = []
    for batch in batches:
        record = attempt(partial(lens.forward, batch, n=n, embedding=embedding))
        if isinstance(record, ForwardRecord):
            return record, batch.shape[-2]
        errors.append(record)
    raise errors[0]
