"""Figures of classes: the overview, three methods side by side, numbers of blocks, small objects."""

from __future__ import annotations

from dataclasses import replace

from gamlens.errors import GamlensError
from gamlens.figures.request import SALIENCY, THREE, Ask, Example, heat, photo, several_blocks, with_targets
from gamlens.methods import METHODS
from gamlens.render import Grid, Panel
from gamlens.trace import Trace

MOST = 3


def overview(ask: Ask) -> Grid:
    """One image explained for several classes, then a pair explained for its similarity."""
    if len(ask.examples) != 3:
        raise GamlensError(
            f"The overview takes 3 images, one to classify and a pair; found {len(ask.examples)}: gamlens figure "
            "overview IMAGE X Y."
        )
    one, x, y = ask.examples
    aims = list(ask.targets[:MOST])
    trace = ask.lens.trace(one.image, [aims] if aims else None, n=ask.n)
    if not aims:
        trace = trace.retarget([[guess.index for guess in trace.top(MOST)[0]]])
    found = trace.explain("gam", ask.n)
    first = [photo(found)] + [heat(found, row) for row in range(len(found))]
    pair = ask.lens.compare(x.image, y.image, score=ask.score, n=ask.n)
    second = [photo(pair.x), photo(pair.y), heat(pair.x), heat(pair.y)]
    words = ["photo", *found.names, "x", "y", f"x: {ask.score} {float(pair.scores[0]):.2f}", "y"]
    rows, at = [], 0
    for row in (first, second):
        letters = [f"({'abcdefgh'[at + place]}) {words[at + place]}" for place in range(len(row))]
        rows.append(tuple(replace(panel, caption=text) for panel, text in zip(row, letters, strict=True)))
        at += len(row)
    return Grid(tuple(rows), labels=("Why this class?", "Why similar?"), keys=(SALIENCY,), breaks=(1,))


def classes(ask: Ask) -> Grid:
    """GAM, Grad-CAM and Grad-CAM++ of one class an image, a row each."""
    rows, labels = [], []
    for example in with_targets(ask).examples:
        trace = _look(ask, example, ask.most)
        results = {name: trace.explain(name, ask.blocks_of(name)) for name in THREE}
        rows.append((photo(results["gam"]), *(heat(result) for result in results.values())))
        labels.append(results["gam"].names[0])
    return Grid(tuple(rows), ("Photo", *map(ask.head, THREE)), tuple(labels), keys=(SALIENCY,))


def depth(ask: Ask) -> Grid:
    """n = 1, 2, 3 for three methods, three rows an image."""
    several_blocks(ask.lens)
    most = min(MOST, len(ask.lens.blocks))
    rows: list[tuple[Panel | None, ...]] = []
    labels: list[str] = []
    breaks = []
    one = len(ask.examples) == 1
    for example in with_targets(ask).examples:
        trace = _look(ask, example, most)
        breaks.append(len(rows))
        for name in THREE:
            results = [trace.explain(name, n) for n in range(1, most + 1)]
            caption = "" if one else results[0].names[0]
            shown = replace(photo(results[0]), caption=caption) if name == THREE[0] else None
            rows.append((shown, *(heat(result) for result in results)))
            labels.append(METHODS[name].title)
    heads = (results[0].names[0] if one else "Photo", *(f"n={n}" for n in range(1, most + 1)))
    return Grid(tuple(rows), heads, tuple(labels), breaks=tuple(breaks[1:]), keys=(SALIENCY,))


def small(ask: Ask) -> Grid:
    """GAM of the last three blocks one by one, their mean, and Grad-CAM."""
    several_blocks(ask.lens)
    most = min(MOST, len(ask.lens.blocks))
    rows, labels = [], []
    for example in with_targets(ask).examples:
        trace = _look(ask, example, most)
        gam, cam = trace.explain("gam", most), trace.explain("grad_cam", ask.others)
        single = [heat(gam, block=name) for name in reversed(gam.blocks)]
        rows.append((photo(gam), *single, heat(gam), heat(cam)))
        labels.append(gam.names[0])
    depths = ("L", "L-1", "L-2")[:most]
    heads = ("Photo", *(f"GAM, block {text}" for text in depths), f"GAM, n={most}", ask.head("grad_cam"))
    return Grid(tuple(rows), heads, tuple(labels), keys=(SALIENCY,))


def _look(ask: Ask, example: Example, n: int) -> Trace:
    target = None if example.target is None else [example.target]
    return ask.lens.trace(example.image, target, n=n)
