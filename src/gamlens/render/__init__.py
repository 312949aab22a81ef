"""Images and maps to pictures and pages."""

from gamlens.render.colors import COLORMAPS, colorize, lut
from gamlens.render.grid import draw
from gamlens.render.images import beside
from gamlens.render.notebook import fragment
from gamlens.render.overlay import STYLES, overlay
from gamlens.render.page import html, write
from gamlens.render.panels import Bars, Block, Grid, Page, Panel, Section, Table, Text
from gamlens.render.plot import PALETTE, Line, legend, plot

__all__ = [
    "COLORMAPS",
    "STYLES",
    "Bars",
    "Block",
    "Grid",
    "PALETTE",
    "Line",
    "Page",
    "Panel",
    "Section",
    "Table",
    "Text",
    "beside",
    "colorize",
    "draw",
    "fragment",
    "html",
    "legend",
    "lut",
    "overlay",
    "plot",
    "write",
]
