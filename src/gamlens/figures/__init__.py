"""The paper's figures from any images: a grid of panels each, to be typeset for print."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from gamlens.errors import GamlensError, GamlensWarning, Registry
from gamlens.figures.class_figures import Strip, classes, depth, overview, sanity, small, strips
from gamlens.figures.localization_figures import localization, segmentation, similarity, xray
from gamlens.figures.pair_figures import cosine, dot, layers, negative, overflow
from gamlens.figures.panels import EvidenceDrawing, draw_evidence, scaled_frame
from gamlens.figures.request import Example, FigureRequest, from_dataset, from_images
from gamlens.render import Grid

Takes = Literal["images", "pairs", "boxes", "masks", "overview"]
SUFFIXES = (".png", ".jpg", ".webp", ".pdf")


@dataclass(frozen=True)
class Figure:
    """An entry of FIGURES: how it is made, what it shows, and what it takes."""

    make: Callable[[FigureRequest], Grid]
    about: str
    takes: Takes = "images"


FIGURES = Registry(
    "figure",
    {
        "overview": Figure(overview, "one image for several classes, then a pair for its similarity", "overview"),
        "classes": Figure(classes, "GAM, Grad-CAM and Grad-CAM++ side by side, for classes"),
        "cosine": Figure(cosine, "the same for pairs, by cosine", "pairs"),
        "dot": Figure(dot, "the same for pairs, by dot product", "pairs"),
        "overflow": Figure(overflow, "Grad-CAM++ as published fails on the dot product", "pairs"),
        "negative": Figure(negative, "what negative gradients do to Grad-CAM (Eq. 4)", "pairs"),
        "layers": Figure(layers, "a pair block by block: maps, activations, gradients, n = 1 to 4", "pairs"),
        "depth": Figure(depth, "n = 1, 2, 3 for three methods"),
        "small": Figure(small, "small objects block by block"),
        "localization": Figure(localization, "predicted and true boxes, by class", "boxes"),
        "similarity": Figure(similarity, "predicted and true boxes, by similarity", "pairs"),
        "xray": Figure(xray, "predicted and true boxes on X-rays, by finding", "boxes"),
        "segmentation": Figure(segmentation, "predicted and true masks", "masks"),
        "sanity": Figure(sanity, "the model beside the same network with random weights"),
    },
)


def make(name: str, request: FigureRequest) -> Grid:
    """The figure of that name as a grid. What a figure shows on purpose (a flat map) is not warned about."""
    figure, count = FIGURES[name], len(request.examples)
    least = {"pairs": 2, "overview": 3}.get(figure.takes, 1)
    if count < least:
        raise GamlensError(
            f"Figure {name!r} takes {least} image{'s' if least > 1 else ''} or more and {count} came: give image "
            "files, or a data set with --data and --root."
        )
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        if not request.lens.knows_blocks:
            request.lens.trace(request.examples[0].image, n=1)
        return figure.make(request)


def save(picture: Image.Image, path: Path, *, dpi: int, palette: bool = False) -> None:
    """Write a figure; `palette` keeps 256 colours, for a file a third as large."""
    if path.suffix.lower() not in SUFFIXES:
        raise GamlensError(f"A figure is written as {', '.join(SUFFIXES)}; found {path.name!r}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shown = _fewer(picture) if palette else picture
        if path.suffix.lower() == ".pdf":
            picture.save(path, resolution=dpi)
        else:
            shown.save(path, dpi=(dpi, dpi), optimize=True, quality=92)
    except OSError as error:
        raise GamlensError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error


def _fewer(picture: Image.Image) -> Image.Image:
    """The picture in 256 colours, dithered; white paper stays white."""
    chosen = picture.quantize(256)
    colours = chosen.getpalette() or []
    brightest = max(range(0, len(colours), 3), key=lambda at: sum(colours[at : at + 3]))
    colours[brightest : brightest + 3] = [255, 255, 255]
    chosen.putpalette(colours)
    fewer = picture.quantize(palette=chosen)
    white = (np.asarray(picture) == 255).all(axis=2)
    fewer.paste(brightest // 3, mask=Image.fromarray(white))
    return fewer
