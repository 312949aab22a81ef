"""Figures that explain the similarity of pairs: cosine, dot, overflow, sharp_pairs, negative and layers."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gamlens.explanation import Explanation
from gamlens.figures.panels import PREDICTED_INK, SALIENCY_KEY, draw_evidence, heat, inside, is_empty, photo, plain_map
from gamlens.figures.request import FigureRequest, example_pairs, require_several_blocks
from gamlens.methods import FIGURE_METHODS, METHODS
from gamlens.render import Grid, LineKey, Panel, ScaleKey
from gamlens.trace import HIDDEN_SHARE, Trace

LITERAL = "grad_cam_pp_literal"
SUMS_KEY = ScaleKey("Sums over channels", "0", "largest")


def cosine(request: FigureRequest) -> Grid:
    """GAM, Grad-CAM and Grad-CAM++ by cosine, two rows per pair; Grad-CAM is framed red if it hides most evidence."""
    return _methods_beside(replace(request, score="cosine"), FIGURE_METHODS)


def dot(request: FigureRequest) -> Grid:
    """The same by dot product, with Grad-CAM++ as it was published in a further column; its exp(score) overflows."""
    return _methods_beside(replace(request, score="dot"), (*FIGURE_METHODS, LITERAL))


def overflow(request: FigureRequest) -> Grid:
    """GAM of the last block beside Grad-CAM++ as published, by dot product. Empty maps are framed red."""
    return _methods_beside(replace(request, score="dot", n=1, others=1), ("gam", LITERAL))


def sharp_pairs(request: FigureRequest) -> Grid:
    """GAM of pairs before and after refinement, one row per pair: x, y, both maps, and both maps refined."""
    require_several_blocks(request.lens)
    rows, labels = [], []
    for x, y in example_pairs(request):
        trace = request.lens.trace_pair(x.image, y.image, n=request.n, refine=True)
        plain, refined = (
            trace.explain("gam", request.n, score=request.score, lattice=request.lattice, refine=how)
            for how in (False, True)
        )
        maps = (heat(side) for result in (plain, refined) for side in (result.x, result.y))
        rows.append((photo(plain.x), photo(plain.y), *maps))
        labels.append(f"{request.score} {float(plain.scores[0]):.2f}")
    head = request.head("gam")
    return Grid(tuple(rows), ("x", "y", f"{head}: x", "y", "refined: x", "y"), tuple(labels), keys=(SALIENCY_KEY,))


def negative(request: FigureRequest) -> Grid:
    """Why Grad-CAM fails: one column per image with activations, gradient sums, P and N of Eq. 4, and hidden pixels."""
    names = ("Photo", "GAM", "Grad-CAM", "Activations", "Gradients > 0", "Gradients < 0", "P", "|N|", "Hidden")
    columns: list[list[Panel]] = []
    groups = []
    for x, y in example_pairs(request):
        trace = request.lens.trace_pair(x.image, y.image, n=1)
        gam, cam = (
            trace.explain(name, 1, score=request.score, lattice=request.lattice) for name in ("gam", "grad_cam")
        )
        groups.append((f"{request.score} {float(gam.scores[0]):.2f}", 2))
        for own, other, side in zip((gam.x, gam.y), (cam.x, cam.y), trace.sides(request.score), strict=True):
            columns.append(_diagnosis(own, other, side))
    keys = (SALIENCY_KEY, SUMS_KEY, LineKey("hidden: |N| >= P", PREDICTED_INK))
    cells = tuple(zip(*columns, strict=True))
    return Grid(cells, labels=names, groups=tuple(groups), widths=_aspects(cells[0]), keys=keys)


def layers(request: FigureRequest) -> Grid:
    """One row per block of a pair, last block first: its map, activations, positive gradients, and a mean map.

    The mean map is that of all blocks from the last one to the block of the row.
    """
    require_several_blocks(request.lens)
    x, y = example_pairs(request)[0]
    trace = request.lens.trace_pair(x.image, y.image, n=min(4, len(request.lens.blocks)))
    rows, labels = [], []
    for place, name in enumerate(reversed(trace.blocks)):
        pair = trace.explain("gam", place + 1, score=request.score, lattice=request.lattice)
        both = (pair.x, pair.y)
        sums = [side.sums(name) for side in trace.sides(request.score)]
        own = [heat(result, block=name) for result in both]
        activations = [plain_map(part.activation[0], one.frames[0]) for part, one in zip(sums, both, strict=True)]
        rising = [plain_map(part.positive[0], one.frames[0]) for part, one in zip(sums, both, strict=True)]
        means = [heat(result, caption=f"n={place + 1}") for result in both]
        rows.append((*own, *activations, *rising, *means))
        height, width = sums[0].activation.shape[1:]
        labels.append(f"{('L', 'L-1', 'L-2', 'L-3')[place]}: {height}x{width}")
    groups = (("Saliency", 2), ("Activations", 2), ("Gradients > 0", 2), ("Mean of the last n", 2))
    return Grid(
        tuple(rows), labels=tuple(labels), groups=groups, widths=_aspects(rows[0]), keys=(SALIENCY_KEY, SUMS_KEY)
    )


def _aspects(panels: Sequence[Panel]) -> tuple[float, ...]:
    """The aspect ratio (width / height) of each picture: columns of these widths make all pictures equally high."""
    return tuple(panel.image.width / panel.image.height for panel in panels)


def _diagnosis(gam: Explanation, cam: Explanation, side: Trace) -> list[Panel]:
    """One image's column of the figure `negative`. The two gradient sums share a scale, and so do P and |N|."""
    frame, evidence = gam.frames[0], side.evidence()
    share = float(evidence.hidden_share[0])
    activation, rising, falling = (part[0] for part in side.sums())
    top = float(torch.maximum(rising.max(), falling.max()))
    drawn = draw_evidence(
        evidence, gam.image(), frame, opacity=None, cmaps=("ember", "ember"), outline=PREDICTED_INK, thick=1.5
    )
    return [
        photo(gam),
        heat(gam),
        heat(cam, mark="bad" if share > HIDDEN_SHARE else ""),
        plain_map(activation, frame),
        plain_map(rising, frame, top),
        plain_map(falling, frame, top),
        Panel(drawn.positive),
        Panel(drawn.negative),
        Panel(drawn.hidden, caption=f"{100 * share:.0f} % of P", alt="pixels that Grad-CAM hides"),
    ]


