"""The rows of one run as a leaderboard: means, ranks, paired differences, controls, cost, and which metrics agree.

A row is one method (or explainer, or control) at one n. Rows are compared on the same items: those that every row has.
`leaderboard_texts` writes a board as tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.evaluation.results import Columns, Run
from gamlens.evaluation.row_titles import row_title
from gamlens.evaluation.run_scores import Score, Setting, check_confidence, check_real, needed, resampled, scores
from gamlens.methods import BLOCK_DEFAULT, METHODS
from gamlens.metrics import METRICS, Better, Interval, Metric
from gamlens.metrics.aggregate import INDICES_AT_ONCE

ItemChoice = Literal["common", "all"]
RowKey: TypeAlias = tuple[str, int]  # a method, or the name of a control, and n
MeasuredKey: TypeAlias = tuple[str, str, int]  # an item, its side, and how often both stood before
USUAL_REFERENCE: RowKey = (BLOCK_DEFAULT, 2)
RESAMPLES, SAME_DIGITS = 1000, 4  # how many bootstrap samples; means that agree to so many digits are equal
SMALL_MEANS = 1.0  # if all means of a metric are below this many percent, they are shown with more decimals
FEWEST_RANKED = 3  # a rank correlation needs so many rows
PLACE_GROUP, SCORE_GROUP, COST_GROUP = "Where the object is", "What the model's score says", "Cost"
GROUP_OF_KIND = {"localization": PLACE_GROUP, "segmentation": PLACE_GROUP, "objective": SCORE_GROUP}
TIME_UNITS, MEMORY_UNITS = ("ms", "s"), ("MB", "GB")
Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BoardMetric:
    """A metric of a board.

    Attributes:
        name: Its name in METRICS.
        title: Its name in tables.
        better: Whether higher ("up") or lower ("down") is better.
        unit: The unit of its values: "%", or of cost "ms" or "MB".
        group: The table it belongs to.
        fooled_by: One sentence on the control that it takes for a good map; "" if none is known.
        items: How many items it counts: the most that any row has.
        why: Why it leaves items out, as the rest of the sentence "12 items ..."; "" if it leaves none out.
        ranked: Whether its ranks enter the mean rank: it is a metric of quality that every method has.
        places: How many decimals its means are shown with: more where all of them are small.
    """

    name: str
    title: str
    better: Better
    unit: str = "%"
    group: str = SCORE_GROUP
    fooled_by: str = ""
    items: int = 0
    why: str = ""
    ranked: bool = True
    places: int = 2

    @property
    def sign(self) -> int:
        return 1 if self.better == "up" else -1

    @property
    def is_cost(self) -> bool:
        return self.group == COST_GROUP


@dataclass(frozen=True)
class BoardCell:
    """A metric of one row. Gains are paired differences with their sign turned so that plus is better.

    Attributes:
        value: The mean and its 95 % bootstrap interval.
        rank: The place among the methods, 1 for the best; equal means share the mean of their places. NaN for controls.
        gain: The gain over the reference row; `n` counts the items that both have.
        over_best: The gain over the best method; None for the best method itself.
        over_control: The gain over the best control; None without controls, and for metrics of cost.
        threshold: The threshold at which maps were cut, if the metric has one.
    """

    value: Interval
    rank: float = math.nan
    gain: Interval | None = None
    over_best: Interval | None = None
    over_control: Interval | None = None
    threshold: float | None = None

    @property
    def best(self) -> bool:
        """Whether this row has the best mean of all methods; several rows have it if they are equal."""
        return self.over_best is None and not math.isnan(self.rank)

    @property
    def tied(self) -> bool:
        """Whether the data do not show that the best method is better: the paired interval contains 0."""
        return self.over_best is not None and not math.isnan(self.rank) and self.over_best.high >= 0

    @property
    def beats_controls(self) -> bool | None:
        """Whether the row is better than every control: the interval against the best one lies above 0.

        None where there is no control to compare with.
        """
        return None if self.over_control is None or not self.over_control.n else self.over_control.low > 0


@dataclass(frozen=True)
class BoardRow:
    """A row of a board.

    Attributes:
        method: The method, explainer or control.
        n: The number of blocks; 0 for a control.
        cells: {name of the metric: its numbers}, of the metrics that the row has.
        mean_rank: The mean of the ranks by all metrics with `ranked`; NaN for controls.
        items: How many items of the run the row has, which may be more than are compared.
    """

    method: str
    n: int
    cells: Mapping[str, BoardCell]
    mean_rank: float = math.nan
    items: int = 0

    @property
    def key(self) -> RowKey:
        return self.method, self.n

    @property
    def title(self) -> str:
        return row_title(self.method, self.n)

    @property
    def is_control(self) -> bool:
        return self.n == 0

    def mean(self, metric: str) -> float:
        """The mean of a metric; NaN if the row does not have it."""
        return self.cells[metric].value.mean if metric in self.cells else math.nan


@dataclass(frozen=True)
class Agreement:
    """How alike metrics rank the methods: rank correlations, 1 for the same order and -1 for the opposite one.

    Attributes:
        names: The M metrics of quality; lines and columns of the matrices.
        spearman: Spearman's correlation of the means of rows, M x M. NaN if fewer than three rows have both metrics.
        kendall: Kendall's tau-b of the same.
        by_item: Spearman's correlation over the rows for each item by itself, averaged over items.
        rows: How many methods the correlations are over.
    """

    names: tuple[str, ...]
    spearman: Matrix
    kendall: Matrix
    by_item: Matrix
    rows: int

    def pairs(self) -> list[tuple[str, str, float, float, float]]:
        """Every two metrics with their Spearman, Kendall and by-item correlation, the most alike first."""
        found = [
            (self.names[a], self.names[b], self.spearman[a][b], self.kendall[a][b], self.by_item[a][b])
            for a in range(len(self.names))
            for b in range(a)
        ]
        return sorted((pair for pair in found if not math.isnan(pair[2])), key=lambda pair: -pair[2])


@dataclass(frozen=True, eq=False)
class Board:
    """The leaderboard of one run.

    Attributes:
        record: The run without its columns: its description and its errors.
        rows: The methods by their mean rank, the best first; then the controls.
        metrics: The metrics, in the order of METRICS.
        reference: The row that others are compared with.
        choice: "common" if all rows are compared on the items that every row has, "all" if each has its own.
        items: How many items are compared; with "all", how many items any row has.
        clusters: How many images or pairs these belong to. Intervals resample these.
        unit: What intervals resample, a name of `run_scores.RESAMPLED`.
        confidence: The class score that metrics of scores are computed from.
        agreement: How alike the metrics rank the methods.
    """

    record: Run
    rows: tuple[BoardRow, ...]
    metrics: tuple[BoardMetric, ...]
    reference: RowKey
    choice: ItemChoice
    items: int
    clusters: int
    unit: str
    confidence: str
    agreement: Agreement

    def __repr__(self) -> str:
        task, data, model = self.setting.columns()
        rows = f"{len(self.methods)} methods, {len(self.controls)} controls, {len(self.metrics)} metrics"
        return f"<Board of {model}, {task}, {self.items} items of {data}: {rows}>"

    @property
    def setting(self) -> Setting:
        return Setting.of(self.record.about)

    @property
    def methods(self) -> tuple[BoardRow, ...]:
        """The rows that are not controls."""
        return tuple(row for row in self.rows if not row.is_control)

    @property
    def controls(self) -> tuple[BoardRow, ...]:
        return tuple(row for row in self.rows if row.is_control)

    @property
    def quality(self) -> tuple[BoardMetric, ...]:
        """The metrics that are not cost."""
        return tuple(metric for metric in self.metrics if not metric.is_cost)

    @property
    def time(self) -> BoardMetric | None:
        """The metric of time per image, if it was measured."""
        return next((metric for metric in self.metrics if metric.unit in TIME_UNITS), None)

    @property
    def memory(self) -> BoardMetric | None:
        """The metric of memory, if it was measured."""
        return next((metric for metric in self.metrics if metric.unit in MEMORY_UNITS), None)

    def metric(self, name: str) -> BoardMetric:
        found = next((metric for metric in self.metrics if metric.name == name), None)
        if found is None:
            known = ", ".join(metric.name for metric in self.metrics) or "none"
            raise GamlensError(f"The board has no metric {name!r}: choose one of {known}.")
        return found

    def row(self, key: RowKey) -> BoardRow:
        found = next((row for row in self.rows if row.key == key), None)
        if found is None:
            raise GamlensError(f"The board has no row {key}: choose one of {', '.join(str(r.key) for r in self.rows)}.")
        return found

    def best_control(self, name: str) -> BoardRow | None:
        """The control with the best mean of a metric."""
        sign, found = self.metric(name).sign, [row for row in self.controls if not math.isnan(row.mean(name))]
        return max(found, key=lambda row: sign * row.mean(name), default=None)

    def pareto_front(self, name: str = "") -> tuple[BoardRow, ...]:
        """The methods that no other beats in both time and a metric (by default the mean rank), the fastest first.

        A method is beaten if another one is as good and as fast, and better in one of the two.
        """
        time = self.time
        if time is None:
            return ()
        sign = self.metric(name).sign if name else -1
        known = [(row.mean(time.name), sign * (row.mean(name) if name else row.mean_rank), row) for row in self.methods]
        points = [(cost, good, row) for cost, good, row in known if not math.isnan(cost + good)]
        front = [
            (cost, row)
            for cost, good, row in points
            if not any((c <= cost and g >= good) and (c < cost or g > good) for c, g, _ in points)
        ]
        return tuple(row for _, row in sorted(front, key=lambda one: one[0]))


def board_columns() -> tuple[str, ...]:
    """The columns that a board is made from, for `results.read`."""
    return (*needed(), "side")


def board(
    run: Run,
    *,
    confidence: str = "logit",
    reference: RowKey = USUAL_REFERENCE,
    items: ItemChoice = "common",
    linked: bool = False,
) -> Board:
    """Make the leaderboard of a run. A run with random weights is an error.

    Args:
        run: The run; its columns must have those of `board_columns`.
        confidence: The class score that metrics of scores are computed from: "logit" or "probability".
        reference: The row that the others are compared with. If the run has no ("gam", 2), it is GAM at its largest n,
            or else the first method; any other row that the run does not have is an error.
        items: "common" compares all rows on the items that every row has, and metric by metric on those of which every
            method has a value. "all" takes the mean of each row over its own items; differences are over shared items.
        linked: For runs of pairs: whether intervals take pairs that share an image for one (`run_scores.clusters`).
    """
    check_real(run)
    check_confidence(confidence)
    if items not in get_args(ItemChoice):
        raise GamlensError(f"Items are 'common' or 'all', not {items!r}.")
    if not any(n > 0 for _, n in run.groups):
        raise GamlensError("The run has no method to rank: no item could be measured, or it holds controls only.")
    run = replace(run, groups={key: columns for key, columns in run.groups.items() if not _repeats(key, run.groups)})
    keys = {key: _measured_keys(columns) for key, columns in run.groups.items()}
    chosen = _chosen(keys, items)
    groups: dict[MeasuredKey, str] = {}
    measured: dict[RowKey, dict[str, Score]] = {}
    filled: dict[RowKey, dict[str, Tensor]] = {}
    for key, columns in run.groups.items():
        place = {one: at for at, one in enumerate(keys[key])}
        mine = [one for one in chosen if one in place]
        own = measured[key] = _scores(run, _at(columns, [place[one] for one in mine]), confidence, linked=linked)
        for score in list(own.values())[:1]:
            groups.update(zip(mine, score.clusters, strict=True))
        filled[key] = {name: _spread(score, mine, chosen) for name, score in own.items()}
    found = [name for name in METRICS if any(name in own for own in measured.values())]
    clusters = [groups.get(one, one[0]) for one in chosen]
    order = sorted(run.groups, key=lambda key: key[1] == 0)
    base = _reference(order, reference)
    metrics, cells, aligned = [], {key: dict[str, BoardCell]() for key in order}, {}
    for name in found:
        rows = [key for key in order if name in measured[key]]
        values = torch.stack([filled[key][name] for key in rows])
        metric = _metric(name, [measured[key][name] for key in rows])
        methods = sum(n > 0 for _, n in rows)
        if items == "common" and not metric.is_cost:
            values = _where_all_have(values, methods)
        made = _cells(metric, rows, values, clusters, base)
        for key, cell in zip(rows, made, strict=True):
            cells[key][name] = replace(cell, threshold=measured[key][name].found.threshold)
        known = [cell.value.n for key, cell in zip(rows, made, strict=True) if key[1]]
        ranked = not metric.is_cost and len([n for n in known if n]) == sum(n > 0 for _, n in order)
        most = max((abs(cell.value.mean) for cell in made if cell.value.n), default=0.0)
        places = 2 if most >= SMALL_MEANS else 4
        metrics.append(replace(metric, items=max(known, default=0), ranked=ranked, places=places))
        aligned[name] = {key: metric.sign * row for key, row in zip(rows, values, strict=True)}
    lined = [
        BoardRow(*key, cells[key], _mean_rank(cells[key], metrics) if key[1] else math.nan, len(keys[key]))
        for key in order
    ]
    lined.sort(key=lambda row: (row.is_control, math.isnan(row.mean_rank), row.mean_rank))
    agreement = _agreement(lined, [metric for metric in metrics if not metric.is_cost], aligned)
    return Board(
        Run(run.about, {}, run.errors), tuple(lined), tuple(metrics), base, items, len(chosen), len(set(clusters)),
        resampled(run.about, linked=linked), confidence, agreement,
    )  # fmt: skip


def _repeats(key: RowKey, known: Mapping[RowKey, Columns]) -> bool:
    """Whether a row is the same as one with a smaller n: methods of kind "pair" read the last block alone."""
    method, n = key
    fixed = method in METHODS and METHODS[method].kind == "pair"
    return fixed and any(other == method and less < n for other, less in known)


def average_ranks(values: Tensor) -> Tensor:
    """The places of values (...,R) in rising order, from 1. Equal values share the mean of their places; NaN has none.

    >>> average_ranks(torch.tensor([30.0, 10.0, 30.0, torch.nan]))
    tensor([2.5000, 1.0000, 2.5000,    nan], dtype=torch.float64)
    """
    mine, others = values.unsqueeze(-1), values.unsqueeze(-2)
    ranks = (others < mine).sum(-1).double() + ((others == mine).sum(-1).double() + 1) / 2
    return ranks.masked_fill(values.isnan(), math.nan)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of values (R,) and (R,): Pearson's of their ranks.

    Values of which either is NaN are left out. The result is NaN for fewer than three values, or if all values of one
    side are equal.
    """
    a, b = _both(a, b)
    if len(a) < FEWEST_RANKED:
        return math.nan
    return float((_unit(average_ranks(a)) * _unit(average_ranks(b))).sum())


