"""How the score changes when the model sees image x map: ADP and PIC (Chattopadhay et al., WACV 2018), average gain
(Zhang et al., Opti-CAM, 2023).
"""

import torch
from torch import Tensor

from gamlens.metrics._checks import check_scores
from gamlens.metrics.metric import MeasuredColumns, MetricInput, MetricValues, StoredColumns

# The columns of scores that a run may have, before and after masking. Runs of classes have logit and probability, runs
# of pairs have similarity.
SCORE_COLUMNS: dict[str, str] = {
    f"{when}_{name}": "float64" for name in ("logit", "probability", "similarity") for when in ("before", "after")
}


EQUAL_MASS_COLUMNS = {f"equal_mass_drop_{name}": "float64" for name in ("logit", "probability", "similarity")}
NO_SCORE = "had no positive score to drop from"
NO_GAIN = "had the highest score already"


def drop(before: Tensor, after: Tensor) -> Tensor:
    """The share of the score that is lost when the model sees image x map, max(0, Y - O) / Y: (N,), (N,) -> (N,).
    Y is the score of the whole image, O that of image x map. ADP is 100 x the mean over the items with Y > 0.

    The share is NaN where Y <= 0, and above 1 where O < 0.

    >>> drop(torch.tensor([4.0, 4.0, -1.0]), torch.tensor([3.0, 5.0, 2.0]))
    tensor([0.2500, 0.0000,    nan])
    """
    check_scores(before, after)
    usable = before > 0
    return torch.where(usable, (before - after).clamp(min=0) / torch.where(usable, before, 1), torch.nan)


def equal_mass_drop(before: Tensor, after: Tensor) -> Tensor:
    """The same share where every value of the map is replaced by its rank in the map (`equal_mass`), so that all maps
    show equally much of the image and none gains by its brightness: (N,), (N,) -> (N,).
    """
    return drop(before, after)


def increase(before: Tensor, after: Tensor) -> Tensor:
    """Whether the score rises when the model sees image x map, O > Y: (N,), (N,) -> (N,) bool. PIC is 100 x the mean
    over all items.
    """
    check_scores(before, after)
    return after > before


def gain(before: Tensor, after: Tensor) -> Tensor:
    """The share of what is missing to a score of 1 that is gained when the model sees image x map,
    max(0, O - Y) / (1 - Y): (N,), (N,) -> (N,). Y is the score of the whole image, O that of image x map, both at most
    1: probabilities, or cosines. Average gain is 100 x the mean over the items with Y < 1.

    >>> gain(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0.75, 0.25, 1.0]))
    tensor([0.5000, 0.0000,    nan])
    """
    check_scores(before, after)
    missing = 1 - before
    usable = missing > 0
    return torch.where(usable, (after - before).clamp(min=0) / torch.where(usable, missing, 1), torch.nan)


def measure_scores(given: MetricInput) -> MeasuredColumns:
    """Fill SCORE_COLUMNS with the scores before and after masking; None for a score that the evaluation lacks."""
    found = {"before": given.before, "after": given.after}
    return {column: found[when].get(name) for column in SCORE_COLUMNS for when, name in [column.split("_")]}


def drop_value(stored: StoredColumns) -> MetricValues:
    """The drop of every item from the stored scores."""
    values = drop(*_before_after(stored))
    missing = int(values.isnan().sum())
    return MetricValues(100 * values, left_out=missing, why=NO_SCORE if missing else "")


def increase_value(stored: StoredColumns) -> MetricValues:
    """The increase of every item from the stored scores."""
    return MetricValues(100 * increase(*_before_after(stored)).double())


def gain_value(stored: StoredColumns) -> MetricValues:
    """The gain of every item: of the probability, whatever score the table is made for, or of the similarity.

    It is NaN for a run that stored neither.
    """
    if not {"before_probability", "before_similarity"} & stored.columns.keys():
        nothing = next(iter(stored.columns.values())).double() * torch.nan
        return MetricValues(nothing)
    values = gain(*_before_after(stored, confidence="probability"))
    missing = int(values.isnan().sum())
    return MetricValues(100 * values, left_out=missing, why=NO_GAIN if missing else "")


def measure_equal_mass(given: MetricInput) -> MeasuredColumns:
    """Fill EQUAL_MASS_COLUMNS with the drop of every score under the ranks of the map; None if it was not measured."""
    found: dict[str, Tensor | None] = dict.fromkeys(EQUAL_MASS_COLUMNS)
    for name, after in given.equal_mass.items():
        found[f"equal_mass_drop_{name}"] = equal_mass_drop(given.before[name], after)
    return found


def equal_mass_value(stored: StoredColumns) -> MetricValues:
    """The drop of every item under the ranks of its map."""
    own = "equal_mass_drop_similarity"
    values = stored.columns[own if own in stored.columns else f"equal_mass_drop_{stored.confidence}"]
    missing = int(values.isnan().sum())
    return MetricValues(100 * values.double(), left_out=missing, why=NO_SCORE if missing else "")


def _before_after(stored: StoredColumns, *, confidence: str = "") -> tuple[Tensor, Tensor]:
    """Return the scores before and after masking, (N,) each.

    For a run of pairs it is the similarity; for a run of classes `confidence`, or else what `stored.confidence` names.
    """
    name = "similarity" if "before_similarity" in stored.columns else confidence or stored.confidence
    return stored.columns[f"before_{name}"], stored.columns[f"after_{name}"]
