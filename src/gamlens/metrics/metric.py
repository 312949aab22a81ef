"""What an entry of METRICS says: how a metric is measured, which columns it fills, and how a table follows from them.

`evaluation` makes the maps, runs the model and hands both over as a `MetricInput`; a metric's `measure` turns that into
columns of one value per item, which a run stores. `value` makes the number of a table from the stored columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from gamlens.errors import GamlensError, near
from gamlens.metrics.aggregate import Better
from gamlens.metrics.thresholds import THRESHOLDS, best_threshold

KINDS = ("objective", "localization", "segmentation")


@dataclass(frozen=True, eq=False)
class MetricInput:
    """What a metric can read: the maps of one method on N items, and what belongs to these items.

    A field that this kind of evaluation does not have is empty or None.

    All tensors lie on the CPU, except `maps` where there is no ground truth: these stay where the model is.

    Args:
        maps: Saliency maps in [0,1], (N,H,W).
        boxes: localization: the ground-truth boxes x0,y0,x1,y1 of every item in pixels of the map, N of (K_i,4).
        predicted: localization: the box that the evaluation takes from each map at each of THRESHOLDS, (N,T,4).
        mask: segmentation: the object, bool (N,H,W).
        void: segmentation: pixels that are neither object nor background, bool (N,H,W).
        before: objective: the explained score on the whole image by its name ("logit", "probability",
            "similarity"), (N,) each.
        after: objective: the same scores on image x map.
        equal_mass: objective, if it was asked for: the scores on image x map where every value of the map is replaced
            by its rank.
        inserted: objective, if curves were asked for: the probability (of pairs: the similarity) while pixels appear
            in the map's order, (S,N).
        deleted: objective, if curves were asked for: the same while pixels vanish in the map's order, (S,N).
        most_removed: objective, if ROAD was asked for: the probability (of pairs: the similarity) after the p % of
            pixels with the highest values were imputed, for each p, (P,N).
        least_removed: objective, if ROAD was asked for: the same for the p % of pixels with the lowest values.
        maps_of_masked: objective, if it was asked for: the maps that the same explainer makes of image x map, (N,H,W).
        maps_of_noisy: objective, if it was asked for: the maps that the same explainer makes of the image with K
            different small perturbations, (K,N,H,W).
        hidden: objective, if infidelity was asked for: which pixels K perturbations hide, bool (K,N,H,W).
        hidden_change: objective, if infidelity was asked for: by how much each of these perturbations lowers the
            probability (of pairs: the similarity), before minus after, (K,N).
        seconds: The time that making the map took, per image (N,); NaN or None where it was not measured.
        peak_bytes: The memory that making the map took at its peak, per image (N,), in the same way.
    """

    maps: Tensor
    boxes: Sequence[Tensor] = ()
    predicted: Tensor | None = None
    mask: Tensor | None = None
    void: Tensor | None = None
    before: Mapping[str, Tensor] = field(default_factory=dict)
    after: Mapping[str, Tensor] = field(default_factory=dict)
    equal_mass: Mapping[str, Tensor] = field(default_factory=dict)
    inserted: Tensor | None = None
    deleted: Tensor | None = None
    most_removed: Tensor | None = None
    least_removed: Tensor | None = None
    maps_of_masked: Tensor | None = None
    maps_of_noisy: Tensor | None = None
    hidden: Tensor | None = None
    hidden_change: Tensor | None = None
    seconds: Tensor | None = None
    peak_bytes: Tensor | None = None


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The columns of one metric that a run stored for one method and n.

    Args:
        columns: {column: (N,) or (N,T)}, NaN where a value is missing.
        held_out: The items on which thresholds are chosen, bool (N,).
        confidence: The class score that the table is made for: "logit" or "probability".
    """

    columns: Mapping[str, Tensor]
    held_out: Tensor
    confidence: str = "logit"


@dataclass(frozen=True, eq=False)
class MetricValues:
    """A metric's value for every item (N,), NaN where it has none; in percent, or in the metric's own `unit`.

    Args:
        values: (N,).
        counted: The items that the table's mean is taken over, bool (N,). The others are held out. None means all
            items.
        threshold: The threshold of `values`, for a metric that has one value per threshold.
        grid: The values at all of THRESHOLDS, (N,T), for such a metric.
        left_out: How many items the table leaves out.
        why: Why they are left out, as the rest of the sentence "12 items ...", such as "belong to the hold-out".
    """

    values: Tensor
    counted: Tensor | None = None
    threshold: float | None = None
    grid: Tensor | None = None
    left_out: int = 0
    why: str = ""


MeasuredColumns = Mapping[str, Tensor | Sequence[object] | None]
MeasureFunction = Callable[[MetricInput], MeasuredColumns]
ValueFunction = Callable[[StoredColumns], MetricValues]


def first_column(stored: StoredColumns) -> MetricValues:
    """Return 100 x the metric's first column. If it is (N,T), the threshold is the best one on the held-out items."""
    values = next(iter(stored.columns.values())).double()
    if values.ndim == 2:
        return at_best_threshold(values, stored.held_out)
    missing = int(values.isnan().sum())
    return MetricValues(100 * values, left_out=missing, why="have nothing to measure" if missing else "")


