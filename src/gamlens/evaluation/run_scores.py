"""The values of a run that its numbers are made from: every metric item by item, and which items belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.errors import GamlensError
from gamlens.evaluation.metric_columns import metrics_of, needs_positive, table_columns
from gamlens.evaluation.protocol import PAIR_MARK, kinds_of, variant
from gamlens.evaluation.results import Columns, Run
from gamlens.metrics import Difference, Interval, Metric, MetricValues, StoredColumns

CONFIDENCE_KINDS = ("logit", "probability")
CLUSTER_COLUMNS = ("item", "image")  # the columns of a run that `clusters` reads
WHOLE_IMAGES, WHOLE_PAIRS, LINKED_PAIRS = "images", "pairs", "groups of pairs"
RESAMPLED = {  # what intervals resample: {name of the clusters: what they are}
    WHOLE_IMAGES: "whole images (all labels of an image together)",
    WHOLE_PAIRS: "whole pairs (both maps of a pair together)",
    LINKED_PAIRS: "groups of pairs that share images, directly or through other pairs",
}


@dataclass(frozen=True)
class Setting:
    """The setting of a run: task, data and model; `variant` names the choices that are not the defaults."""

    task: str
    data: str
    subset: str
    model: str
    variant: str

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Setting:
        """The setting of a run, from its description."""
        protocol = about["protocol"]
        return cls(protocol["task"], about["data"], protocol["subset"], about["model"], variant(about))

    def columns(self) -> tuple[str, str, str]:
        """The task; the data with its subset and variant, such as `ilsvrc (25 %), views=flip`; the model."""
        data = self.data if self.subset == "all" else f"{self.data} ({self.subset} %)"
        return self.task, f"{data}, {self.variant}" if self.variant else data, self.model


@dataclass(frozen=True, eq=False)
class Score:
    """A metric of one method and n: its values in percent for every item, (N,), and the cluster of each of them."""

    metric: Metric
    found: MetricValues
    clusters: tuple[str, ...]

    @property
    def counted(self) -> Tensor:
        """The values of the items that the table counts: (M,)."""
        return self.found.values if self.found.counted is None else self.found.values[self.found.counted]

    @property
    def counted_clusters(self) -> tuple[str, ...]:
        """The clusters of the items that the table counts: M names."""
        if self.found.counted is None:
            return self.clusters
        return tuple(one for one, used in zip(self.clusters, self.found.counted.tolist(), strict=True) if used)

    @property
    def interval(self) -> Interval:
        """The number of the table: the mean and its interval, for which whole clusters are resampled."""
        return metrics.bootstrap(self.counted, clusters=self.counted_clusters)

    @property
    def independent(self) -> int:
        """How many clusters the items belong to that the mean is taken over."""
        values = self.counted.isnan().tolist()
        return len({one for one, missing in zip(self.counted_clusters, values, strict=True) if not missing})

    def minus(self, other: Score) -> Difference:
        """The paired difference to another method or n of the same run."""
        return metrics.paired(self.counted, other.counted, clusters=self.counted_clusters, better=self.metric.better)

    def gain_over(self, other: Score) -> Difference:
        """The paired difference with its sign turned so that plus is better."""
        sign = 1 if self.metric.better == "up" else -1
        return metrics.paired(sign * self.counted, sign * other.counted, clusters=self.counted_clusters)


def needed() -> tuple[str, ...]:
    """The columns that tables are made from, for `results.read`."""
    return ("held_out", *CLUSTER_COLUMNS, *table_columns())


def check_confidence(name: str) -> None:
    if name not in CONFIDENCE_KINDS:
        raise GamlensError(f"The confidence is {' or '.join(CONFIDENCE_KINDS)}, not {name!r}.")


def check_real(run: Run) -> None:
    if run.about["weights"] == "random":
        raise GamlensError(f"This run of {run.about['model']} was made with random weights, so it has no results.")


def of_pairs(about: Mapping[str, Any]) -> bool:
    """Whether a run measured pairs of images."""
    return bool(about["protocol"]["task"] != "classification")


def resampled(about: Mapping[str, Any], *, linked: bool = False) -> str:
    """The name in RESAMPLED of what the intervals of a run resample; `linked` as in `clusters`."""
    if not of_pairs(about):
        return WHOLE_IMAGES
    return LINKED_PAIRS if linked else WHOLE_PAIRS


def clusters(about: Mapping[str, Any], columns: Columns, *, linked: bool = False) -> tuple[str, ...]:
    """The cluster of each row: rows of one cluster are not independent, and intervals resample them together.

    Both maps of a pair are one cluster, and all labels of an image are one. With `linked`, pairs that share an image,
    directly or through other pairs, are one cluster too.
    """
    if of_pairs(about) and linked:
        return linked_pairs([str(item) for item in columns["item"]])
    items: list[str] = columns["item"]
    names: list[str | None] = columns.get("image", items) if not of_pairs(about) else [*items]
    return tuple(str(item if name is None else name) for name, item in zip(names, items, strict=True))


def linked_pairs(items: Sequence[str]) -> tuple[str, ...]:
    """The group of each pair `x~y`, named after its first image: pairs that share an image are in one group.

    >>> linked_pairs(["a~b", "c~d", "b~e"])
    ('a', 'c', 'a')
    """
    above: dict[str, str] = {}  # from an image to an image of its group with a smaller name, if there is one

    def first(image: str) -> str:
        while (other := above.setdefault(image, image)) != image:
            above[image] = above[other]
            image = other
        return image

    for item in dict.fromkeys(items):
        least, *others = sorted({first(image) for image in item.split(PAIR_MARK)})
        above |= dict.fromkeys(others, least)
    return tuple(first(item.split(PAIR_MARK)[0]) for item in items)


def sharing_pairs(items: Sequence[str]) -> int:
    """How many of the different pairs share an image with another one."""
    pairs = [item.split(PAIR_MARK) for item in dict.fromkeys(items)]
    times = Counter(image for names in pairs for image in {*names})
    return sum(any(times[image] > 1 for image in names) for names in pairs)


def scores(run: Run, columns: Columns, *, confidence: str = "logit", linked: bool = False) -> list[Score]:
    """Every metric of the run's kind, item by item, in percent; `linked` as in `clusters`.

    A metric of which the run has no column is left out: it was not asked for, or came after the run was made. So is one
    that has no meaning for the run's score (`left_out_note`).
    """
    senseless, found = needs_positive(run.about), []
    groups = clusters(run.about, columns, linked=linked)
    for metric in metrics_of(*kinds_of(run.about["protocol"]["kind"])).values():
        own = {name: torch.from_numpy(columns[name]) for name in metric.columns if name in columns}
        if own and metric.title not in senseless:
            held = torch.from_numpy(columns["held_out"])
            found.append(Score(metric, metric.value(StoredColumns(own, held, confidence)), groups))
    return found
