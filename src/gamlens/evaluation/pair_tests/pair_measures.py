"""The numbers of one case: what its maps say about the shared object, the copied patch, the partner, and the boxes.

A map's value is the mean of both sides, except for the partner test, which looks at x alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics
from gamlens.evaluation.masked import MaskedForwards, MaskedImages
from gamlens.evaluation.objective import ScoredItems, Tickets, pair_items
from gamlens.evaluation.pair_tests.case_images import ReadyCase
from gamlens.evaluation.pair_tests.pair_explainers import ExplainedPair, MapPair, PairExplainers
from gamlens.inputs.batch import prepare
from gamlens.pairs.interactions import Interactions

TIE = 1e-6  # masses that differ by at most this share of the largest are equal
CaseValues = dict[str, dict[str, Any]]  # {key of a row: {measure: value}}


@dataclass(frozen=True)
class CaseNumbers:
    """What was measured on a case.

    Attributes:
        values: One value per row and measure; "box_overlap" has the IoU of both sides at every threshold.
        chance: What a map that says nothing has on average, by the measure.
        exact: What the network itself answers, where it can be asked, by the measure.
    """

    values: CaseValues
    chance: dict[str, float] = field(default_factory=dict)
    exact: dict[str, float] = field(default_factory=dict)


def masses(map: Tensor, boxes: Tensor) -> Tensor:
    """The mean of the positive part of a map (H,W) over each of k boxes of whole pixels, (k,4) -> (k,) float64."""
    positive = map.double().relu()
    return torch.stack([positive[y0:y1, x0:x1].mean() for x0, y0, x1, y1 in boxes.int().tolist()])


def largest(values: Tensor) -> Tensor:
    """How much each value is the largest: 1 for the only largest, 1/m each where m of them tie, else 0: same shape.

    >>> largest(torch.tensor([0.2, 0.9, 0.9]))
    tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    values = values.double()
    most = values.max()
    winners = (values >= most - TIE * values.abs().max()).double()
    return winners / winners.sum()


def pixel_auc(map: Tensor, inside: Tensor) -> float:
    """The chance that a pixel inside has a higher value than one outside, ties count half: (H,W), bool (H,W)."""
    ranks = metrics.ranks(map[None].float())[0]
    wanted = inside.flatten()
    many, rest = int(wanted.sum()), int((~wanted).sum())
    return float((ranks[wanted].sum() - many * (many + 1) / 2) / (many * rest))


def partner_change(first: Tensor, second: Tensor) -> float:
    """1 - Spearman's correlation of two maps (H,W) of one image: 0 for equal maps, 1 if one of them is constant."""
    if torch.equal(first, second):
        return 0.0
    found = metrics.pearson(metrics.ranks(first[None].float()), metrics.ranks(second[None].float()))[0]
    return 1.0 if bool(found.isnan()) else float(1 - found)


def measure_scene(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair) -> CaseNumbers:
    """Is the shared object found among the k objects of each scene, and the link between the two?"""
    shared, count = ready.case.shared, ready.case.objects
    parts = [maker.embed(single) for single in ready.singles]
    links = torch.stack([maker.similarity(one[None].expand(count, -1), parts[1]) for one in parts[0]])  # (k,k)
    alone = [
        maker.similarity(parts[0], explained.embeddings[1].expand(count, -1)),
        maker.similarity(explained.embeddings[0].expand(count, -1), parts[1]),
    ]
    best = [largest(values) for values in alone]
    exact = {
        "object_hit": sum(float(own[at]) for own, at in zip(best, shared, strict=True)) / 2,
        "link_hit": float(largest(links)[shared]),
    }
    values: CaseValues = {}
    for key, maps in explained.maps.items():
        mass = [masses(own, truth) for own, truth in zip(maps, ready.truth, strict=True)]
        found = [largest(own) for own in mass]
        shares = [
            float(own[at] / own.sum()) if own.sum() > 0 else 1 / count for own, at in zip(mass, shared, strict=True)
        ]
        values[key] = {
            "object_hit": sum(float(own[at]) for own, at in zip(found, shared, strict=True)) / 2,
            "object_share": sum(shares) / 2,
            "link_hit": float(largest(_links(explained, key, mass, ready))[shared]),
            "object_agrees": sum(float((a * b).sum() / (b * b).sum()) for a, b in zip(found, best, strict=True)) / 2,
        }
    chance = {"object_hit": 1 / count, "object_share": 1 / count, "link_hit": 1 / count**2, "object_agrees": 1 / count}
    return CaseNumbers(values, chance, exact)


def object_links(interactions: Interactions, truth: tuple[Tensor, Tensor]) -> Tensor:
    """What the match of every object of x with every object of y adds to the score, (k,k), from the interactions."""
    regions = [{str(place): tuple(map(float, box)) for place, box in enumerate(own.tolist())} for own in truth]
    found = interactions.between(regions[0], regions[1]).values
    return found[: len(truth[0]), : len(truth[1])].detach().cpu().double()


