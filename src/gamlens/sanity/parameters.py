"""Parameter randomisation (Adebayo et al., NeurIPS 2018): does a map change when the network forgets what it learnt?

The rule, fixed beforehand: with every weight random, the mean similarity of a map to the original one must not exceed
the 95th percentile of the similarities between original maps of *different* images (same model, same method), in each
of the three measures. A map that still shows the image, whatever the weights, stays above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gamlens.errors import GamlensError, GamlensWarning
from gamlens.lens import Lens
from gamlens.metrics import SIMILARITIES, Interval, bootstrap
from gamlens.sanity.randomise import MODES, Part, states

LEVEL = 0.95
MOST_PAIRS = 2000
FEW = 5
Make = Callable[[Lens], dict[str, Tensor]]
Features = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Row:
    """How alike one item's map in one state is to its original: {measure: similarity}; `flat` maps agree with none."""

    method: str
    mode: str
    step: int
    part: str
    item: str
    values: Mapping[str, float]
    flat: bool


@dataclass(frozen=True)
class Verdict:
    """One method in one measure: the similarity left with all weights random, and that of other images' maps."""

    method: str
    measure: str
    left: Interval
    others: float
    level: float
    pairs: int
    passes: bool


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything a run found; `shown` are maps {(mode, step): {method: (R,H,W)}}, (mode "", step 0) the originals."""

    parts: tuple[Part, ...]
    items: tuple[str, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    shown: dict[tuple[str, int], dict[str, Tensor]]

    def passes(self, method: str) -> bool:
        return all(verdict.passes for verdict in self.verdicts if verdict.method == method)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(verdict.method for verdict in self.verdicts))

    def curve(self, method: str, mode: str, measure: str) -> list[Interval]:
        """Mean similarity to the original after each step, with its interval over items."""
        found = []
        for step in range(1, len(self.parts) + 1):
            mine = [row for row in self.rows if (row.method, row.mode, row.step) == (method, mode, step)]
            found.append(bootstrap(torch.tensor([row.values[measure] for row in mine], dtype=torch.float64)))
        return found


def parameters(
    lens: Lens,
    make: Make,
    found: Sequence[Part],
    items: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    seed: int = 0,
    modes: Sequence[str] = MODES,
    keep: int = 20,
    tell: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Maps of every state of a copy of the model, compared with the original's.

    `make` gives the maps of every method (R,H,W) through a lens, one row an item; rows of one group (the two sides of
    a pair) are not "other images" to each other; the maps of the first `keep` rows are kept for pictures.
    """
    groups = range(len(items)) if groups is None else groups
    check_groups(groups)
    with warnings.catch_warnings(), _no_denormals():
        warnings.simplefilter("ignore", GamlensWarning)
        tell("original")
        original = {name: maps.cpu() for name, maps in make(lens).items()}
        features = describe(original)
        shown, rows = {("", 0): {name: maps[:keep] for name, maps in original.items()}}, []
        for state in states(lens, found, seed=seed, modes=modes):
            tell(f"{state.mode}: {state.part}")
            maps = {name: values.cpu() for name, values in make(state.lens).items()}
            shown[state.mode, state.step] = {name: values[:keep] for name, values in maps.items()}
            for method, values in compare(features, describe(maps)).items():
                flat = maps[method].flatten(1).amax(dim=1) == 0
                for row, item in enumerate(items):
                    one = {measure: float(value[row]) for measure, value in values.items()}
                    rows.append(Row(method, state.mode, state.step, state.part, item, one, bool(flat[row])))
    return Outcome(tuple(found), tuple(items), tuple(rows), _verdicts(rows, features, groups, len(found)), shown)


@contextmanager
def _no_denormals() -> Iterator[None]:
    """Tiny numbers, of which random networks have many, are slow on CPUs: here they are 0. Then as it was."""
    was = bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def describe(maps: Mapping[str, Tensor]) -> Features:
    """{method: {measure: what is compared}}."""
    return {
        method: {name: entry.describe(values) for name, entry in SIMILARITIES.items()}
        for method, values in maps.items()
    }


def compare(a: Features, b: Features) -> dict[str, dict[str, Tensor]]:
    """Row by row, {method: {measure: (R,)}}; a flat map has no order to agree with and counts as 0."""
    return {
        method: {
            name: entry.compare(a[method][name], b[method][name]).nan_to_num(0.0)
            for name, entry in SIMILARITIES.items()
        }
        for method in a
    }


def others(features: Features, groups: Sequence[int], *, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """Similarities of the maps of different images, {method: {measure: (P,)}}; of very many pairs a seeded draw."""
    pairs = torch.tensor([pair for pair in combinations(range(len(groups)), 2) if groups[pair[0]] != groups[pair[1]]])
    if len(pairs) > MOST_PAIRS:
        pairs = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))[:MOST_PAIRS]]
    found: dict[str, dict[str, list[Tensor]]] = {}
    for part in torch.split(pairs, 64):
        left, right = (
            {method: {name: values[side] for name, values in own.items()} for method, own in features.items()}
            for side in part.T
        )
        for method, measures in compare(left, right).items():
            for name, values in measures.items():
                found.setdefault(method, {}).setdefault(name, []).append(values)
    return {method: {name: torch.cat(part) for name, part in own.items()} for method, own in found.items()}


def check_groups(groups: Sequence[int]) -> None:
    """At least two different images (or pairs): the verdict is taken against maps of others."""
    count = len(set(groups))
    if count < 2:
        raise GamlensError(
            f"The verdict compares a map with maps of other images, and there is {count} image or pair: give at least "
            "two, better twenty."
        )
    if count < FEW:
        warnings.warn(
            f"The verdict rests on {count} images or pairs only: give {FEW} or more, better twenty.",
            GamlensWarning,
            stacklevel=3,
        )


def _verdicts(rows: list[Row], features: Features, groups: Sequence[int], last: int) -> tuple[Verdict, ...]:
    verdicts = []
    for method, measures in others(features, groups).items():
        end = [row for row in rows if (row.method, row.mode, row.step) == (method, MODES[0], last)]
        for measure, values in measures.items():
            left = bootstrap(torch.tensor([row.values[measure] for row in end], dtype=torch.float64))
            level = float(values.double().quantile(LEVEL))
            passes = left.mean <= level
            verdicts.append(Verdict(method, measure, left, float(values.mean()), level, len(values), passes))
    return tuple(verdicts)


def summary(outcome: Outcome, about: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome as JSON: verdicts, curves and what was run."""
    return {
        **about,
        "rule": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "items": list(outcome.items),
        "parts": [{"name": part.name, "modules": len(part.modules)} for part in outcome.parts],
        "passes": {method: outcome.passes(method) for method in outcome.methods},
        "verdicts": [{**vars(verdict), "left": vars(verdict.left)} for verdict in outcome.verdicts],
        "curves": [
            {"method": method, "mode": mode, "measure": measure,
             "mean": [value.mean for value in outcome.curve(method, mode, measure)]}
            for method in outcome.methods for mode in MODES for measure in SIMILARITIES
        ],
        "flat": sum(row.flat for row in outcome.rows),
    }  # fmt: skip
