"""The columns of a run as METRICS defines them: their types, their values for a batch of maps, and which metrics a run
has. It is an error if a metric does not fill a column that it declares, or fills one that it does not declare, so that
no measured value is lost.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.metrics import METRICS, Metric, MetricInput
from gamlens.scores import PAIR_SCORES


def metrics_of(*kinds: str) -> dict[str, Metric]:
    """The metrics that these kinds of evaluation measure, in the order of METRICS. A kind may stand for two: "a+b"."""
    wanted = {part for kind in kinds for part in kind.split("+")}
    return {name: metric for name, metric in METRICS.items() if not wanted.isdisjoint(metric.kinds)}


def metric_column_types() -> dict[str, str]:
    """The type of every column that a metric may fill, in the order of METRICS."""
    types: dict[str, str] = {}
    for name, metric in METRICS.items():
        for column, kind in {**metric.columns, **metric.details}.items():
            if types.setdefault(column, kind) != kind:
                raise GamlensError(
                    f"Metric {name!r} declares the column {column!r} as {kind}, another metric as {types[column]}: "
                    "a column has one type, so rename one of them."
                )
    return types


def table_columns() -> tuple[str, ...]:
    """The columns that tables are made from."""
    return tuple(dict.fromkeys(column for metric in METRICS.values() for column in metric.columns))


def measure_metrics(kinds: tuple[str, ...], given: MetricInput) -> dict[str, list[Any]]:
    """The columns of every metric of these kinds, as lists of one value per item. A shared `measure` runs once."""
    chosen = metrics_of(*kinds)
    found: dict[str, list[Any]] = {}
    for measure in dict.fromkeys(metric.measure for metric in chosen.values()):
        assert measure is not None
        mine = {name: metric for name, metric in chosen.items() if metric.measure is measure}
        who = f"The metric {' / '.join(map(repr, mine))}"
        types = {column: kind for m in mine.values() for column, kind in {**m.columns, **m.details}.items()}
        columns = measure(given)
        for column in columns:
            if column not in types:
                raise GamlensError(f"{who} measured a column {column!r} that it does not declare: add it to `columns`.")
            if column in found:
                raise GamlensError(f"{who} measured the column {column!r}, which another metric fills: rename one.")
        for column, kind in types.items():
            if column not in columns:
                raise GamlensError(f"{who} declares the column {column!r}, and its `measure` did not return it.")
            if (values := columns[column]) is not None:
                found[column] = _listed(f"{who}, column {column!r}", values, kind, len(given.maps))
    return found


def needs_positive(about: Mapping[str, Any]) -> list[str]:
    """The titles of the metrics that have no meaning for a run, because its pair score may be zero or negative, or
    higher than 1.
    """
    return list(dict.fromkeys(title for titles in _senseless(about).values() for title in titles))


def left_out_note(about: Mapping[str, Any]) -> str:
    """A sentence about the metrics that the tables of a run leave out, and why; "" if they have all metrics."""
    task = about["protocol"]["task"]
    reasons = {
        "positive": f"It is a share of the explained score, and the score {task!r} may be zero or negative.",
        "up_to_one": f"It is a share of what is missing to a score of 1, and the score {task!r} may be higher.",
    }
    found = _senseless(about).items()
    return " ".join(f"Left out: {', '.join(titles)}. {reasons[what]}" for what, titles in found if titles)


def _senseless(about: Mapping[str, Any]) -> dict[str, list[str]]:
    """The titles of metrics without meaning for a run, by the property that its pair score lacks."""
    protocol = about["protocol"]
    if protocol["task"] not in PAIR_SCORES:
        return {}
    score, chosen = PAIR_SCORES[protocol["task"]], metrics_of(protocol["kind"]).values()
    found: dict[str, list[str]] = {}
    if not score.positive:
        found["positive"] = [metric.title for metric in chosen if metric.needs_positive_score]
    if not score.up_to_one:
        found["up_to_one"] = [metric.title for metric in chosen if metric.needs_score_up_to_one]
    return found


def _listed(who: str, values: Any, kind: str, items: int) -> list[Any]:
    """Convert a column to a list with one value per item: a number, or a list if its type `kind` is in brackets."""
    if isinstance(values, Tensor):
        dimensions = 2 if kind.startswith("[") else 1
        if values.ndim != dimensions:
            expected = "(N,T)" if dimensions == 2 else "(N,)"
            raise GamlensError(f"{who}: {kind} takes a tensor of shape {expected}, found {tuple(values.shape)}.")
        values = (values.double() if values.dtype == torch.bool else values).tolist()
    if len(values) != items:
        raise GamlensError(f"{who}: there are {items} items, found {len(values)} values.")
    return list(values)
