"""Draw maps over images (`overlay`), and turn the records of `elements` into pictures (`raster`) and pages (`html`)."""

from gamlens.render.chart_layout import PALETTE
from gamlens.render.elements import (
    RGB,
    Bars,
    Block,
    BoxCorners,
    Chart,
    Charts,
    Grid,
    Heading,
    LineKey,
    Page,
    Panel,
    ScaleKey,
    Section,
    Series,
    Table,
    TableCell,
    Text,
)
from gamlens.render.html.document import PAGE_FILE, html, write
from gamlens.render.html.pictures import fragment
from gamlens.render.raster.chart_image import draw_chart
from gamlens.render.raster.colormaps import COLORMAPS, SIGNED_COLORMAPS, colorize, lut
from gamlens.render.raster.colour_bar import with_colour_bar
from gamlens.render.raster.grid import draw, typeset
from gamlens.render.raster.linked import LinkMark, linked
from gamlens.render.raster.marked_png import is_marked_png, write_png
from gamlens.render.raster.overlay import STYLES, boxed, outlined, overlay
from gamlens.render.raster.rgb import beside, stacked, thumbnail
