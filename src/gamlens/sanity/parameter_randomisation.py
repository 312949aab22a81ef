"""Parameter randomisation (Adebayo et al., NeurIPS 2018): do maps change when the network's weights are made random?

The rule, fixed beforehand: with every weight random, the mean similarity of the maps to the original maps must not
exceed the 95th percentile of the similarities between original maps of *different* images (same model, same method), in
each of the three measures. Maps that show the image whatever the weights are stay above it.

The paragraph above is written into sanity.json as the rule.
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

LEVEL = 0.95  # the percentile of similarities between different images, which a verdict compares with
FEW, SHOWN_ITEMS = 5, 20  # fewer images give a warning; maps of at most so many items are kept for pictures


@dataclass(frozen=True)
class MapSimilarity:
    """How similar one item's map is to its original map, in one state of the randomised network.

    Attributes:
        method: The method of the map.
        mode: "cascading" or "independent", see `randomise.State`.
        step: The number of the step, from 1.
        part: The part of the network that this step made random.
        item: The image.
        values: {measure: similarity}.
        flat: Whether the map is flat. Correlations with a flat map are undefined and count as 0.
    """

    method: str
    mode: str
    step: int
    part: str
    item: str
    values: Mapping[str, float]
    flat: bool


@dataclass(frozen=True)
class Verdict:
    """The verdict on one method in one measure.

    Attributes:
        method, measure: What was judged.
        left: Mean similarity to the original maps with all weights random.
        others: Mean similarity between original maps of different images.
        level: The 95th percentile of these similarities, which `left` must not exceed.
        pairs: How many pairs of maps `others` and `level` were computed from.
        passes: Whether the mean of `left` is at most `level`.
    """

    method: str
    measure: str
    left: Interval
    others: float
    level: float
    pairs: int
    passes: bool


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a check.

    Attributes:
        parts: The parts of the network, in the order in which they were made random.
        items: The names of the images.
        rows: One similarity per method, state and item.
        verdicts: One verdict per method and measure.
        shown: The maps of the first items, {(mode, step): {method: (R,H,W)}}; the original maps have the key ("", 0).
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
        """The mean similarity to the original maps after each step."""
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
    """Make a copy of the model random step by step, and compare its maps with the original ones after each step.

    Args:
        lens: The original model, which is not changed.
        make: Computes the maps of every method with a lens, (R,H,W), one row per item; see `compared_maps`.
        found: The parts of the network, see `randomise.parts`.
        items: The names of the rows.
        groups: The group of each row. Rows of one group, such as the two sides of a pair, do not count as different
            images. By default every row is a group.
        seed: The seed of the random weights.
        tell: Called with the name of each step.
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
    """Flush denormal numbers to 0 in this context: random networks produce many, and CPUs compute them slowly."""
    was = bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def check_groups(groups: Sequence[int]) -> None:
    """Raise a GamlensError unless there are two groups (images or pairs), since maps of different ones are compared."""
    count = len(set(groups))
    if count < 2:
        raise GamlensError(
            f"The verdict compares maps of different images or pairs, and there is only {count}: give at least two "
            "(a file given twice counts once), better twenty."
        )
    if count < FEW:
        warn(f"The verdict rests on {count} images or pairs only: give {FEW} or more, better twenty.")


def _verdicts(rows: list[MapSimilarity], features: Features, groups: Sequence[int], last: int) -> tuple[Verdict, ...]:
    verdicts = []
    for (method, measure), values in others(features, groups).items():
        end = [row for row in rows if (row.method, row.mode, row.step) == (method, MODES[0], last)]
        left = bootstrap(torch.tensor([row.values[measure] for row in end], dtype=torch.float64), clusters=groups)
        level = float(values.double().quantile(LEVEL))
        passes = left.mean <= level
        verdicts.append(Verdict(method, measure, left, float(values.mean()), level, len(values), passes))
    return tuple(verdicts)


def summary(outcome: Outcome, about: Mapping[str, Any]) -> dict[str, Any]:
    """The verdicts and curves as a dict for JSON; `about` is added to it."""
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