def kendall_tau(a: Tensor, b: Tensor) -> float:
    """Kendall's tau-b of values (R,) and (R,): sum_ij s_ij t_ij / sqrt(sum s_ij^2 sum t_ij^2), s_ij = sign(a_i - a_j).

    NaN is treated as in `rank_correlation`.
    """
    a, b = _both(a, b)
    if len(a) < FEWEST_RANKED:
        return math.nan
    s, t = ((one.unsqueeze(1) - one.unsqueeze(0)).sign() for one in (a, b))
    norm = (s * s).sum() * (t * t).sum()
    return float((s * t).sum() / norm.sqrt()) if norm > 0 else math.nan


def row_intervals(values: Tensor, clusters: Sequence[str]) -> list[Interval]:
    """The mean and the bootstrap interval of each line of values (K,N): the numbers of `metrics.bootstrap`.

    Lines with the same missing values share their random draws, so that one product of matrices makes all means.
    """
    place = {one: at for at, one in enumerate(sorted(set(clusters)))}
    where = torch.tensor([place[one] for one in clusters], dtype=torch.int64)
    patterns: dict[bytes, list[int]] = {}
    for at, line in enumerate(values.isnan()):
        patterns.setdefault(line.numpy().tobytes(), []).append(at)
    found: dict[int, Interval] = {}
    for lines in patterns.values():
        used = ~values[lines[0]].isnan()
        n, own = int(used.sum()), values[lines][:, used].double()
        if n == 0:
            found |= dict.fromkeys(lines, Interval(math.nan, math.nan, math.nan, 0))
            continue
        counts = torch.bincount(where[used], minlength=len(place)).double()
        sums = torch.zeros(len(lines), len(place), dtype=torch.float64).index_add_(1, where[used], own)
        means = _resampled_means(sums[:, counts > 0], counts[counts > 0])
        low, high = torch.quantile(means, means.new_tensor([0.025, 0.975]), dim=0).tolist()
        middle = own.mean(dim=1).tolist()
        found |= {at: Interval(middle[i], low[i], high[i], n) for i, at in enumerate(lines)}
    return [found[at] for at in range(len(values))]


