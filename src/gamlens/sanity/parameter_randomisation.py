"""Parameter randomisation (Adebayo et al., NeurIPS 2018): does a map change when the network forgets what it learnt?

The rule, fixed beforehand: with every weight random, the mean similarity of a map to the original one must not exceed
the 95th percentile of the similarities between original maps of *different* images (same model, same method), in each
of the three measures. A map that still shows the image, whatever the weights, stays above it.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gamlens.errors import GamlensError, GamlensWarning, warn
from gamlens.lens import Lens
from gamlens.metrics import SIMILARITIES, Interval, bootstrap
from gamlens.sanity.compared_maps import Features, MakeMaps, MethodMaps, compare, describe, others
from gamlens.sanity.randomise import MODES, NetworkPart, states

LEVEL = 0.95
FEW, SHOWN_ITEMS = 5, 20


@dataclass(frozen=True)
class MapSimilarity:
    """How alike one item's map in one state is to its original: {measure: similarity}; a `flat` map is like none."""

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
    """Everything a run found; `shown` are maps {(mode, step): {method: (R,H,W)}} of the first items, with (mode "",
    step 0) the originals.
    """

    parts: tuple[NetworkPart, ...]
    items: tuple[str, ...]
    rows: tuple[MapSimilarity, ...]
    verdicts: tuple[Verdict, ...]
    shown: dict[tuple[str, int], MethodMaps]

    def passes(self, method: str) -> bool:
        return all(verdict.passes for verdict in self.verdicts if verdict.method == method)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(verdict.method for verdict in self.verdicts))

    def curve(self, method: str, mode: str, measure: str) -> list[float]:
        """Mean similarity to the original after each step."""
        mine = [row for row in self.rows if (row.method, row.mode) == (method, mode)]
        steps = ([row.values[measure] for row in mine if row.step == step] for step in range(1, len(self.parts) + 1))
        return [float(torch.tensor(values, dtype=torch.float64).mean()) for values in steps]


def randomise_parameters(
    lens: Lens,
    make: MakeMaps,
    found: Sequence[NetworkPart],
    items: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Maps of every state of a copy of the model, compared with the original's.

    `make` gives the maps (R,H,W) of every method through a lens, one row per item; rows of one group (the two sides of
    a pair) are not "other images" to each other.
    """
    groups = range(len(items)) if groups is None else groups
    check_groups(groups)
    with warnings.catch_warnings(action="ignore", category=GamlensWarning), _no_denormals():
        tell("original")
        original = {name: maps.cpu() for name, maps in make(lens).items()}
        features = describe(original)
        shown, rows = {("", 0): {name: maps[:SHOWN_ITEMS] for name, maps in original.items()}}, []
        for state in states(lens, found, seed=seed):
            tell(f"{state.mode}: {state.part}")
            maps = {name: values.cpu() for name, values in make(state.lens).items()}
            shown[state.mode, state.step] = {name: values[:SHOWN_ITEMS] for name, values in maps.items()}
            alike = compare(features, describe(maps))
            for method, values in maps.items():
                flat = values.flatten(1).amax(dim=1) == 0
                for row, item in enumerate(items):
                    one = {measure: float(alike[method, measure][row]) for measure in SIMILARITIES}
                    rows.append(MapSimilarity(method, state.mode, state.step, state.part, item, one, bool(flat[row])))
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


def check_groups(groups: Sequence[int]) -> None:
    """At least two different images (or pairs): the verdict is taken against maps of others."""
    count = len(set(groups))
    if count < 2:
        raise GamlensError(
            f"The verdict compares a map with maps of other images, and there is {count} image or pair: give at least "
            "two, better twenty."
        )
    if count < FEW:
        warn(f"The verdict rests on {count} images or pairs only: give {FEW} or more, better twenty.")


def _verdicts(rows: list[MapSimilarity], features: Features, groups: Sequence[int], last: int) -> tuple[Verdict, ...]:
    verdicts = []
    for (method, measure), values in others(features, groups).items():
        end = [row for row in rows if (row.method, row.mode, row.step) == (method, MODES[0], last)]
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
            {"method": method, "mode": mode, "measure": measure, "mean": outcome.curve(method, mode, measure)}
            for method in outcome.methods for mode in MODES for measure in SIMILARITIES
        ],
        "flat": sum(row.flat for row in outcome.rows),
    }  # fmt: skip
