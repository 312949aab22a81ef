"""Where the parts of a drawn grid go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from gamlens.errors import GamlensError
from gamlens.render.elements import Grid, GridKey
from gamlens.render.raster.keys import arranged
from gamlens.render.raster.lettering import LEADING, Font, fitting, font, wrapped

TITLE_SIZE, HEAD_SIZE, CAPTION_SIZE = 19, 15, 13

Texts = list[list[str]]


class Spacing(NamedTuple):
    """Room around the grid, between cells, and between parts."""

    margin: int
    gap: int
    apart: int


WIDE, TIGHT = Spacing(16, 14, 14), Spacing(3, 6, 10)  # at scale 1


@dataclass(frozen=True)
class GridLayout:
    """Where things go, in pixels: `cells[row][column]` is the (left, top) of a cell's picture area.

    A column is `widths[column]` wide; a row is `heights[row]` high. Words are wrapped into lines; the head of a group
    comes with its left and right edge. `head` and `label` are sizes of letters.
    """

    size: tuple[int, int]
    space: Spacing
    head: float
    label: float
    widths: tuple[int, ...]
    heights: tuple[int, ...]
    cells: tuple[tuple[tuple[int, int], ...], ...]
    groups_top: int
    heads_top: int
    keys_top: int
    title: list[str]
    groups: list[tuple[list[str], int, int]]
    heads: Texts
    labels: Texts
    captions: list[Texts]
    titles: list[Texts]
    keys: list[list[GridKey]]


def line(size: float) -> int:
    """The height of a line of letters of that size."""
    return round(size * LEADING)


def deepest(texts: Texts) -> int:
    return max((len(lines) for lines in texts), default=0)


def layout(grid: Grid, *, cell: int = 240, scale: float = 1.0, tight: bool = False) -> GridLayout:
    """The geometry of `grid` with pictures at most `cell` x `cell`, everything multiplied by `scale`.

    `tight`, for print: little room between pictures, row labels run upwards, heads and labels shrink to fit.
    """
    if not grid.width or not grid.rows:
        raise GamlensError("a grid to draw has at least one row and one column, found none: add a panel")
    if cell < 16 or scale <= 0:
        raise GamlensError(f"a cell is at least 16 pixels at a positive scale, found {cell} x {scale}: enlarge it")
    space, pad = Spacing(*(round(room * scale) for room in (TIGHT if tight else WIDE))), round(6 * scale)
    widths, heights = _widths(grid, cell * scale), _heights(grid, cell * scale)
    caption = font(CAPTION_SIZE * scale)
    size = fitting(grid.columns, widths, HEAD_SIZE * scale) if tight else HEAD_SIZE * scale
    label = fitting(grid.labels, heights, HEAD_SIZE * scale) if tight else HEAD_SIZE * scale
    labels, room = _labels(grid, heights, label, cell * scale, tight, space)
    lefts = _lefts(grid, widths, space.margin + room, space)
    right = lefts[-1] + widths[-1] + space.margin
    name = wrapped(grid.title, font(TITLE_SIZE * scale), right - 2 * space.margin, most=2)
    heads = [wrapped(text, font(size), width, most=2) for text, width in zip(grid.columns, widths, strict=False)]
    groups = []
    for (text, span), end in zip(grid.groups, accumulate(span for _, span in grid.groups), strict=True):
        edges = lefts[end - span], lefts[end - 1] + widths[end - 1]
        groups.append((wrapped(text, font(size), edges[1] - edges[0], most=1), *edges))
    captions = _panel_text(grid, "caption", caption, widths, 3)
    titles = _panel_text(grid, "title", caption, widths, 1)

    groups_top = space.margin + (len(name) * line(TITLE_SIZE * scale) + pad if name else 0)
    heads_top = groups_top + (line(size) + pad if any(text for text, *_ in groups) else 0)
    top = heads_top + (deepest(heads) * line(size) + pad if deepest(heads) else 0)
    tops, bottom = _tops(grid, heights, titles, captions, top, scale, space)
    keys = arranged(grid.keys, right - space.margin - lefts[0], scale)
    keys_top = bottom + max(space.gap, round(10 * scale))
    bottom = keys_top + len(keys) * line(CAPTION_SIZE * scale) + (len(keys) - 1) * pad if keys else bottom
    return GridLayout(
        (right, bottom + space.margin), space, size, label, widths, heights,
        tuple(tuple((left, y) for left in lefts) for y in tops), groups_top, heads_top, keys_top, name, groups, heads,
        labels, captions, titles, keys,
    )  # fmt: skip


def _widths(grid: Grid, cell: float) -> tuple[int, ...]:
    most = max(grid.widths, default=1.0)
    return tuple(round(cell * width / most) for width in grid.widths or (1.0,) * grid.width)


def _heights(grid: Grid, cell: float) -> tuple[int, ...]:
    if not grid.widths:
        return tuple(max(1, round(cell * tall)) for tall in grid.tallness)
    widths = _widths(grid, cell)
    return tuple(
        max((round(width * panel.image.height / panel.image.width)
             for width, panel in zip(widths, row, strict=False) if panel), default=round(cell))
        for row in grid.rows
    )  # fmt: skip


def _labels(
    grid: Grid, heights: tuple[int, ...], size: float, cell: float, tight: bool, space: Spacing
) -> tuple[Texts, int]:
    """The row labels in lines, and the room they take at the left."""
    face = font(size)
    if tight:
        labels = [wrapped(label, face, height, most=2) for label, height in zip(grid.labels, heights, strict=False)]
        deep = deepest(labels) * line(size)
    else:
        labels = [wrapped(label, face, 0.6 * cell, most=3) for label in grid.labels]
        deep = round(max((face.getlength(text) for lines in labels for text in lines), default=0))
    return labels, deep + space.gap if deep else 0


def _lefts(grid: Grid, widths: tuple[int, ...], left: int, space: Spacing) -> list[int]:
    """The left edge of every column; groups stand apart."""
    starts = set(accumulate(span for _, span in grid.groups))
    lefts = []
    for number, width in enumerate(widths):
        left += space.apart if number in starts else 0
        lefts.append(left)
        left += width + space.gap
    return lefts


def _tops(
    grid: Grid, heights: tuple[int, ...], titles: list[Texts], captions: list[Texts], top: int, scale: float,
    space: Spacing,
) -> tuple[list[int], int]:  # fmt: skip
    """The top of every row's pictures, and where the last row ends."""
    pad, step = round(6 * scale), line(CAPTION_SIZE * scale)
    tops = []
    for number, (height, above, below) in enumerate(zip(heights, titles, captions, strict=True)):
        top += space.apart if number in grid.breaks else 0
        top += deepest(above) * step + (pad // 2 if deepest(above) else 0)
        tops.append(top)
        top += height + (deepest(below) * step + pad if deepest(below) else 0) + space.gap
    return tops, top - space.gap


def _panel_text(grid: Grid, field: str, face: Font, widths: tuple[int, ...], most: int) -> list[Texts]:
    return [
        [
            wrapped(getattr(panel, field), face, width, most=most) if panel else []
            for panel, width in zip(row, widths, strict=False)
        ]
        for row in grid.rows
    ]
