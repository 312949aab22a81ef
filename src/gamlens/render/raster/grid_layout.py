"""Compute where the pictures and texts of a drawn grid go."""

from dataclasses import dataclass
from itertools import accumulate

from gamlens.errors import GamlensError
from gamlens.render.elements import Grid
from gamlens.render.raster.keys import arranged
from gamlens.render.raster.lettering import fitting, font, line_height, wrapped

TITLE_SIZE, HEAD_SIZE, CAPTION_SIZE = 19, 15, 13
# Pixels at scale 1: around the grid, between cells, and between groups of columns or parts of rows.
WIDE, TIGHT = (16, 14, 14), (3, 6, 10)


@dataclass(frozen=True)
class TextLines:
    """Lines of text, one below another.

    Attributes:
        lines: The lines.
        at: Where the first line goes, (x, y).
        size: The font size in pixels.
        anchor: Pillow's code for which point of a line lies at `at`.
        bold: Whether the text is a head rather than a caption.
        upwards: If not 0, the lines run upwards, along a strip of this length.
    """

    lines: list[str]
    at: tuple[float, float]
    size: float
    anchor: str = "ma"
    bold: bool = True
    upwards: int = 0


class GridLayout:
    """The geometry of a grid.

    Args:
        grid: The grid.
        cell: The largest width and height of a picture at scale 1, in pixels.
        scale: A factor for everything.
        tight: For print: little space between pictures, row labels run upwards, heads and labels shrink to fit.

    Attributes, in pixels:
        size: Width and height of the sheet.
        cells: `cells[row][column]` is the (left, top, width, height) of a cell's picture area.
        texts: Every title, head, label and caption, in wrapped lines.
        rules: Horizontal lines (left, right, y).
        keys: The legends under the grid, in lines.
        keys_top: The top of the first of these lines.
    """

    def __init__(self, grid: Grid, *, cell: int = 240, scale: float = 1.0, tight: bool = False) -> None:
        if not grid.width or not grid.rows:
            raise GamlensError("A grid must have at least one row and one column to be drawn; found none: add a panel.")
        if cell < 16 or scale <= 0:
            raise GamlensError(
                f"A cell must have at least 16 pixels, and the scale must be above 0; found {cell} pixels at scale "
                f"{scale}: give larger numbers."
            )
        self.grid, self.cell, self.scale, self.tight = grid, cell * scale, scale, tight
        self.margin, self.gap, self.apart = (round(room * scale) for room in (TIGHT if tight else WIDE))
        self.pad = round(6 * scale)
        self.cells: list[list[tuple[int, int, int, int]]] = []
        self.texts: list[TextLines] = []
        self.rules: list[tuple[int, int, int]] = []
        most = max(grid.widths, default=1.0)
        self.widths = [round(self.cell * width / most) for width in grid.widths or (1.0,) * grid.width]
        self.heights = self._heights()
        label = fitting(grid.labels, self.heights, HEAD_SIZE * scale) if tight else HEAD_SIZE * scale
        labels, room = self._labels(label)
        self.lefts = self._lefts(self.margin + room)
        self.right = self.lefts[-1] + self.widths[-1]
        bottom = self._rows(self._heads())
        self._place_labels(labels, label)
        self.keys = arranged(grid.keys, self.right - self.lefts[0], scale)
        self.keys_top = bottom + max(self.gap, round(10 * scale))
        if self.keys:
            line = line_height(CAPTION_SIZE * scale)
            bottom = self.keys_top + len(self.keys) * line + (len(self.keys) - 1) * self.pad
        self.size = (self.right + self.margin, bottom + self.margin)

    def _heights(self) -> list[int]:
        """Compute the height of each row's pictures."""
        if not self.grid.widths:
            return [max(1, round(self.cell * tall)) for tall in self.grid.tallness]
        heights = []
        for row in self.grid.rows:
            tall = [round(width * panel.tallness) for width, panel in zip(self.widths, row, strict=False) if panel]
            heights.append(max(tall, default=round(self.cell)))
        return heights

    def _labels(self, size: float) -> tuple[list[list[str]], int]:
        """Wrap the row labels, and compute the width that they take at the left."""
        face, names = font(size), self.grid.labels
        if self.tight:
            labels = [wrapped(name, face, height, most=2) for name, height in zip(names, self.heights, strict=False)]
            deep = max(map(len, labels), default=0) * line_height(size)
        else:
            labels = [wrapped(name, face, 0.6 * self.cell, most=3) for name in names]
            deep = round(max((face.getlength(text) for lines in labels for text in lines), default=0))
        return labels, deep + self.gap if deep else 0

    def _lefts(self, left: int) -> list[int]:
        """Compute the left edge of every column, with extra space between groups of columns."""
        starts = set(accumulate(span for _, span in self.grid.groups))
        lefts = []
        for number, width in enumerate(self.widths):
            left += self.apart if number in starts else 0
            lefts.append(left)
            left += width + self.gap
        return lefts

    def _heads(self) -> int:
        """Place the title, the heads of groups with a line under each, and the heads of columns.

        Returns:
            The top of the first row.
        """
        grid, scale, top = self.grid, self.scale, self.margin
        size = TITLE_SIZE * scale
        title = wrapped(grid.title, font(size), self.right - self.margin, most=2)
        self.texts.append(TextLines(title, (top, top), size, "la"))
        top += len(title) * line_height(size) + self.pad if title else 0
        size = fitting(grid.columns, self.widths, HEAD_SIZE * scale) if self.tight else HEAD_SIZE * scale
        line = line_height(size)
        for (text, span), end in zip(grid.groups, accumulate(span for _, span in grid.groups), strict=True):
            left, right = self.lefts[end - span], self.lefts[end - 1] + self.widths[end - 1]
            lines = wrapped(text, font(size), right - left, most=1)
            self.texts.append(TextLines(lines, ((left + right) / 2, top), size))
            self.rules.append((left, right - 1, top + line + round(2 * scale)))
        top += line + self.pad if any(text.strip() for text, _ in grid.groups) else 0
        heads = [
            wrapped(text, font(size), width, most=2) for text, width in zip(grid.columns, self.widths, strict=False)
        ]
        deep = max(map(len, heads), default=0)
        for lines, left, width in zip(heads, self.lefts, self.widths, strict=False):
            self.texts.append(TextLines(lines, (left + width / 2, top + (deep - len(lines)) * line), size))
        return top + (deep * line + self.pad if deep else 0)

    def _rows(self, top: int) -> int:
        """Place the cells, each with its title above and its caption below, from `top` on.

        Returns:
            The bottom of the last row.
        """
        size = CAPTION_SIZE * self.scale
        line, face = line_height(size), font(size)
        for number, (row, height) in enumerate(zip(self.grid.rows, self.heights, strict=True)):
            shown = list(zip(row, self.widths, strict=False))
            titles = [wrapped(panel.title, face, width, most=1) if panel else [] for panel, width in shown]
            captions = [wrapped(panel.caption, face, width, most=3) if panel else [] for panel, width in shown]
            above, below = (max(map(len, texts), default=0) for texts in (titles, captions))
            top += (self.apart if number in self.grid.breaks else 0) + (self.pad // 2 if above else 0)
            if number and number in self.grid.breaks:
                self.rules.append((self.lefts[0], self.right, top - (self.gap + self.apart) // 2))
            top += above * line
            for left, width, title, caption in zip(self.lefts, self.widths, titles, captions, strict=False):
                middle = left + width / 2
                self.texts.append(TextLines(title, (middle, top - line - 3 * self.scale), size))
                self.texts.append(TextLines(caption, (middle, top + height + 6 * self.scale), size, bold=False))
            self.cells.append([(x, top, width, height) for x, width in zip(self.lefts, self.widths, strict=True)])
            top += height + (below * line + self.pad if below else 0) + self.gap
        return top - self.gap

    def _place_labels(self, labels: list[list[str]], size: float) -> None:
        """Place the labels of rows to the left of their pictures, running upwards if `tight`."""
        gap = self.gap
        for lines, ((left, top, _, height), *_) in zip(labels, self.cells, strict=False):
            deep = len(lines) * line_height(size)
            if self.tight:
                self.texts.append(TextLines(lines, (left - gap - deep + gap // 4, top), size, upwards=height))
            else:
                self.texts.append(TextLines(lines, (left - gap, top + (height - deep) / 2), size, "ra"))
