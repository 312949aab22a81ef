"""Figures of places: boxes by class, by similarity and on X-rays, and segmentation, beside the ground truth."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gamlens import metrics, render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures.panels import PREDICTED_INK, TRUE_INK, frame_of, place_keys
from gamlens.figures.request import Example, FigureRequest, example_pairs, targeted_examples
from gamlens.methods import PAPER_METHODS
from gamlens.render import RGB, BoxCorners, Grid, Panel, thumbnail

PLACE_SIDE = 480
FoundPlaces: TypeAlias = tuple[Example, str, list[Explanation]]  # a row: its example, its label, one map per method
LINE_WIDTH = 5.5  # pixels of a picture whose longer side is PLACE_SIDE


def localization(request: FigureRequest) -> Grid:
    """Boxes by class: the true box, then each method's map with the box around it and its IoU."""
    return _by_class(request, masks=False)


def segmentation(request: FigureRequest) -> Grid:
    """The true mask, then each method's map with the outline of the pixels it keeps, and its IoU."""
    return _by_class(request, masks=True)


def similarity(request: FigureRequest) -> Grid:
    """Boxes by similarity, two rows per pair."""
    found: list[FoundPlaces] = []
    for x, y in example_pairs(request):
        trace = request.lens.trace_pair(x.image, y.image, n=request.most)
        both = [trace.explain(name, request.blocks_of(name), score=request.score) for name in PAPER_METHODS]
        found.append((x, x.title or request.score, [result.x for result in both]))
        found.append((y, y.title or request.score, [result.y for result in both]))
    return replace(_grid(request, found, masks=False), breaks=tuple(range(2, len(found), 2)))


def xray(request: FigureRequest) -> Grid:
    """Boxes by finding on X-rays, which must have ground truth."""
    if not any(example.boxes for example in request.examples):
        raise GamlensError(
            "The X-ray figure shows findings beside their true boxes, and none of the images has one: give --data "
            "chestxray --root FOLDER (NIH's layout), and a model such as --model chexnet --weights FILE."
        )
    return localization(request)


def truth_panel(example: Example, image: Image.Image) -> Panel:
    """The photo with its true mask or boxes."""
    picture = thumbnail(image, PLACE_SIDE)
    if example.mask is not None:
        return Panel(_outlined(picture, example.mask, TRUE_INK), alt="the true mask")
    return Panel(_true_boxes(picture, _truth(example, image, picture)), alt="the photo with its true boxes")


def place_panel(result: Explanation, example: Example, threshold: float, *, masks: bool) -> Panel:
    """A map of one row with the place it finds; IoU beneath.

    `masks`: the outline of the pixels that reach the threshold; else the box around them, and the true boxes.
    """
    image, picture = result.image(), thumbnail(result.overlay(), PLACE_SIDE)
    if masks:
        lines = _outlined(picture, np.asarray(result.full() >= threshold), PREDICTED_INK)
        return Panel(lines, caption=_mask_iou(result, example, threshold), alt=f"{result.names[0]}: saliency, outlined")
    found = [tuple(box) for box in result.boxes(threshold).tolist() if any(box)]
    predicted, truth = _scaled(found, image.size, picture), _truth(example, image, picture)
    picture = render.boxed(_true_boxes(picture, truth), predicted, colour=PREDICTED_INK, thick=_thick(picture))
    return Panel(picture, caption=_box_iou(predicted, truth), alt=f"{result.names[0]}: saliency and boxes")


def _by_class(request: FigureRequest, *, masks: bool) -> Grid:
    found: list[FoundPlaces] = []
    for example in targeted_examples(request):
        results = list(request.explain(request.trace(example), PAPER_METHODS).values())
        found.append((example, example.title or results[0].names[0], results))
    return _grid(request, found, masks=masks)


def _grid(request: FigureRequest, found: list[FoundPlaces], *, masks: bool) -> Grid:
    """One row per example: the photo with its truth, then every method's place."""
    truth = any(example.boxes or example.mask is not None for example in request.examples)
    heads = ("Ground truth" if truth else "Photo", *map(request.head, PAPER_METHODS))
    keys = place_keys(f"predicted, map >= {request.threshold:g}", truth=truth, dashed=not masks)
    rows = []
    for example, _, results in found:
        places = (place_panel(result, example, request.threshold, masks=masks) for result in results)
        rows.append((truth_panel(example, results[0].image()), *places))
    return Grid(tuple(rows), heads, tuple(label for _, label, _ in found), keys=keys)


def _truth(example: Example, image: Image.Image, picture: Image.Image) -> list[BoxCorners]:
    """The true boxes in pixels of the picture shown."""
    return _scaled(example.boxes, example.size[::-1] if example.size else image.size, picture)


def _true_boxes(picture: Image.Image, truth: list[BoxCorners]) -> Image.Image:
    return render.boxed(picture, truth, colour=TRUE_INK, dashed=True, thick=_thick(picture))


def _box_iou(predicted: list[BoxCorners], truth: list[BoxCorners]) -> str:
    if not truth:
        return ""
    box = torch.tensor(predicted[:1] or [(0.0, 0.0, 0.0, 0.0)])
    return f"IoU {float(metrics.box_iou(box, [torch.tensor(truth)])[0]):.2f}"


def _mask_iou(result: Explanation, example: Example, threshold: float) -> str:
    """IoU in the model's input space, as the evaluation measures it."""
    if example.mask is None:
        return ""
    truth, void = (
        None if mask is None else frame_of(result).mask_in(torch.from_numpy(np.ascontiguousarray(mask)))[None]
        for mask in (example.mask, example.void)
    )
    assert truth is not None
    grid = metrics.mask_iou_grid(result.maps.cpu(), truth, void, thresholds=[threshold])
    return f"IoU {float(grid[0, 0]):.2f}"


def _scaled(boxes: Iterable[Sequence[float]], size: tuple[int, int], picture: Image.Image) -> list[BoxCorners]:
    """Boxes of an image of `size` (width, height), in pixels of a picture of it."""
    right, down = picture.width / size[0], picture.height / size[1]
    return [(x0 * right, y0 * down, x1 * right, y1 * down) for x0, y0, x1, y1 in boxes]


def _thick(picture: Image.Image) -> float:
    """Lines of one width in print, whatever the picture's shape; the usual one is a 180th of the shorter side."""
    return LINE_WIDTH * 180 / PLACE_SIDE * max(picture.size) / min(picture.size)


def _outlined(picture: Image.Image, mask: NDArray[np.bool_], colour: RGB) -> Image.Image:
    """The picture with the outline of a mask of the whole image."""
    small = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST), dtype=bool)
    return render.outlined(picture, small, colour=colour, thick=_thick(picture))
