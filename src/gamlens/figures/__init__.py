"""Make the figures of the paper from any images. A figure is a grid of panels, which is then typeset for print."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from gamlens.errors import GamlensError, GamlensWarning, Registry
from gamlens.figures.class_figures import Strip, classes, depth, overview, sanity, sharp, small, strips
from gamlens.figures.localization_figures import localization, segmentation, similarity, xray
from gamlens.figures.pair_figures import cosine, dot, layers, negative, overflow, sharp_pairs
from gamlens.figures.panels import EvidenceDrawing, draw_evidence, scaled_frame
from gamlens.figures.request import Example, FigureRequest, from_dataset, from_images
from gamlens.files import StagedFiles
from gamlens.render import Grid

Takes = Literal["images", "pairs", "boxes", "masks", "overview"]
SUFFIXES = (".png", ".jpg", ".webp", ".pdf")


@dataclass(frozen=True)
class Figure:
    """An entry of FIGURES.

    Attributes:
        make: The function that makes the figure's grid.
        about: What the figure shows, for the command's help.
        takes: What the figure is made from: single images, pairs of images, images with boxes or masks, or for
            "overview" one image and a pair.
    """

    make: Callable[[FigureRequest], Grid]
    about: str
    takes: Takes = "images"


FIGURES = Registry(
    "figure",
    {
        "overview": Figure(
            overview, "one image explained for several classes, and a pair for its similarity", "overview"
        ),
        "classes": Figure(classes, "GAM, Grad-CAM and Grad-CAM++ side by side, for a class of each image"),
        "sharp": Figure(sharp, "GAM before and after refinement by self-similarity, for a class of each image"),
        "sharp_pairs": Figure(sharp_pairs, "the same for pairs, both maps of each", "pairs"),
        "cosine": Figure(cosine, "the same three methods for pairs, by cosine similarity", "pairs"),
        "dot": Figure(dot, "the same for pairs, by dot product, and Grad-CAM++ exactly as published", "pairs"),
        "overflow": Figure(
            overflow, "GAM beside Grad-CAM++ as published, whose exp(score) overflows for dot products", "pairs"
        ),
        "negative": Figure(
            negative, "why negative gradients make Grad-CAM fail on a pair (Eq. 4 of the paper)", "pairs"
        ),
        "layers": Figure(
            layers, "a pair block by block: maps, activations, gradients, and means of n = 1 to 4", "pairs"
        ),
        "depth": Figure(depth, "three methods with n = 1, 2 and 3 blocks"),
        "small": Figure(small, "small objects: GAM block by block and their mean, and Grad-CAM"),
        "localization": Figure(localization, "predicted and true boxes, for a class of each image", "boxes"),
        "similarity": Figure(similarity, "predicted and true boxes, for the similarity of pairs", "pairs"),
        "xray": Figure(xray, "predicted and true boxes of findings on X-rays", "boxes"),
        "segmentation": Figure(segmentation, "predicted and true masks, for a class of each image", "masks"),
        "sanity": Figure(sanity, "maps of the model, and of copies with more and more random weights"),
    },
)


def make(name: str, request: FigureRequest) -> Grid:
    """Make the figure `name` as a grid. Warnings are suppressed, since some figures show flat maps on purpose."""
    figure, count = FIGURES[name], len(request.examples)
    least = {"pairs": 2, "overview": 3}.get(figure.takes, 1)
    if count < least:
        raise GamlensError(
            f"Figure {name!r} takes {least} image{'s' if least > 1 else ''} or more; found {count}: give image files, "
            "or a data set with --data and --root."
        )
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        if not request.lens.knows_blocks:
            request.lens.trace(request.examples[0].image, n=1)
        return figure.make(request)


def check_place(path: Path, sources: Sequence[str | Path]) -> None:
    """Raise an error if a figure cannot be written to `path`: by its suffix, or because it is one of the `sources`."""
    if path.suffix.lower() not in SUFFIXES:
        raise GamlensError(f"A figure is written as {', '.join(SUFFIXES)}; found {path.name!r}: name such a file.")
    for source in sources:
        if path.exists() and os.path.exists(source) and os.path.samefile(path, source):
            raise GamlensError(
                f"The figure would replace {str(source)!r}, from which it is made: give --out another file."
            )


def save(picture: Image.Image, path: Path, *, dpi: int, palette: bool = False) -> None:
    """Write a figure to `path`. `palette` reduces it to 256 colours, which makes the file about a quarter as large."""
    check_place(path, ())
    suffix = path.suffix.lower()
    form = Image.registered_extensions()[suffix]
    with StagedFiles() as staged:
        if suffix == ".pdf":
            staged.write(path, partial(picture.save, format=form, resolution=dpi))
        else:
            shown = _fewer(picture) if palette else picture
            staged.write(path, partial(shown.save, format=form, dpi=(dpi, dpi), optimize=True, quality=92))


def _fewer(picture: Image.Image) -> Image.Image:
    """Reduce a picture to 256 colours without dithering, so that smooth maps stay smooth; white stays exactly white.

    The colours are chosen on every second pixel of every second row, which gives the same ones in a quarter of the
    time. Each pixel then takes the nearest of them.
    """
    sample = picture.resize((-(-picture.width // 2), -(-picture.height // 2)), Image.Resampling.NEAREST)
    chosen = sample.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=5)
    colours = chosen.getpalette() or []
    brightest = max(range(0, len(colours), 3), key=lambda at: sum(colours[at : at + 3]))
    colours[brightest : brightest + 3] = [255, 255, 255]
    chosen.putpalette(colours)
    fewer = picture.quantize(palette=chosen, dither=Image.Dither.NONE)
    white = (np.asarray(picture) == 255).all(axis=2)
    fewer.paste(brightest // 3, mask=Image.fromarray(white))
    return fewer
