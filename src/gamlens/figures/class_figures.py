"""Figures that explain classes: overview, classes, sharp, depth, small and sanity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gamlens import render
from gamlens.errors import GamlensError
from gamlens.figures.panels import SALIENCY_KEY, heat, inside, photo
from gamlens.figures.request import FigureRequest, require_several_blocks, targeted_examples
from gamlens.methods import FIGURE_METHODS, METHODS
from gamlens.render import Grid, Panel
from gamlens.sanity.data_randomisation import DIGIT_MEAN, DIGIT_STD, Digits, split, trials
from gamlens.sanity.randomise import MODES, parts, states

MOST_CLASSES = MOST_BLOCKS = 3
LABELLED = {"true": "true labels", "true, another seed": "true, again", "random": "random labels"}  # {network: caption}


def overview(request: FigureRequest) -> Grid:
    """One image explained for up to three classes; below it, a pair explained for its similarity."""
    if len(request.examples) != 3:
        raise GamlensError(
            f"The overview takes 3 images, one to classify and a pair; found {len(request.examples)}: give them as "
            "gamlens figure overview IMAGE X Y."
        )
    lens, n, (one, x, y) = request.lens, request.n, request.examples
    targets = list(request.targets[:MOST_CLASSES])
    trace = lens.trace(one.image, [targets] if targets else None, n=n)
    if not targets:
        trace = trace.retarget([[guess.index for guess in trace.top(MOST_CLASSES)[0]]])
    found = trace.explain("gam", n, lattice=request.lattice)
    pair = lens.compare(x.image, y.image, score=request.score, n=n, lattice=request.lattice)
    rows = (
        [photo(found), *(heat(found, row) for row in range(len(found)))],
        [photo(pair.x), photo(pair.y), heat(pair.x), heat(pair.y)],
    )
    words = iter(["photo", *found.names, "x", "y", f"x: {request.score} {float(pair.scores[0]):.2f}", "y"])
    letters = iter("abcdefgh")
    lettered = tuple(tuple(replace(panel, caption=f"({next(letters)}) {next(words)}") for panel in row) for row in rows)
    return Grid(lettered, labels=("Why this class?", "Why similar?"), keys=(SALIENCY_KEY,), breaks=(1,))


def classes(request: FigureRequest) -> Grid:
    """GAM, Grad-CAM and Grad-CAM++ of one class per image, one row per image.

    If an image has true boxes of the class, the number under a map is its share in them.
    """
    rows, labels = [], []
    for example in targeted_examples(request):
        results = request.explain(request.trace(example), FIGURE_METHODS)
        maps = (heat(result, caption=inside(result, example)) for result in results.values())
        rows.append((photo(results["gam"]), *maps))
        labels.append(results["gam"].names[0])
    return Grid(tuple(rows), ("Photo", *map(request.head, FIGURE_METHODS)), tuple(labels), keys=(SALIENCY_KEY,))


def sharp(request: FigureRequest) -> Grid:
    """GAM of one class per image before and after refinement, one row per image.

    If an image has true boxes of the class, the number under a map is its share in them.
    """
    require_several_blocks(request.lens)
    rows, labels = [], []
    for example in targeted_examples(request):
        target = None if example.target is None else [example.target]
        trace = request.lens.trace(example.image, target, n=request.n, refine=True)
        results = [trace.explain("gam", request.n, lattice=request.lattice, refine=how) for how in (False, True)]
        rows.append((photo(results[0]), *(heat(result, caption=inside(result, example)) for result in results)))
        labels.append(results[0].names[0])
    return Grid(tuple(rows), ("Photo", request.head("gam"), "refined"), tuple(labels), keys=(SALIENCY_KEY,))


def depth(request: FigureRequest) -> Grid:
    """Three methods with 1, 2 and 3 blocks: one row per image and method, one column per number of blocks."""
    require_several_blocks(request.lens)
    numbers = range(1, min(MOST_BLOCKS, len(request.lens.blocks)) + 1)
    rows: list[tuple[Panel | None, ...]] = []
    one, name = len(request.examples) == 1, ""
    for example in targeted_examples(request):
        trace = request.trace(example, numbers[-1])
        for method in FIGURE_METHODS:
            results = [trace.explain(method, n, lattice=request.lattice) for n in numbers]
            name = results[0].names[0]
            shown = replace(photo(results[0]), caption="" if one else name) if method == FIGURE_METHODS[0] else None
            rows.append((shown, *map(heat, results)))
    heads = (name if one else "Photo", *(f"n={n}" for n in numbers))
    labels = [METHODS[method].title for method in FIGURE_METHODS] * len(request.examples)
    breaks = tuple(range(len(FIGURE_METHODS), len(rows), len(FIGURE_METHODS)))
    return Grid(tuple(rows), heads, tuple(labels), breaks=breaks, keys=(SALIENCY_KEY,))


def small(request: FigureRequest) -> Grid:
    """One row per image: GAM of each of the last three blocks, the means of two and three, and Grad-CAM.

    GAM of the last block L is GAM with n=1. If an image has true boxes of the class, the number under a map is its
    share in them.
    """
    require_several_blocks(request.lens)
    most = min(MOST_BLOCKS, len(request.lens.blocks))
    rows, labels = [], []
    for example in targeted_examples(request):
        trace = request.trace(example, most)
        means = [trace.explain("gam", n, lattice=request.lattice) for n in range(2, most + 1)]
        blocks = reversed(means[-1].blocks)
        single = (heat(means[-1], block=name, caption=inside(means[-1], example, block=name)) for name in blocks)
        others = (*means, trace.explain("grad_cam", request.others, lattice=request.lattice))
        rows.append((photo(means[0]), *single, *(heat(own, caption=inside(own, example)) for own in others)))
        labels.append(means[0].names[0])
    depths = ("L (n=1)", "L-1", "L-2")[:most]
    heads = ("Photo", *(f"GAM, block {text}" for text in depths), *(f"GAM, n={n}" for n in range(2, most + 1)))
    return Grid(tuple(rows), (*heads, request.head("grad_cam")), tuple(labels), keys=(SALIENCY_KEY,))


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of `strips`: a title, an image, and (name, map) pairs; maps are (H,W) in [0,1], of the image's size."""

    title: str
    image: Image.Image
    maps: Sequence[tuple[str, NDArray[Any]]]


