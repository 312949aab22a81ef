"""Measures of saliency maps, one file per family: tensors in, one value per item out; `aggregate` makes the numbers of
tables from them.

A value is NaN where there is nothing to measure (no positive confidence, no ground truth); such an item counts nowhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gamlens.errors import Registry
from gamlens.metrics.adp import drop, increase
from gamlens.metrics.aggregate import Better, Difference, Interval, bootstrap, improvement, paired, sign_test
from gamlens.metrics.curves import auc, order, steps
from gamlens.metrics.iou import THRESHOLDS, best_threshold, box_hits, box_iou, boxes_at, iou_grid, mask_iou_grid
from gamlens.metrics.masking import CONTROLS, Fill, centre, centre_prior, explain_mask
from gamlens.metrics.pointing import peak, pointing, pointing_mask
from gamlens.metrics.similarity import hog, pearson, ranks, ssim


@dataclass(frozen=True)
class Metric:
    """An entry of METRICS: `fn` gives one value per item (N,), or one per item and threshold (N,T).

    The number in a table is 100 x the mean over the items that are not NaN, at one threshold where there are several.
    """

    fn: Callable[..., Tensor]
    title: str
    better: Better


METRICS: dict[str, Metric] = Registry("metric", {
    "adp": Metric(drop, "ADP", "down"),
    "pic": Metric(increase, "PIC", "up"),
    "iou": Metric(iou_grid, "IoU", "up"),
    "mask_iou": Metric(mask_iou_grid, "Mask IoU", "up"),
    "max_box_acc": Metric(box_hits, "MaxBoxAcc", "up"),
    "pointing": Metric(pointing, "Pointing", "up"),
    "pointing_mask": Metric(pointing_mask, "Pointing (mask)", "up"),
    "insertion": Metric(auc, "Insertion", "up"),
    "deletion": Metric(auc, "Deletion", "down"),
})  # fmt: skip


@dataclass(frozen=True)
class Similarity:
    """An entry of SIMILARITIES: `describe` turns maps (N,H,W) into features, `compare` those of two sets into one
    similarity per row (N,).
    """

    describe: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]
    title: str


SIMILARITIES: dict[str, Similarity] = {
    "ssim": Similarity(lambda maps: maps, ssim, "SSIM"),
    "spearman": Similarity(ranks, pearson, "Spearman"),
    "hog": Similarity(hog, pearson, "Pearson of HOG"),
}
