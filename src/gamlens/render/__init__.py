"""Images and maps to pictures and pages."""

from gamlens.render.colors import COLORMAPS, colorize, lut
from gamlens.render.grid import draw, typeset
from gamlens.render.images import beside
from gamlens.render.notebook import fragment
from gamlens.render.overlay import STYLES, boxed, outlined, overlay
from gamlens.render.page import html, write
from gamlens.render.panels import (
    Bars,
    Block,
    Chart,
    Charts,
    Grid,
    Heading,
    Line,
    Page,
    Panel,
    Scale,
    Section,
    Series,
    Table,
    Text,
)
from gamlens.render.plot import PALETTE, Curve, legend, plot

__all__ = [
    "COLORMAPS",
    "PALETTE",
    "STYLES",
    "Bars",
    "Block",
    "Chart",
    "Charts",
    "Curve",
    "Grid",
    "Heading",
    "Line",
    "Page",
    "Panel",
    "Scale",
    "Section",
    "Series",
    "Table",
    "Text",
    "beside",
    "boxed",
    "colorize",
    "draw",
    "fragment",
    "html",
    "legend",
    "lut",
    "outlined",
    "overlay",
    "plot",
    "typeset",
    "write",
]
