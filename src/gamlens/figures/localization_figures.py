"""Figures of predicted and true boxes and masks: localization, similarity, xray and segmentation."""

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
FoundPlaces: TypeAlias = tuple[Example, str, list[Explanation]]  # one row: example, label, one explanation per method
LINE_WIDTH = 5.5  # in pixels, on a picture whose longer side has PLACE_SIDE pixels


def localization(request: FigureRequest) -> Grid:
    """One row per image: the true boxes, then each method's map for a class with the predicted box and its IoU."""
    return _by_class(request, masks=False)


def segmentation(request: FigureRequest) -> Grid:
    """One row per image: the true mask, then each method's map with the outline of the predicted mask and its IoU."""
    return _by_class(request, masks=True)


def similarity(request: FigureRequest) -> Grid:
    """Predicted boxes from the maps of a pair's similarity, two rows per pair."""
    found: list[FoundPlaces] = []
    for x, y in example_pairs(request):
        trace = request.lens.trace_pair(x.image, y.image, n=request.most)
        both = [
            trace.explain(name, request.blocks_of(name), score=request.score, lattice=request.lattice)
            for name in PAPER_METHODS
        ]
        found.append((x, x.title or request.score, [result.x for result in both]))
        found.append((y, y.title or request.score, [result.y for result in both]))
    return replace(_grid(request, found, masks=False), breaks=tuple(range(2, len(found), 2)))


def xray(request: FigureRequest) -> Grid:
    """The localization figure for findings on X-rays. At least one X-ray must have a true box."""
    if not any(example.boxes for example in request.examples):
        raise GamlensError(
            "The X-ray figure shows findings beside their true boxes, but none of the images has one: give --data "
            "chestxray --root FOLDER (NIH's layout), and a model such as --model chexnet --weights FILE."
        )
    return localization(request)


def truth_panel(example: Example, image: Image.Image) -> Panel:
    """The photo with the outline of its true mask, or with its true boxes if there is no mask."""
    picture = thumbnail(image, PLACE_SIDE)
    if example.mask is not None:
        return Panel(_outlined(picture, example.mask, TRUE_INK), alt="the true mask")
    return Panel(_true_boxes(picture, _truth(example, image, picture)), alt="the photo with its true boxes")


def place_panel(result: Explanation, example: Example, threshold: float, *, masks: bool) -> Panel:
    """A method's map over the photo, with what it predicts at the threshold and, as caption, the IoU with the truth.

    With `masks` the outline of all pixels >= threshold is drawn; otherwise the box around them and the true boxes.
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
    """One row per example: the photo with its ground truth, then each method's map with its box or mask."""
    truth = any(example.boxes or example.mask is not None for example in request.examples)
    heads = ("Ground truth" if truth else "Photo", *map(request.head, PAPER_METHODS))
    keys = place_keys(f"predicted, map >= {request.threshold:g}", truth=truth, dashed=not masks)
    rows = []
    for example, _, results in found:
        places = (place_panel(result, example, request.threshold, masks=masks) for result in results)
        rows.append((truth_panel(example, results[0].image()), *places))
    return Grid(tuple(rows), heads, tuple(label for _, label, _ in found), keys=keys)


def _truth(example: Example, image: Image.Image, picture: Image.Image) -> list[BoxCorners]:
    """The true boxes of an example, scaled from pixels of the image to pixels of the drawn picture."""
    return _scaled(example.boxes, example.size[::-1] if example.size else image.size, picture)


def _true_boxes(picture: Image.Image, truth: list[BoxCorners]) -> Image.Image:
    return render.boxed(picture, truth, colour=TRUE_INK, dashed=True, thick=_thick(picture))


def _box_iou(predicted: list[BoxCorners], truth: list[BoxCorners]) -> str:
    if not truth:
        return ""
    box = torch.tensor(predicted[:1] or [(0.0, 0.0, 0.0, 0.0)])
    return f"IoU {float(metrics.box_iou(box, [torch.tensor(truth)])[0]):.2f}"


def _mask_iou(result: Explanation, example: Example, threshold: float) -> str:
    """The IoU of the predicted mask, in pixels of the model's input as in the evaluation; "" without a true mask."""
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
    """Scale boxes from an image of `size` (width, height) to a picture of that image with another size."""
    right, down = picture.width / size[0], picture.height / size[1]
    return [(x0 * right, y0 * down, x1 * right, y1 * down) for x0, y0, x1, y1 in boxes]


def _thick(picture: Image.Image) -> float:
    """The `thick` factor that makes lines equally wide in print for pictures of any aspect ratio.

    `render` draws lines of `thick` / 180 of the shorter side; this makes them LINE_WIDTH at PLACE_SIDE.
    """
    return LINE_WIDTH * 180 / PLACE_SIDE * max(picture.size) / min(picture.size)


def _outlined(picture: Image.Image, mask: NDArray[np.bool_], colour: RGB) -> Image.Image:
    """Draw the outline of a mask onto a picture; the mask is resized to the picture first."""
    small = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST), dtype=bool)
    return render.outlined(picture, small, colour=colour, thick=_thick(picture))