def _resampled_means(sums: Tensor, counts: Tensor) -> Tensor:
    """The means of resampled clusters, from their sums (K,C) and sizes (C,): (S,K). The draws are `bootstrap`'s."""
    make, made = torch.Generator().manual_seed(0), []
    many = max(1, INDICES_AT_ONCE // len(counts))
    for start in range(0, RESAMPLES, many):
        size = min(many, RESAMPLES - start)
        draw = torch.randint(len(counts), (size, len(counts)), generator=make)
        times = torch.zeros(size, len(counts), dtype=torch.float64).scatter_add_(
            1, draw, torch.ones(1, 1, dtype=torch.float64).expand(size, len(counts))
        )
        made.append(times @ sums.T / (times @ counts).unsqueeze(1))
    return torch.cat(made)


def _measured_keys(columns: Columns) -> list[MeasuredKey]:
    """What each row of columns is about: its item and side, and a number if both occur more than once."""
    times: Counter[tuple[str, str]] = Counter()
    found = []
    for item, side in zip(columns["item"], columns.get("side") or [""] * len(columns["item"]), strict=True):
        one = str(item), str(side or "")
        found.append((*one, times[one]))
        times[one] += 1
    return found


def _chosen(keys: Mapping[RowKey, Sequence[MeasuredKey]], items: ItemChoice) -> list[MeasuredKey]:
    """The items of a board, in the order of the first row that has them."""
    every = dict.fromkeys(one for own in keys.values() for one in own)
    if items == "all":
        return list(every)
    sets = [set(own) for own in keys.values()]
    shared = [one for one in every if all(one in own for own in sets)]
    if not shared:
        fewest = min(keys, key=lambda key: len(keys[key]))
        raise GamlensError(
            f"No item was measured for every row, and {row_title(*fewest)} has only {len(keys[fewest])}: compare each "
            "row on its own items (items='all'), or measure the rows on the same items."
        )
    return shared


def _at(columns: Columns, places: list[int]) -> Columns:
    """The columns at these places."""
    return {
        name: [values[at] for at in places] if isinstance(values, list) else values[places]
        for name, values in columns.items()
    }


def _scores(run: Run, columns: Columns, confidence: str, *, linked: bool) -> dict[str, Score]:
    """Every metric of every kind of the run, by its name in METRICS."""
    names = {id(metric): name for name, metric in METRICS.items()}
    own = scores(run, columns, confidence=confidence, linked=linked)
    return {names[id(score.metric)]: score for score in own}


def _spread(score: Score, mine: Sequence[MeasuredKey], chosen: Sequence[MeasuredKey]) -> Tensor:
    """The values of a score at all chosen items, (N,): NaN where it has none, and where the item is held out."""
    values = score.found.values.double()
    if score.found.counted is not None:
        values = values.masked_fill(~score.found.counted, math.nan)
    if len(mine) == len(chosen):
        return values
    place = {one: at for at, one in enumerate(chosen)}
    found = torch.full((len(chosen),), math.nan, dtype=torch.float64)
    found[torch.tensor([place[one] for one in mine], dtype=torch.int64)] = values
    return found


def _where_all_have(values: Tensor, methods: int) -> Tensor:
    """Values (K,N), of which the first lines are the methods, without the items that a method has no value of.

    A method that has no value at all does not count.
    """
    missing = values[:methods].isnan()
    gone = missing[~missing.all(dim=1)].any(dim=0)
    return values.masked_fill(gone, math.nan)


def _reference(rows: Sequence[RowKey], wanted: RowKey) -> RowKey:
    """The row that others are compared with: the one that was asked for, or a stand-in for the usual one."""
    if wanted in rows:
        return wanted
    if wanted != USUAL_REFERENCE:
        known = ", ".join(f"{method} (n={n})" for method, n in rows)
        raise GamlensError(f"The run has no row {wanted[0]} with n={wanted[1]} to compare with: choose one of {known}.")
    own = [key for key in rows if key[0] == wanted[0]]
    return max(own, key=lambda key: key[1]) if own else rows[0]


def _metric(name: str, own: Sequence[Score]) -> BoardMetric:
    metric: Metric = own[0].metric
    cost = metric.unit in (*TIME_UNITS, *MEMORY_UNITS)
    group = COST_GROUP if cost else GROUP_OF_KIND.get(metric.kinds[0], SCORE_GROUP)
    why = next((score.found.why for score in own if score.found.why), "")
    return BoardMetric(name, metric.title, metric.better, metric.unit, group, metric.fooled_by, why=why)


def _cells(
    metric: BoardMetric, rows: Sequence[RowKey], values: Tensor, clusters: Sequence[str], base: RowKey
) -> list[BoardCell]:
    """The numbers of a metric for all rows, from its values (K,N)."""
    own = metric.sign * values
    means = [_same(float(line[~line.isnan()].mean())) if bool((~line.isnan()).any()) else math.nan for line in own]
    methods = [at for at, (_, n) in enumerate(rows) if n > 0 and not math.isnan(means[at])]
    controls = [at for at, (_, n) in enumerate(rows) if n == 0 and not math.isnan(means[at]) and not metric.is_cost]
    best, rival = (max(group, key=lambda at: means[at], default=None) for group in (methods, controls))
    against = [rows.index(base) if base in rows else None, best, rival]
    gaps = [torch.full_like(own, math.nan) if at is None else own - own[at] for at in against]
    found = row_intervals(torch.cat([values, *gaps]), clusters)
    value, gain, behind, over = (found[at * len(rows) : (at + 1) * len(rows)] for at in range(4))
    order = torch.tensor([-means[at] for at in methods], dtype=torch.float64)
    ranks = dict(zip(methods, average_ranks(order).tolist(), strict=True))
    top = None if best is None else means[best]
    return [
        BoardCell(
            value[at],
            ranks.get(at, math.nan),
            None if against[0] is None else gain[at],
            None if means[at] == top and at in ranks else behind[at],
            None if rival is None or rows[at][1] == 0 else over[at],
        )
        for at in range(len(rows))
    ]


def _mean_rank(cells: Mapping[str, BoardCell], metrics: Sequence[BoardMetric]) -> float:
    ranks = [cells[metric.name].rank for metric in metrics if metric.ranked]
    return sum(ranks) / len(ranks) if ranks else math.nan


def _agreement(
    rows: Sequence[BoardRow], metrics: Sequence[BoardMetric], values: Mapping[str, Mapping[RowKey, Tensor]]
) -> Agreement:
    """The rank correlations of metrics over the methods; `values` are (N,) with plus for better."""
    methods = [row for row in rows if not row.is_control]
    names = [metric.name for metric in metrics]
    means = [
        torch.tensor([_same(metric.sign * row.mean(metric.name)) for row in methods], dtype=torch.float64)
        for metric in metrics
    ]
    single = [
        _unit(average_ranks(torch.stack([values[name][row.key] for row in methods], dim=-1)))
        if len(methods) >= FEWEST_RANKED and all(row.key in values[name] for row in methods)
        else None
        for name in names
    ]
    return Agreement(
        tuple(names),
        tuple(tuple(rank_correlation(a, b) for b in means) for a in means),
        tuple(tuple(kendall_tau(a, b) for b in means) for a in means),
        tuple(
            tuple(math.nan if a is None or b is None else float((a * b).sum(-1).nanmean()) for b in single)
            for a in single
        ),
        len(methods),
    )


def _unit(ranks: Tensor) -> Tensor:
    """Ranks (...,R) minus their mean, of length 1; NaN if all are equal or one is NaN."""
    centred = ranks - ranks.mean(dim=-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, centred / length, math.nan)


def _both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The values of which neither is NaN."""
    known = ~(a.isnan() | b.isnan())
    return a[known].double(), b[known].double()


def _same(mean: float) -> float:
    """A mean without its last digits, so that equal maps have equal means."""
    return float(f"{mean:.{SAME_DIGITS}g}")
