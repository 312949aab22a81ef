"""Figures of classes: the overview, three methods side by side, numbers of blocks, small objects."""

from __future__ import annotations

from dataclasses import replace

from gamlens.errors import GamlensError
from gamlens.figures.panels import SALIENCY_KEY, heat, photo
from gamlens.figures.request import COMPARED, FigureRequest, require_several_blocks, targeted_examples
from gamlens.methods import METHODS
from gamlens.render import Grid, Panel

MOST_CLASSES = MOST_BLOCKS = 3


def overview(request: FigureRequest) -> Grid:
    """One image explained for several classes, then a pair explained for its similarity."""
    if len(request.examples) != 3:
        raise GamlensError(
            f"The overview takes 3 images, one to classify and a pair; found {len(request.examples)}: gamlens figure "
            "overview IMAGE X Y."
        )
    lens, n, (one, x, y) = request.lens, request.n, request.examples
    targets = list(request.targets[:MOST_CLASSES])
    trace = lens.trace(one.image, [targets] if targets else None, n=n)
    if not targets:
        trace = trace.retarget([[guess.index for guess in trace.top(MOST_CLASSES)[0]]])
    found = trace.explain("gam", n)
    pair = lens.compare(x.image, y.image, score=request.score, n=n)
    rows = (
        [photo(found), *(heat(found, row) for row in range(len(found)))],
        [photo(pair.x), photo(pair.y), heat(pair.x), heat(pair.y)],
    )
    words = iter(["photo", *found.names, "x", "y", f"x: {request.score} {float(pair.scores[0]):.2f}", "y"])
    letters = iter("abcdefgh")
    lettered = tuple(tuple(replace(panel, caption=f"({next(letters)}) {next(words)}") for panel in row) for row in rows)
    return Grid(lettered, labels=("Why this class?", "Why similar?"), keys=(SALIENCY_KEY,), breaks=(1,))


def classes(request: FigureRequest) -> Grid:
    """GAM, Grad-CAM and Grad-CAM++ of one class per image, one row per image."""
    rows, labels = [], []
    for example in targeted_examples(request):
        results = request.explain(request.trace(example), COMPARED)
        rows.append((photo(results["gam"]), *map(heat, results.values())))
        labels.append(results["gam"].names[0])
    return Grid(tuple(rows), ("Photo", *map(request.head, COMPARED)), tuple(labels), keys=(SALIENCY_KEY,))


def depth(request: FigureRequest) -> Grid:
    """n = 1, 2, 3 for three methods, three rows per image."""
    require_several_blocks(request.lens)
    numbers = range(1, min(MOST_BLOCKS, len(request.lens.blocks)) + 1)
    rows: list[tuple[Panel | None, ...]] = []
    one, name = len(request.examples) == 1, ""
    for example in targeted_examples(request):
        trace = request.trace(example, numbers[-1])
        for method in COMPARED:
            results = [trace.explain(method, n) for n in numbers]
            name = results[0].names[0]
            shown = replace(photo(results[0]), caption="" if one else name) if method == COMPARED[0] else None
            rows.append((shown, *map(heat, results)))
    heads = (name if one else "Photo", *(f"n={n}" for n in numbers))
    labels = [METHODS[method].title for method in COMPARED] * len(request.examples)
    breaks = tuple(range(len(COMPARED), len(rows), len(COMPARED)))
    return Grid(tuple(rows), heads, tuple(labels), breaks=breaks, keys=(SALIENCY_KEY,))


def small(request: FigureRequest) -> Grid:
    """GAM of the last three blocks one by one, their mean, and Grad-CAM."""
    require_several_blocks(request.lens)
    most = min(MOST_BLOCKS, len(request.lens.blocks))
    rows, labels = [], []
    for example in targeted_examples(request):
        trace = request.trace(example, most)
        gam, cam = trace.explain("gam", most), trace.explain("grad_cam", request.others)
        single = [heat(gam, block=name) for name in reversed(gam.blocks)]
        rows.append((photo(gam), *single, heat(gam), heat(cam)))
        labels.append(gam.names[0])
    depths = ("L", "L-1", "L-2")[:most]
    heads = ("Photo", *(f"GAM, block {text}" for text in depths), f"GAM, n={most}", request.head("grad_cam"))
    return Grid(tuple(rows), heads, tuple(labels), keys=(SALIENCY_KEY,))
