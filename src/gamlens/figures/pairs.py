"""Figures of pairs: three methods side by side, Grad-CAM++'s overflow, negative gradients, blocks one by one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gamlens.explanation import Explanation, PairExplanation
from gamlens.figures.request import (
    PREDICTED,
    SALIENCY,
    THREE,
    Ask,
    aspects,
    couples,
    empty,
    heat,
    hidden,
    hides,
    photo,
    several_blocks,
    sheet,
)
from gamlens.render import Grid, Line, Panel, Scale
from gamlens.trace import Trace

LITERAL = "grad_cam_pp_literal"
SUMS = Scale("Sums over channels", "0", "largest")


def cosine(ask: Ask) -> Grid:
    """GAM, Grad-CAM and Grad-CAM++ by cosine, two rows a pair; a Grad-CAM that hides most evidence is marked."""
    return _beside(replace(ask, score="cosine"), THREE)


def dot(ask: Ask) -> Grid:
    """The same by dot product, with Grad-CAM++ as it was published, which overflows."""
    return _beside(replace(ask, score="dot"), (*THREE, LITERAL))


def overflow(ask: Ask) -> Grid:
    """GAM's last block beside the published Grad-CAM++ by dot product; a map with nothing in it is marked."""
    return _beside(replace(ask, score="dot", n=1, others=1), ("gam", LITERAL))


def negative(ask: Ask) -> Grid:
    """Why Grad-CAM fails by cosine: activations, gradient sums, P and N of Eq. 4, and the pixels it hides."""
    names = ("Photo", "GAM", "Grad-CAM", "Activations", "Gradients > 0", "Gradients < 0", "P", "|N|", "Hidden")
    columns: list[list[Panel]] = []
    groups = []
    for x, y in couples(ask):
        trace = ask.lens.trace_pair(x.image, y.image, n=1)
        results = [trace.explain(name, 1, score=ask.score) for name in ("gam", "grad_cam")]
        groups.append((f"{ask.score} {float(results[0].scores[0]):.2f}", 2))
        for side, rows in zip("xy", trace.sides(ask.score), strict=True):
            columns.append(_diagnosis(rows, [getattr(result, side) for result in results]))
    keys = (SALIENCY, SUMS, Line("hidden: |N| >= P", PREDICTED))
    cells = tuple(zip(*columns, strict=True))
    widths = aspects([panel.image for panel in cells[0]])
    return Grid(cells, labels=names, groups=tuple(groups), widths=widths, keys=keys)


def layers(ask: Ask) -> Grid:
    """Each block of a pair: its map, activations, gradients; and the mean over the last n blocks, n = 1, 2, ..."""
    several_blocks(ask.lens)
    x, y = couples(ask, most=1)[0]
    trace = ask.lens.trace_pair(x.image, y.image, n=min(4, len(ask.lens.blocks)))
    rows, labels = [], []
    for place, name in enumerate(reversed(trace.blocks)):
        own = trace.explain("gam", place + 1, score=ask.score)
        sides = trace.sides(ask.score)
        sums = [side.sums(name) for side in sides]
        single = [heat(side, block=name) for side in (own.x, own.y)]
        mean = [heat(side, caption=f"n={place + 1}") for side in (own.x, own.y)]
        active = [_alone(side, part.activation) for side, part in zip(sides, sums, strict=True)]
        rising = [_alone(side, part.positive) for side, part in zip(sides, sums, strict=True)]
        rows.append((*single, *active, *rising, *mean))
        height, width = sums[0].activation.shape[1:]
        labels.append(f"{('L', 'L-1', 'L-2', 'L-3')[place]}: {height}x{width}")
    groups = (("Saliency", 2), ("Activations", 2), ("Gradients > 0", 2), ("Mean of the last n", 2))
    widths = aspects([panel.image for panel in rows[0]])
    return Grid(tuple(rows), labels=tuple(labels), groups=groups, widths=widths, keys=(SALIENCY, SUMS))


def _alone(rows: Trace, values: Tensor) -> Panel:
    """Sums on a scale of their own."""
    return sheet(rows, values, float(values.max()))


def _diagnosis(rows: Trace, results: list[Explanation]) -> list[Panel]:
    """One image's column of the negative-gradient figure; each two parts that are compared share a scale."""
    gam, cam = results
    sums, parts = rows.sums(), rows.evidence()
    gradients = float(torch.maximum(sums.positive.max(), sums.negative.max()))
    evidence = float(torch.maximum(parts.positive.max(), parts.negative.abs().max()))
    return [
        photo(gam),
        heat(gam),
        heat(cam, mark="bad" if hides(rows) else ""),
        _alone(rows, sums.activation),
        sheet(rows, sums.positive, gradients),
        sheet(rows, sums.negative, gradients),
        sheet(rows, parts.positive, evidence),
        sheet(rows, parts.negative.abs(), evidence),
        hidden(rows),
    ]


def _beside(ask: Ask, names: tuple[str, ...]) -> Grid:
    rows, labels = [], []
    for x, y in couples(ask):
        trace = ask.lens.trace_pair(x.image, y.image, n=ask.most)
        results = {name: trace.explain(name, ask.blocks_of(name), score=ask.score) for name in names}
        value = float(next(iter(results.values())).scores[0])
        for side, part in zip("xy", trace.sides(ask.score), strict=True):
            shown = [_marked(result, name, side, part) for name, result in results.items()]
            rows.append((photo(getattr(results["gam"], side)), *shown))
            labels.append(f"{ask.score} {value:.3g}" if side == "x" else "")
    heads = ("Photo", *map(ask.head, names))
    breaks = tuple(range(2, len(rows), 2))
    return Grid(tuple(rows), heads, tuple(labels), breaks=breaks, keys=(SALIENCY,))


def _marked(result: PairExplanation, name: str, side: str, rows: Trace) -> Panel:
    """A map, framed red where it fails by a rule: nothing in it, or most of the positive evidence hidden."""
    shown = getattr(result, side)
    bad = empty(shown) or (name == "grad_cam" and hides(rows))
    return heat(shown, mark="bad" if bad else "")
