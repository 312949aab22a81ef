"""Sanity checks as strips of maps: the model as it is beside the same network with other weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.experiments.figures.ask import SALIENCY, Ask, with_targets
from gamlens.lens import Lens
from gamlens.render import Grid, Panel

SEEDS = (0, 1)


@dataclass(frozen=True, eq=False)
class Strip:
    """A row: what it shows, the image, and maps (H,W) in [0,1] of the image's size, each with its name."""

    title: str
    image: Image.Image
    maps: Sequence[tuple[str, NDArray[Any]]]


def strips(rows: Sequence[Strip]) -> Grid:
    """Image and maps, a row a strip; names stand over the columns where all strips share them, else under the maps."""
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
    return Grid(tuple(lines), heads, tuple(strip.title for strip in rows), keys=(SALIENCY,))


def sanity(ask: Ask) -> Grid:
    """GAM of the model beside GAM of the same network with weights drawn anew, for one class an image."""
    lenses = {"GAM, as trained": ask.lens}
    lenses |= {f"Random weights, seed {seed}": randomised(ask.lens, seed) for seed in SEEDS}
    found = []
    for example in with_targets(ask).examples:
        trained = ask.lens.classify(example.image, None if example.target is None else [example.target], n=ask.n)
        aim, picture = trained.targets.tolist(), trained.image()
        maps = [(name, lens.classify(example.image, aim, n=ask.n).full().numpy()) for name, lens in lenses.items()]
        found.append(Strip(trained.names[0], picture, [(name, np.asarray(values)) for name, values in maps]))
    return strips(found)


def randomised(lens: Lens, seed: int) -> Lens:
    """A copy of the lens whose layers have drawn their weights anew; the lens itself is left as it was."""
    other = copy.deepcopy(lens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in other.model.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    return other
