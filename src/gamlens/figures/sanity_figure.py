"""Sanity checks as strips of maps: the model as it is beside the same network with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.figures.panels import SALIENCY_KEY
from gamlens.figures.request import FigureRequest, targeted_examples
from gamlens.render import Grid, Panel
from gamlens.sanity.randomise import MODES, parts, states


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of the figure: its title, the image, and named maps (H,W) in [0,1] of the image's size."""

    title: str
    image: Image.Image
    maps: Sequence[tuple[str, NDArray[Any]]]


def strips(rows: Sequence[Strip]) -> Grid:
    """One row per strip: image and maps. Names stand over the columns where all strips share them, else under maps."""
    if not rows or not all(strip.maps for strip in rows):
        raise GamlensError("A strip has an image and at least one map: none was given.")
    names = {tuple(name for name, _ in strip.maps) for strip in rows}
    shared = next(iter(names)) if len(names) == 1 else ()
    lines = []
    for strip in rows:
        panels = [Panel(strip.image, alt="the image")]
        for name, values in strip.maps:
            panels.append(Panel(render.overlay(strip.image, values), caption="" if shared else name, alt=name))
        lines.append(tuple(panels))
    heads = ("Image", *shared) if shared else ()
    return Grid(tuple(lines), heads, tuple(strip.title for strip in rows), keys=(SALIENCY_KEY,))


def sanity(request: FigureRequest) -> Grid:
    """GAM of the model, then with its weights made random from the head down, one part more in every column."""
    lens, examples = request.lens, targeted_examples(request)
    trained = [lens.classify(e.image, None if e.target is None else [e.target], n=request.n) for e in examples]
    columns = {"As trained": [result.full().numpy() for result in trained]}
    image = lens.prepare(examples[0].image).batches[0]
    for state in states(lens, parts(lens, image), modes=MODES[:1]):
        name = f"{'' if state.step == 1 else '+ '}{state.part} random"
        columns[name] = [
            state.lens.classify(example.image, result.targets.tolist(), n=request.n).full().numpy()
            for example, result in zip(examples, trained, strict=True)
        ]
    return strips(
        [
            Strip(result.names[0], result.image(), [(name, np.asarray(maps[row])) for name, maps in columns.items()])
            for row, result in enumerate(trained)
        ]
    )
