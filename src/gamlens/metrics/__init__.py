"""Metrics of saliency maps, one file per family: functions from tensors to one value per item.

METRICS drives the evaluation: what is measured, stored, and shown in tables and reports follows from its entries
(`Metric` in metric.py). `aggregate` makes the numbers of tables from the values of items.

A value is NaN where there is nothing to measure (no positive score, no ground truth); means leave such an item out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gamlens.errors import Registry
from gamlens.metrics.adcc import ADCC_COLUMNS, COHERENCY_COLUMNS, adcc, coherency, complexity, measure_adcc
from gamlens.metrics.adp import (
    EQUAL_MASS_COLUMNS,
    SCORE_COLUMNS,
    drop,
    drop_value,
    equal_mass_drop,
    equal_mass_value,
    gain,
    gain_value,
    increase,
    increase_value,
    measure_equal_mass,
    measure_scores,
)  # fmt: skip
from gamlens.metrics.aggregate import Better, Clusters, Difference, Interval, bootstrap, improvement, paired, sign_test
from gamlens.metrics.cost import measure_memory, measure_time, megabytes, memory_value, milliseconds, time_value
from gamlens.metrics.curves import auc, measure_deletion, measure_insertion, order, steps
from gamlens.metrics.infidelity import infidelity, measure_infidelity
from gamlens.metrics.iou import (
    box_accuracy,
    box_accuracy_value,
    box_hits,
    box_iou,
    boxes_at,
    hits_value,
    iou_grid,
    mask_iou_grid,
    measure_boxes,
)  # fmt: skip
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
from gamlens.metrics.pxap import (
    PXAP_COLUMNS,
    level_counts,
    measure_pxap_mask,
    pooled_average_precision,
    pxap,
    pxap_mask,
    pxap_mask_value,
)  # fmt: skip
from gamlens.metrics.relevance import energy_pointing, relevance_mass, relevance_rank, relevance_rank_boxes
from gamlens.metrics.road import impute, measure_road_lerf, measure_road_morf, road
from gamlens.metrics.sensitivity import max_sensitivity, measure_max_sensitivity
from gamlens.metrics.similarity import hog, pearson, ranks, ssim
from gamlens.metrics.sparseness import measure_sparseness, sparseness
from gamlens.metrics.thresholds import THRESHOLDS, best_threshold

# The order is that of tables and of the columns in files. The first metric of a kind leads its reports.
METRICS: dict[str, Metric] = Registry("metric", {
    "iou": Metric(
        iou_grid, "IoU", "up", ("localization",), {"iou": "[float32]"}, measure_boxes,
        details={"boxes": "[int16]", "truth": "[float32]"},
        fooled_by="ones and centre: their box covers most of the image, as many objects do."),
    "max_box_acc": Metric(
        box_hits, "MaxBoxAcc", "up", ("localization",), {"iou": "[float32]"}, measure_boxes, hits_value,
        fooled_by="centre and ones: a box in the middle, or the whole image, has an IoU above 0.5 with large objects."),
    "max_box_acc_v2": Metric(
        box_accuracy, "MaxBoxAccV2", "up", ("localization",), {"iou": "[float32]"}, measure_boxes, box_accuracy_value,
        fooled_by="centre and ones, as MaxBoxAcc: at an IoU of 0.3 more often than at 0.5, and at 0.7 less often."),
    "pointing": Metric.on_boxes(
        pointing, "Pointing", "up", column="pointing",
        fooled_by="centre: photographs show their object in the middle. blank and ones point at the first pixel."),
    "energy_pointing": Metric.on_boxes(
        energy_pointing, "Energy pointing", "up", column="energy_pointing",
        fooled_by="centre, and for large objects also ones: it has the share of the image that the boxes cover."),
    "relevance_rank_boxes": Metric.on_boxes(
        relevance_rank_boxes, "Relevance rank", "up", column="relevance_rank_boxes",
        fooled_by="centre: the highest pixels lie in the middle, as the object does; flat maps have the boxes' share."),
    "pxap": Metric.on_boxes(
        pxap, "PxAP", "up", column="pxap",
        fooled_by="centre, and for large objects also the flat maps, which have the boxes' share of the image."),
    "mask_iou": Metric.on_masks(
        mask_iou_grid, "IoU", "up", column="iou", type="[float32]",
        fooled_by="centre, and for large objects also ones, which has the mask's share of the image."),
    "pointing_mask": Metric(
        pointing_mask, "Pointing", "up", ("segmentation",), {"pointing": "float64"}, measure_pointing_mask,
        fooled_by="centre: photographs show their object in the middle. blank and ones point at the first pixel."),
    "pxap_mask": Metric(
        pxap_mask, "PxAP", "up", ("segmentation",), PXAP_COLUMNS, measure_pxap_mask, pxap_mask_value,
        fooled_by="centre; large objects count most, since pixels are pooled, and they lie in the middle."),
    "relevance_mass": Metric.on_masks(
        relevance_mass, "Relevance mass", "up", column="relevance_mass",
        fooled_by="centre, and for large objects also ones, which has the mask's share of the image."),
    "relevance_rank": Metric.on_masks(
        relevance_rank, "Relevance rank", "up", column="relevance_rank",
        fooled_by="centre: the highest pixels lie in the middle, as the object does; flat maps have the mask's share."),
    "adp": Metric(
        drop, "ADP", "down", ("objective",), SCORE_COLUMNS, measure_scores, drop_value,
        needs_positive_score=True, item_title="drop",
        fooled_by="ones: it hides nothing, so nothing drops; other bright maps gain in the same way."),
    "pic": Metric(
        increase, "PIC", "up", ("objective",), SCORE_COLUMNS, measure_scores, increase_value,
        fooled_by="centre: hiding the surroundings often raises the score. ones has 0, since the score must rise."),
    "average_gain": Metric(
        gain, "Average gain", "up", ("objective",), SCORE_COLUMNS, measure_scores, gain_value,
        needs_score_up_to_one=True,
        fooled_by="centre: hiding the surroundings of the object raises the score. ones has 0, since nothing changes."),
    "adp_equal_mass": Metric(
        equal_mass_drop, "ADP (equal mass)", "down", ("objective",), EQUAL_MASS_COLUMNS, measure_equal_mass,
        equal_mass_value, needs_positive_score=True, item_title="drop (equal mass)",
        fooled_by="blank and ones: all ranks are equal, so the image is darkened evenly and stays recognisable."),
    "insertion": Metric(
        auc, "Insertion", "up", ("objective",), {"insertion": "float64"}, measure_insertion,
        fooled_by="centre: the middle of a photograph, shown first, often shows the object."),
    "deletion": Metric(
        auc, "Deletion", "down", ("objective",), {"deletion": "float64"}, measure_deletion,
        fooled_by="centre: hiding the middle of a photograph first often hides the object."),
    "road_morf": Metric(
        road, "ROAD MoRF", "down", ("objective",), {"road_morf": "float64"}, measure_road_morf,
        fooled_by="centre: removing the middle of a photograph often removes the object."),
    "road_lerf": Metric(
        road, "ROAD LeRF", "up", ("objective",), {"road_lerf": "float64"}, measure_road_lerf,
        fooled_by="centre: keeping the middle of a photograph longest often keeps the object."),
    "adcc": Metric(
        adcc, "ADCC", "up", ("objective",), ADCC_COLUMNS, measure_adcc, needs_positive_score=True,
        fooled_by="centre: it is the same map every time, so coherency is 1, with a moderate mean and drop."),
    "coherency": Metric(
        coherency, "Coherency", "up", ("objective",), COHERENCY_COLUMNS, measure_adcc,
        fooled_by="centre and random: they do not look at the image, so they are the same again."),
    "infidelity": Metric(
        infidelity, "Infidelity", "down", ("objective",), {"infidelity": "float64"}, measure_infidelity,
        fooled_by="centre comes closest: objects are in the middle; ones only knows that larger squares hide more."),
    "max_sensitivity": Metric(
        max_sensitivity, "Max-sensitivity", "down", ("objective",), {"max_sensitivity": "float64"},
        measure_max_sensitivity,
        fooled_by="all controls: they do not look at the image, so they never change and have 0."),
    "sparseness": Metric(
        sparseness, "Sparseness", "up", ("objective",), {"sparseness": "float64"}, measure_sparseness,
        fooled_by="centre, like any spot, and a smaller spot more: no model is asked whether it is the right place."),
    "time": Metric(
        milliseconds, "Time, ms", "down", KINDS, {"seconds": "float64"}, measure_time, time_value, unit="ms",
        fooled_by="all controls: they cost next to nothing, since they need no model."),
    "memory": Metric(
        megabytes, "Memory, MB", "down", KINDS, {"peak_bytes": "float64"}, measure_memory, memory_value, unit="MB",
        fooled_by="all controls: they need no model, so next to no memory."),
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
