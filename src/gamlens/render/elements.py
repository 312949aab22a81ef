"""What a page or a figure is made of: plain records, no drawing."""

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
    """One picture with its words; `mark` frames it green or red."""

    image: Image.Image
    title: str = ""
    caption: str = ""
    alt: str = ""
    mark: Literal["", "good", "bad"] = ""

    @property
    def tallness(self) -> float:
        """Height over width of the picture."""
        return self.image.height / self.image.width


@dataclass(frozen=True)
class ScaleKey:
    """The key of a colour map: what it shows and what its ends mean.

    `over` shows the colours as they look over a grey photo.
    """

    label: str
    low: str = "0"
    high: str = "1"
    cmap: str = "ember"
    over: bool = False


@dataclass(frozen=True)
class LineKey:
    """The key of a line that is drawn into pictures: what the line means and how it looks."""

    label: str
    colour: RGB
    dashed: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows of panels (None leaves a cell empty), with column heads and row labels.

    `groups` are heads over several columns: (text, number of columns). `widths` are the columns' relative widths in
    print. `breaks` are the indices of rows that begin a new part. `keys` explain colours, lines and
    the series of charts under the grid.
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
            raise GamlensError(f"a grid of {len(self.rows)} rows has {len(self.labels)} labels: give one for each row")
        widest = max((len(row) for row in self.rows), default=0)
        if self.columns and widest > len(self.columns):
            raise GamlensError(f"a grid row of {widest} panels has {len(self.columns)} column heads: give one for each")
        if self.groups and sum(span for _, span in self.groups) != self.width:
            raise GamlensError(f"a grid of {self.width} columns has the groups {self.groups}: they must cover it")
        if self.widths and (len(self.widths) != self.width or min(self.widths) <= 0):
            raise GamlensError(f"a grid of {self.width} columns has the widths {self.widths}: give each one above 0")

    @property
    def width(self) -> int:
        """The number of columns."""
        return max([len(self.columns), *(len(row) for row in self.rows)])

    @property
    def tallness(self) -> tuple[float, ...]:
        """For each row the height over width of its cells, which are equal: that of its tallest picture, at most 1."""
        return tuple(min(1.0, max((panel.tallness for panel in row if panel), default=1.0)) for row in self.rows)


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: (label, share in 0..1, text at the end)."""

    items: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Table:
    """A table that readers can sort. A column of numbers, or of strings that begin with one, is right-aligned."""

    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise GamlensError(f"a table of {len(self.header)} columns has the row {row!r}: give each a cell")


@dataclass(frozen=True)
class Text:
    """Paragraphs between blank lines; **bold**, `code` and [links](#anchor) are understood."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Series:
    """Points (x, y) of a chart under one name.

    `kind`: points joined by a line ("line", "dashed", "dotted"), points alone ("dots"), large points with whiskers
    ("marks"), or a dashed line at the y of the first point across the whole chart ("level"). `spread` is (low, high)
    for each point of marks: the ends of its whisker. `tone` is the number of a colour (0 is grey);
    `ring` is the index of a point of a line that is circled. A point that is not finite leaves a gap.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    kind: Literal["line", "dashed", "dotted", "dots", "marks", "level"] = "line"
    tone: int = 1
    spread: tuple[tuple[float, float], ...] = ()
    ring: int | None = None

    @classmethod
    def over_names(
        cls, name: str, values: Sequence[float], kind: Literal["line", "dashed", "level"] = "line", *, tone: int = 1
    ) -> Series:
        """One value per name of a chart with `names`, at x = 0, 1, 2, ..."""
        return cls(name, tuple((float(step), value) for step, value in enumerate(values)), kind, tone)


@dataclass(frozen=True)
class Chart:
    """A chart with the names of its axes.

    `names` stand at x = 0, 1, 2, ... in place of numbers; the points of lines over names are marked. `diagonal` draws
    y = x and `zero` draws y = 0. Axes run from round number to round number around the given range or the points.
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
                    f"the series {series.name!r} has a point at x = {furthest:g}, and the chart has {len(self.names)} "
                    "names: give one value per name"
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