def _methods_beside(request: FigureRequest, methods: tuple[str, ...]) -> Grid:
    """The maps of several methods side by side, two rows per pair.

    A map is framed red if it is empty; Grad-CAM's also if it hides more than HIDDEN_SHARE of the positive evidence. If
    the images have true boxes, the number under a map is its share in them.
    """
    rows, labels = [], []
    for x, y in example_pairs(request):
        trace = request.lens.trace_pair(x.image, y.image, n=request.most)
        results = {
            name: trace.explain(name, request.blocks_of(name), score=request.score, lattice=request.lattice)
            for name in methods
        }
        labels += [f"{request.score} {float(results['gam'].scores[0]):.3g}", ""]
        for side, example, part in zip("xy", (x, y), trace.sides(request.score), strict=True):
            own = {name: getattr(result, side) for name, result in results.items()}
            failed = {name for name, shown in own.items() if is_empty(shown)}
            if part.evidence().hidden_share[0] > HIDDEN_SHARE:
                failed |= {name for name in own if METHODS[name].hides_evidence}
            maps = (
                heat(shown, caption=inside(shown, example), mark="bad" if name in failed else "")
                for name, shown in own.items()
            )
            rows.append((photo(own["gam"]), *maps))
    heads, breaks = ("Photo", *map(request.head, methods)), tuple(range(2, len(rows), 2))
    return Grid(tuple(rows), heads, tuple(labels), breaks=breaks, keys=(SALIENCY_KEY,))
