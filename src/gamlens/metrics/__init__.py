"""Metrics of saliency maps, one file per family: functions from tensors to one value per item.

METRICS drives the evaluation: what is measured, stored, and shown in tables and reports follows from its entries
(`Metric` in metric.py). `aggregate` makes the numbers of tables from the values of items.

A value is NaN where there is nothing to measure (no positive score, no ground truth); means leave such an item out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gamlens.errors import Registry
from gamlens.metrics.adp import (
    EQUAL_MASS_COLUMNS,
    SCORE_COLUMNS,
    drop,
    drop_value,
    equal_mass_drop,
    equal_mass_value,
    increase,
    increase_value,
    measure_equal_mass,
    measure_scores,
)  # fmt: skip
from gamlens.metrics.aggregate import Better, Clusters, Difference, Interval, bootstrap, improvement, paired, sign_test
from gamlens.metrics.curves import auc, measure_deletion, measure_insertion, order, steps
from gamlens.metrics.iou import box_hits, box_iou, boxes_at, hits_value, iou_grid, mask_iou_grid, measure_boxes
from gamlens.metrics.masking import (
    BLUR_KERNEL,
    BLUR_SIGMA,
    CONTROLS,
    REFINED_CONTROLS,
    Fill,
    blurred,
    centre,
    centre_prior,
    chance,
    check_blur,
    equal_mass,
    explain_mask,
)  # fmt: skip
from gamlens.metrics.metric import KINDS, Metric, MetricInput, MetricValues, StoredColumns
from gamlens.metrics.pointing import measure_pointing_mask, peak, pointing, pointing_mask
from gamlens.metrics.pxap import pxap
from gamlens.metrics.similarity import hog, pearson, ranks, ssim
from gamlens.metrics.thresholds import THRESHOLDS, best_threshold

# The order is that of tables and of the columns in files. The first metric of a kind leads its reports.
METRICS: dict[str, Metric] = Registry("metric", {
    "iou": Metric(iou_grid, "IoU", "up", ("localization",), {"iou": "[float32]"}, measure_boxes,
                  details={"boxes": "[int16]", "truth": "[float32]"}),
    "max_box_acc": Metric(box_hits, "MaxBoxAcc", "up", ("localization",), {"iou": "[float32]"}, measure_boxes,
                          hits_value),
    "pointing": Metric.on_boxes(pointing, "Pointing", "up", column="pointing"),
    "pxap": Metric.on_boxes(pxap, "PxAP", "up", column="pxap"),
    "mask_iou": Metric.on_masks(mask_iou_grid, "IoU", "up", column="iou", type="[float32]"),
    "pointing_mask": Metric(pointing_mask, "Pointing", "up", ("segmentation",), {"pointing": "float64"},
                            measure_pointing_mask),
    "adp": Metric(drop, "ADP", "down", ("objective",), SCORE_COLUMNS, measure_scores, drop_value,
                  needs_positive_score=True, item_title="drop"),
    "pic": Metric(increase, "PIC", "up", ("objective",), SCORE_COLUMNS, measure_scores, increase_value),
    "adp_equal_mass": Metric(equal_mass_drop, "ADP (equal mass)", "down", ("objective",), EQUAL_MASS_COLUMNS,
                             measure_equal_mass, equal_mass_value, needs_positive_score=True,
                             item_title="drop (equal mass)"),
    "insertion": Metric(auc, "Insertion", "up", ("objective",), {"insertion": "float64"}, measure_insertion),
    "deletion": Metric(auc, "Deletion", "down", ("objective",), {"deletion": "float64"}, measure_deletion),
})  # fmt: skip


@dataclass(frozen=True)
class Similarity:
    """An entry of SIMILARITIES: a measure of how alike two maps are.

    Attributes:
        describe: Computes the features of maps: (N,H,W) -> (N,...).
        compare: Compares the features of two sets of maps row by row: (N,...), (N,...) -> (N,).
        title: Its name in tables.
    """

    describe: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]
    title: str


SIMILARITIES: dict[str, Similarity] = {
    "ssim": Similarity(lambda maps: maps, ssim, "SSIM"),
    "spearman": Similarity(ranks, pearson, "Spearman"),
    "hog": Similarity(hog, pearson, "Pearson of HOG"),
}
