"""Figures of places: boxes by class, by similarity and on X-rays, and segmentation, beside the ground truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gamlens import metrics, render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures.request import PREDICTED, TRUE, Ask, Box, Example, couples, keys_for, with_targets
from gamlens.render import Grid, Panel

ORDER = ("gam", "grad_cam_pp", "grad_cam")
LONGEST = 480
LINE = 5.5  # pixels of a picture LONGEST long


def localization(ask: Ask) -> Grid:
    """Boxes by class: the true box, then each method's map with the box around it and its IoU."""
    rows, labels = [], []
    for example in with_targets(ask).examples:
        results = _by_class(ask, example)
        rows.append(_box_row(ask, example, results))
        labels.append(example.title or results["gam"].names[0])
    return _grid(ask, rows, labels, box=True)


def similarity(ask: Ask) -> Grid:
    """Boxes by similarity, two rows a pair."""
    rows, labels = [], []
    for pair in couples(ask):
        trace = ask.lens.trace_pair(pair[0].image, pair[1].image, n=ask.most)
        both = {name: trace.explain(name, ask.blocks_of(name), score=ask.score) for name in ORDER}
        for side, example in zip("xy", pair, strict=True):
            rows.append(_box_row(ask, example, {name: getattr(result, side) for name, result in both.items()}))
            labels.append(example.title if example.title else ask.score)
    return replace(_grid(ask, rows, labels, box=True), breaks=tuple(range(2, len(rows), 2)))


def xray(ask: Ask) -> Grid:
    """Boxes by finding on X-rays, which must have ground truth."""
    if not any(example.boxes for example in ask.examples):
        raise GamlensError(
            "The X-ray figure shows findings beside their true boxes, and none of the images has one: give --data "
            "chestxray --root FOLDER (NIH's layout), and a model such as --model chexnet --weights FILE."
        )
    return localization(ask)


def segmentation(ask: Ask) -> Grid:
    """The true mask, then each method's map with the outline of the pixels it keeps, and its IoU."""
    rows, labels = [], []
    for example in with_targets(ask).examples:
        results = _by_class(ask, example)
        shown = [mask_panel(result, example, ask.threshold) for result in results.values()]
        rows.append((truth_panel(example, results["gam"].image()), *shown))
        labels.append(example.title or results["gam"].names[0])
    return _grid(ask, rows, labels, mask=True)


def truth_panel(example: Example, image: Image.Image) -> Panel:
    """The photo with its true mask or boxes."""
    picture = _small(image)
    if example.mask is not None:
        mask = _fit_mask(example.mask, picture)
        return Panel(render.outlined(picture, mask, colour=TRUE, thick=_thick(picture)), alt="the true mask")
    return Panel(_true_boxes(picture, _truth(example, image, picture)), alt="the photo with its true boxes")


def box_panel(result: Explanation, example: Example, threshold: float) -> Panel:
    """A map of one row with its box and the true ones; IoU beneath."""
    image = result.image()
    picture = _small(result.overlay())
    found = [tuple(box) for box in result.boxes(threshold).tolist() if any(box)]
    predicted, truth = _scaled(found, _size(image), picture), _truth(example, image, picture)
    picture = _true_boxes(picture, truth)
    picture = render.boxed(picture, predicted, colour=PREDICTED, thick=_thick(picture))
    return Panel(picture, caption=_box_iou(predicted, truth), alt=f"{result.names[0]}: saliency and boxes")


def mask_panel(result: Explanation, example: Example, threshold: float) -> Panel:
    """A map of one row with the outline of the pixels that reach the threshold; IoU beneath."""
    picture = _small(result.overlay())
    mask = _fit_mask(np.asarray(result.full() >= threshold), picture)
    lines = render.outlined(picture, mask, colour=PREDICTED, thick=_thick(picture))
    return Panel(lines, caption=_mask_iou(result, example, threshold), alt=f"{result.names[0]}: saliency, outlined")


def _by_class(ask: Ask, example: Example) -> dict[str, Explanation]:
    target = None if example.target is None else [example.target]
    trace = ask.lens.trace(example.image, target, n=ask.most)
    return {name: trace.explain(name, ask.blocks_of(name)) for name in ORDER}


def _box_row(ask: Ask, example: Example, results: dict[str, Explanation]) -> tuple[Panel, ...]:
    shown = [box_panel(result, example, ask.threshold) for result in results.values()]
    return (truth_panel(example, results["gam"].image()), *shown)


def _truth(example: Example, image: Image.Image, picture: Image.Image) -> list[Box]:
    """The true boxes in pixels of the picture shown."""
    return _scaled(example.boxes, example.size or _size(image), picture)


def _true_boxes(picture: Image.Image, truth: list[Box]) -> Image.Image:
    return render.boxed(picture, truth, colour=TRUE, dashed=True, thick=_thick(picture))


def _box_iou(predicted: list[Box], truth: list[Box]) -> str:
    if not truth:
        return ""
    box = torch.tensor(predicted[:1] or [(0.0, 0.0, 0.0, 0.0)])
    return f"IoU {float(metrics.box_iou(box, [torch.tensor(truth)])[0]):.2f}"


def _mask_iou(result: Explanation, example: Example, threshold: float) -> str:
    """IoU in the model's input space, as the evaluation measures it."""
    if example.mask is None:
        return ""
    truth, void = (
        None if mask is None else result.frames[0].mask_in(torch.from_numpy(np.ascontiguousarray(mask)))[None]
        for mask in (example.mask, example.void)
    )
    assert truth is not None
    grid = metrics.mask_iou_grid(result.maps.cpu(), truth, void, thresholds=[threshold])
    return f"IoU {float(grid[0, 0]):.2f}"


def _scaled(boxes: Iterable[Sequence[float]], size: tuple[int, int], picture: Image.Image) -> list[Box]:
    right, down = picture.width / size[1], picture.height / size[0]
    return [(x0 * right, y0 * down, x1 * right, y1 * down) for x0, y0, x1, y1 in boxes]


def _thick(picture: Image.Image) -> float:
    """Lines of one width in print, whatever the picture's shape; the usual one is a 180th of the shorter side."""
    return LINE * 180 / LONGEST * max(picture.size) / min(picture.size)


def _small(image: Image.Image) -> Image.Image:
    copy = image.copy()
    copy.thumbnail((LONGEST, LONGEST))
    return copy


def _size(image: Image.Image) -> tuple[int, int]:
    return image.height, image.width


def _fit_mask(mask: NDArray[np.bool_], picture: Image.Image) -> NDArray[np.bool_]:
    return np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST), dtype=bool)


def _grid(ask: Ask, rows: list[tuple[Panel, ...]], labels: list[str], *, box: bool = False, mask: bool = False) -> Grid:
    truth = any(example.boxes or example.mask is not None for example in ask.examples)
    heads = ("Ground truth" if truth else "Photo", *map(ask.head, ORDER))
    keys = keys_for(box, mask, truth, ask.threshold)
    return Grid(tuple(rows), heads, tuple(labels), keys=keys)