def strips(rows: Sequence[Strip]) -> Grid:
    """Make a grid with one row per strip: the image, then its maps.

    The names of maps become column heads if all strips have the same ones; otherwise they stand under each map.
    """
    if not rows or not all(strip.maps for strip in rows):
        raise GamlensError("Every strip needs an image and at least one map; found none: add strips, or maps to them.")
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
    """GAM of the trained model, then of a copy with random weights: one more part per column, from the head down.

    With `request.digits` a further row shows what random labels do: see `_digits`.
    """
    lens, examples = request.lens, targeted_examples(request)
    trained = [
        lens.classify(e.image, None if e.target is None else [e.target], n=request.n, lattice=request.lattice)
        for e in examples
    ]
    columns = {"As trained": [result.full().numpy() for result in trained]}
    image = lens.prepare(examples[0].image).batches[0]
    for state in states(lens, parts(lens, image), modes=MODES[:1]):
        name = f"{'' if state.step == 1 else '+ '}{state.part} random"
        columns[name] = [
            state.lens.classify(example.image, result.targets.tolist(), n=request.n, lattice=request.lattice)
            .full()
            .numpy()
            for example, result in zip(examples, trained, strict=True)
        ]
    grid = strips(
        [
            Strip(result.names[0], result.image(), [(name, np.asarray(maps[row])) for name, maps in columns.items()])
            for row, result in enumerate(trained)
        ]
    )
    if request.digits is None:
        return grid
    row = _digits(request.digits, n=request.n, room=grid.width)
    return replace(grid, rows=(*grid.rows, row), labels=(*grid.labels, "LeNet-5"), breaks=(len(grid.rows),))


def _digits(digits: Digits, *, n: int, room: int) -> tuple[Panel, ...]:
    """Digits as LeNet-5 sees them after training: on true labels, on true labels from another start, on random labels.

    The networks are those of `gamlens sanity data` with its first seed, and the digits are the first of those that it
    explains: as many as fit into `room` columns, at least one.
    """
    trial = next(iter(trials(digits, FIGURE_METHODS[:1], seeds=1, n=n)))
    labels = split(digits).shown_labels
    panels = []
    for number in range(max(1, room // (1 + len(LABELLED)))):
        pixels = (trial.digits[number, 0].numpy() * DIGIT_STD + DIGIT_MEAN).clip(0, 1)
        image = Image.fromarray(render.colorize(pixels, cmap="gray"))
        panels.append(Panel(image, caption=f"digit {int(labels[number])}", alt="the digit"))
        for network, words in LABELLED.items():
            values = trial.maps[network][FIGURE_METHODS[0]][number].numpy()
            panels.append(Panel(render.overlay(image, values), caption=words, alt=f"saliency, {words}"))
    return tuple(panels)