def _links(explained: ExplainedPair, key: str, mass: list[Tensor], ready: ReadyCase) -> Tensor:
    """The score of every link between two objects, (k,k): from the interactions, or the product of the masses."""
    if key in explained.interactions:
        return object_links(explained.interactions[key], ready.truth)
    return mass[0][:, None] * mass[1][None, :]


def measure_patch(ready: ReadyCase, explained: ExplainedPair) -> CaseNumbers:
    """Is the copied patch found on both sides?"""
    insides = [_inside(truth, own.shape) for truth, own in zip(ready.truth, _first(explained), strict=True)]
    values: CaseValues = {}
    for key, maps in explained.maps.items():
        sides = [_patch_values(own, inside) for own, inside in zip(maps, insides, strict=True)]
        values[key] = {name: sum(side[name] for side in sides) / 2 for name in sides[0]}
        values[key]["patch_both"] = sides[0]["patch_peak"] * sides[1]["patch_peak"]
    areas = [float(inside.double().mean()) for inside in insides]
    chance = {"patch_peak": sum(areas) / 2, "patch_both": areas[0] * areas[1], "patch_energy": 1.0, "patch_auc": 0.5}
    return CaseNumbers(values, chance)


def _patch_values(map: Tensor, inside: Tensor) -> dict[str, float]:
    positive, area = map.double().relu(), float(inside.double().mean())
    top = positive >= positive.max()
    total = float(positive.sum())
    return {
        "patch_peak": float((top & inside).sum() / top.sum()),
        "patch_energy": float(positive[inside].sum()) / total / area if total > 0 else 1.0,
        "patch_auc": pixel_auc(positive, inside),
    }


def measure_photos(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair) -> CaseNumbers:
    """The curves, the change with the partner, and the overlap of boxes: those that the plan has."""
    plan, names = maker.plan, ready.case.images
    values: CaseValues = {key: {} for key in explained.maps}
    if "curves" in plan.tests:
        _add(values, _curves(maker, ready, explained))
    if "partner" in plan.tests:
        again = maker.with_partner(explained, ready.images[0], ready.images[2], (names[0], names[2]))
        for key, own in again.items():
            values[key]["partner_change"] = partner_change(explained.maps[key][0], own)
    if "boxes" in plan.tests:
        for key, maps in explained.maps.items():
            grids = [metrics.iou_grid(own[None], [truth]) for own, truth in zip(maps, ready.truth, strict=True)]
            values[key]["box_overlap"] = [[round(value, 6) for value in grid[0].tolist()] for grid in grids]
    return CaseNumbers(values)


def _curves(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair) -> CaseValues:
    """Insertion and deletion: x is masked by its map while y stays whole and the other way round; their mean."""
    protocol, lens = maker.plan.masking(), maker.lens
    forwards = MaskedForwards(maker.run, at_once=maker.at_once)
    images = []
    for place in (0, 1):
        side = prepare(ready.images[place][None], maker.transform)
        whole = explained.embeddings[place].to(lens.device)
        images.append(MaskedImages(lens, side, [ready.case.images[place]], protocol, forwards, whole))
    items = pair_items((images[0], images[1]), protocol)
    asked = {key: [_steps(items, place, maps[place], maker.plan.curves) for place in (0, 1)]
             for key, maps in explained.maps.items()}  # fmt: skip
    found: CaseValues = {}
    for key, sides in asked.items():
        areas = [[float(metrics.auc(items.bounded_scores(tickets))) for tickets in side] for side in sides]
        found[key] = {name: (areas[0][at] + areas[1][at]) / 2 for at, name in enumerate(("inserted", "deleted"))}
    return found


def _steps(items: ScoredItems, place: int, map: Tensor, count: int) -> tuple[list[Tickets], list[Tickets]]:
    """Ask for every step of insertion and of deletion of one image; answers are taken when all are asked for."""
    own = items.images[place]
    masks = list(metrics.steps(map[None], count))
    shown = [items.ask([place], [own.shown(mask)]) for mask in masks]
    return shown, [items.ask([place], [own.shown(~mask)]) for mask in masks]


def _add(values: CaseValues, more: Mapping[str, Mapping[str, Any]]) -> None:
    for key, own in more.items():
        values[key].update(own)


def _first(explained: ExplainedPair) -> MapPair:
    return next(iter(explained.maps.values()))


def _inside(truth: Tensor, shape: torch.Size) -> Tensor:
    """The pixels of the first box, bool (H,W)."""
    found = torch.zeros(shape, dtype=torch.bool)
    x0, y0, x1, y1 = truth[0].int().tolist()
    found[y0:y1, x0:x1] = True
    return found
