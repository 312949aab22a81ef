"""Measures of saliency maps, one file a family. Tensors in, a value an item out; `aggregate` makes the table's number.

A value is NaN where the item has nothing to measure (no positive confidence, no ground truth): it counts nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gamlens.errors import GamlensError, near
from gamlens.metrics.adp import Adp, adp, drop, increase, pic
from gamlens.metrics.aggregate import Better, Difference, Interval, bootstrap, improvement, paired, sign_test
from gamlens.metrics.curves import auc, order, steps
from gamlens.metrics.iou import (
    THRESHOLDS,
    BoxAccuracy,
    best_threshold,
    box_hits,
    box_iou,
    box_iou_grid,
    boxes_at,
    iou_grid,
    mask_iou_grid,
    max_box_acc,
)
from gamlens.metrics.masking import CONTROLS, Fill, blank, centre, centre_prior, explain_mask, ones
from gamlens.metrics.pointing import peak, pointing, pointing_mask
from gamlens.metrics.similarity import hog, hog_pearson, pearson, ranks, spearman, ssim


@dataclass(frozen=True)
class Metric:
    """An entry of METRICS: `fn` gives a value an item (N,), or one an item and threshold (N,T).

    The table's number is 100 x the mean over the items that are not NaN, at one threshold where there are several.
    """

    fn: Callable[..., Tensor]
    title: str
    better: Better


METRICS: dict[str, Metric] = {
    "adp": Metric(drop, "ADP", "down"),
    "pic": Metric(increase, "PIC", "up"),
    "iou": Metric(iou_grid, "IoU", "up"),
    "mask_iou": Metric(mask_iou_grid, "Mask IoU", "up"),
    "max_box_acc": Metric(box_hits, "MaxBoxAcc", "up"),
    "pointing": Metric(pointing, "Pointing game", "up"),
    "pointing_mask": Metric(pointing_mask, "Pointing game (mask)", "up"),
    "insertion": Metric(auc, "Insertion", "up"),
    "deletion": Metric(auc, "Deletion", "down"),
}


@dataclass(frozen=True)
class Similarity:
    """An entry of SIMILARITIES: `describe` makes of maps (N,H,W) what `compare` compares, row by row, to (N,)."""

    describe: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]
    title: str


SIMILARITIES: dict[str, Similarity] = {
    "ssim": Similarity(lambda maps: maps, ssim, "SSIM"),
    "spearman": Similarity(ranks, pearson, "Spearman"),
    "hog": Similarity(hog, pearson, "Pearson of HOG"),
}


def find(name: str) -> Metric:
    """The metric of that name, or an error with near matches."""
    if name not in METRICS:
        raise GamlensError(f"There is no metric {name!r}: {near(str(name), METRICS)}")
    return METRICS[name]


__all__ = [
    "CONTROLS",
    "METRICS",
    "SIMILARITIES",
    "THRESHOLDS",
    "Adp",
    "Better",
    "BoxAccuracy",
    "Difference",
    "Fill",
    "Interval",
    "Metric",
    "Similarity",
    "adp",
    "auc",
    "best_threshold",
    "blank",
    "bootstrap",
    "box_hits",
    "box_iou",
    "box_iou_grid",
    "boxes_at",
    "centre",
    "centre_prior",
    "drop",
    "explain_mask",
    "find",
    "hog_pearson",
    "improvement",
    "increase",
    "iou_grid",
    "mask_iou_grid",
    "max_box_acc",
    "ones",
    "order",
    "paired",
    "peak",
    "pic",
    "pointing",
    "pointing_mask",
    "sign_test",
    "spearman",
    "ssim",
    "steps",
]
