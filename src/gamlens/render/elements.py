"""The records that pages and figures consist of. They hold content; `html` and `raster` draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from PIL import Image

from gamlens.errors import GamlensError

TableCell: TypeAlias = str | int | float
RGB: TypeAlias = tuple[int, int, int]
BoxCorners: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True)
class Panel:
    """One picture with a title, a caption and alternative text; `mark` frames it in green ("good") or red ("bad")."""

    image: Image.Image
    title: str = ""
    caption: str = ""
    alt: str = ""
    mark: Literal["", "good", "bad"] = ""

    @property
    def tallness(self) -> float:
        """The height of the picture divided by its width."""
        return self.image.height / self.image.width


@dataclass(frozen=True)
class ScaleKey:
    """The legend of a colour map: what it shows (`label`) and what its ends mean (`low`, `high`).

    If `over`, the colours are shown as they look when laid over a grey photo.
    """

    label: str
    low: str = "0"
    high: str = "1"
    cmap: str = "ember"
    over: bool = False


@dataclass(frozen=True)
class LineKey:
    """The legend of a line that is drawn into pictures: what the line means and how it looks."""

    label: str
    colour: RGB
    dashed: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of panels with column heads and row labels.

    Attributes:
        rows: The panels of each row; None leaves a cell empty.
        columns: The heads of the columns, or none.
        labels: The labels of the rows, or none.
        title: The title above the grid.
        groups: Heads over several columns, (text, number of columns) each; together they cover all columns.
        widths: The relative widths of the columns in print, or none for equal widths.
        breaks: The indices of rows that are set apart from the row before by a line.
        keys: The legends under the grid: of colour maps, lines, and series of charts.
    """

    rows: tuple[tuple[Panel | None, ...], ...]
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    title: str = ""
    groups: tuple[tuple[str, int], ...] = ()
    widths: tuple[float, ...] = ()
    breaks: tuple[int, ...] = ()
    keys: tuple[GridKey, ...] = ()

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.rows):
            raise GamlensError(f"A grid of {len(self.rows)} rows has {len(self.labels)} labels: give one for each row.")
        widest = max((len(row) for row in self.rows), default=0)
        if self.columns and widest > len(self.columns):
            raise GamlensError(
                f"A grid row of {widest} panels has {len(self.columns)} column heads: give one for each panel."
            )
        if self.groups and sum(span for _, span in self.groups) != self.width:
            raise GamlensError(
                f"A grid of {self.width} columns has the groups {self.groups}: their numbers of columns must add up to "
                f"{self.width}."
            )
        if self.widths and (len(self.widths) != self.width or min(self.widths) <= 0):
            raise GamlensError(
                f"A grid of {self.width} columns has the widths {self.widths}: give one number above 0 for each column."
            )

    @property
    def width(self) -> int:
        """The number of columns."""
        return max([len(self.columns), *(len(row) for row in self.rows)])

    @property
    def tallness(self) -> tuple[float, ...]:
        """For each row, the height of its cells divided by their width: that of its tallest picture, but at most 1."""
        return tuple(min(1.0, max((panel.tallness for panel in row if panel), default=1.0)) for row in self.rows)


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, (label, length from 0 to 1, text at the end) each."""

    items: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Table:
    """A table that readers can sort. A column of numbers, or of strings that begin with one, is right-aligned.

    Attributes:
        header: The heads of the columns.
        rows: The cells of each row.
        shades: How strongly each cell is coloured, from -1 (one colour) over 0 (none) to 1 (another), as many as there
            are cells; NaN is none. Without shades nothing is coloured.
        pinned: Whether the first column stays in view while the table is scrolled sideways.
        upright: Whether long heads, except for the first, run upwards, so that columns of short cells stay narrow.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    shades: tuple[tuple[float, ...], ...] = ()
    pinned: bool = False
    upright: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise GamlensError(
                    f"A table of {len(self.header)} columns has the row {row!r}: give one cell for each column."
                )
        if self.shades and [*map(len, self.shades)] != [*map(len, self.rows)]:
            raise GamlensError(
                f"A table of {len(self.rows)} rows and {len(self.header)} columns has the shades {self.shades!r}: give "
                "one for each cell."
            )


@dataclass(frozen=True)
class Text:
    """Paragraphs, separated by blank lines. They may contain **bold**, `code` and [links](#anchor)."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Series:
    """One named series of points in a chart.

    Attributes:
        name: The name in the legend.
        points: The points (x, y). A point that is not finite leaves a gap.
        kind: Points joined by a line ("line", "dashed", "dotted"), small points alone ("dots"), large points with
            whiskers ("marks"), or a dashed line across the whole chart at the y of the first point ("level").
        tone: The number of a colour; 0 is grey.
        spread: For "marks", the two ends (low, high) of each point's whisker.
        ring: For lines, the index of a point that is circled.
        labels: For "dots" and "marks", a short text beside each point, such as a number that a list explains.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    kind: Literal["line", "dashed", "dotted", "dots", "marks", "level"] = "line"
    tone: int = 1
    spread: tuple[tuple[float, float], ...] = ()
    ring: int | None = None
    labels: tuple[str, ...] = ()

    @classmethod
    def over_names(
        cls, name: str, values: Sequence[float], kind: Literal["line", "dashed", "level"] = "line", *, tone: int = 1
    ) -> Series:
        """Make a series for a chart with `names`: one value per name, at x = 0, 1, 2, ..."""
        return cls(name, tuple((float(step), value) for step, value in enumerate(values)), kind, tone)


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: The title above the chart.
        x, y: The names of the axes.
        series: What the chart shows.
        caption: The text below the chart.
        names: Names along the x axis, at x = 0, 1, 2, ..., instead of numbers. Lines then have a dot on each point.
        x_range, y_range: The ranges of the axes, extended to round numbers; None for the range of the points.
        diagonal: Whether the line y = x is drawn.
        zero: Whether the line y = 0 is drawn.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    caption: str = ""
    names: tuple[str, ...] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    diagonal: bool = False
    zero: bool = False

    def __post_init__(self) -> None:
        for series in self.series if self.names else ():
            furthest = max((x for x, _ in series.points), default=0.0)
            if furthest > len(self.names) - 0.5:
                raise GamlensError(
                    f"The series {series.name!r} has a point at x = {furthest:g}, and the chart has {len(self.names)} "
                    "names: give one value per name."
                )


@dataclass(frozen=True)
class Charts:
    """Charts side by side, as many as the page has room for."""

    items: tuple[Chart, ...]


GridKey: TypeAlias = ScaleKey | LineKey | Series
Block: TypeAlias = Panel | Grid | Bars | Table | Text | Heading | Chart | Charts


@dataclass(frozen=True)
class Section:
    """A titled part of a page; its anchor is the title in lower case with hyphens."""

    title: str
    blocks: tuple[Block, ...]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    lead: str = ""
    sections: tuple[Section, ...] = ()
    footer: str = ""