def at_best_threshold(grid: Tensor, held_out: Tensor) -> MetricValues:
    """Choose the threshold with the best mean over the held-out items, and count the other items: (N,T), (N,).

    If no item or every item is held out, the threshold is chosen on all items, and all are counted.
    """
    counted = counted_items(held_out)
    best = best_threshold(grid if bool(counted.all()) else grid[held_out])
    return cut_at(grid, best, counted)


def at_own_threshold(grid: Tensor, held_out: Tensor) -> MetricValues:
    """Choose the threshold with the best mean over the counted items, those that are not held out: (N,T), (N,)."""
    counted = counted_items(held_out)
    return cut_at(grid, best_threshold(grid[counted]), counted)


def cut_at(grid: Tensor, index: int, counted: Tensor) -> MetricValues:
    """Take the values of a grid (N,T) at the threshold with this index. `counted` (N,) are the items of the table."""
    left_out = int((~counted).sum())
    why = "belong to the hold-out" if left_out else ""
    return MetricValues(100 * grid[:, index], counted, float(THRESHOLDS[index]), 100 * grid, left_out, why)


@dataclass(frozen=True)
class Metric:
    """An entry of METRICS: `fn` gives one value per item (N,), or one per item and threshold (N,T).

    The number in a table is 100 x the mean over the items that are not NaN, at one threshold where there are several;
    where `unit` is not "%", it is the mean itself.

    Args:
        fn: The metric itself, a function of tensors.
        title: Its name in tables; unique among the metrics of a kind.
        better: Whether a better map has a higher value ("up") or a lower one ("down").
        kinds: The kinds of evaluation (KINDS) that measure it. If empty, no evaluation does: it is only a function.
        columns: What a run stores and `value` reads: {column: type}. A type is Arrow's name, such as "float64"; in
            brackets, "[float32]", it is a list of T values per item. Metrics may share a column; they then share
            `measure`, which runs once for all of them.
        measure: A function from a MetricInput of N items to {column: (N,), (N,T), or a list of N}, with every column of
            `columns` and `details`. None for a column says that this evaluation does not have it.
        value: A function from the stored columns to the values of a table; by default `first_column`.
        details: Further columns that `measure` fills, for looking at single items; no table reads them. A list may
            have a different length for each item.
        needs_positive_score: The metric is a share of the explained score, so that it has no meaning for a score that
            may be zero or negative: tables of such runs leave it out.
        needs_score_up_to_one: The metric is a share of what is missing to a score of 1, so that it has no meaning for a
            score that may be higher: tables of such runs leave it out.
        item_title: What the value of a single item is called, where that is not `title`.
        unit: The unit of the values that `value` gives: "%", or another such as "ms".
        fooled_by: One sentence that says which of the control maps (CONTROLS) can have a good value, and why.
    """

    fn: Callable[..., Tensor]
    title: str
    better: Better
    kinds: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    measure: MeasureFunction | None = None
    value: ValueFunction = first_column
    details: Mapping[str, str] = field(default_factory=dict)
    needs_positive_score: bool = False
    needs_score_up_to_one: bool = False
    item_title: str = ""
    unit: str = "%"
    fooled_by: str = ""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise GamlensError(
                    f"Metric {self.title!r}: there is no kind of evaluation {kind!r}: {near(kind, KINDS)}"
                )
        if self.kinds and (self.measure is None or not self.columns):
            kinds = ", ".join(self.kinds)
            raise GamlensError(f"Metric {self.title!r} is measured for {kinds}: give it `columns` and `measure`.")

    @classmethod
    def on_boxes(
        cls,
        fn: Callable[..., Tensor],
        title: str,
        better: Better,
        *,
        column: str,
        type: str = "float64",
        fooled_by: str = "",
    ) -> "Metric":
        """A metric of maps and ground-truth boxes, fn(maps (N,H,W), boxes: N of (K_i,4)) -> (N,), in its own column.

        With type "[float32]" `fn` gives one value per threshold of THRESHOLDS, (N,T).
        """
        measure = partial(_on_boxes, fn, column)
        return cls(fn, title, better, ("localization",), {column: type}, measure, fooled_by=fooled_by)

    @classmethod
    def on_masks(
        cls,
        fn: Callable[..., Tensor],
        title: str,
        better: Better,
        *,
        column: str,
        type: str = "float64",
        fooled_by: str = "",
    ) -> "Metric":
        """A metric of maps and masks, fn(maps, mask, void), (N,H,W) each -> (N,), in its own column.

        With type "[float32]" `fn` gives one value per threshold of THRESHOLDS, (N,T).
        """
        measure = partial(_on_masks, fn, column)
        return cls(fn, title, better, ("segmentation",), {column: type}, measure, fooled_by=fooled_by)


def _on_boxes(fn: Callable[..., Tensor], column: str, given: MetricInput) -> MeasuredColumns:
    return {column: fn(given.maps, given.boxes)}


def _on_masks(fn: Callable[..., Tensor], column: str, given: MetricInput) -> MeasuredColumns:
    return {column: fn(given.maps, given.mask, given.void)}


def counted_items(held_out: Tensor) -> Tensor:
    """The items that a table counts, bool (N,): those that are not held out, or all if every item is held out."""
    return ~held_out if not bool(held_out.all()) else torch.ones_like(held_out)
