"""The cases of the tests of pairs, drawn from a labelled data set by a seed. They hold names and numbers, no pixels.

Every case has draws of its own, by the seed, the kind and its number: the first cases are the same whatever the limit.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gamlens.data import Box, Dataset, Sample
from gamlens.data.reading import read_json
from gamlens.errors import GamlensError, near, readable, reworded, warn
from gamlens.evaluation.pair_tests.pair_plan import MOST_OBJECTS, PATCHES, PHOTO_PAIRS, SCENES, PairPlan

LEAST_BOX = 24  # pixels: objects whose box has a shorter side are not put into scenes
SMALLEST_PATCH, LARGEST_PATCH = 1 / 3, 1 / 2  # sides of the patch as shares of the input: 1/9 to 1/4 of its area
PLACES_TRIED = 24  # where a patch could go in y; it goes where it overlaps least with its place in x
MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
DRAWS_TRIED = 200  # for a photo that shows no class that was used already
T = TypeVar("T")
Place = tuple[float, float]  # (across, down), from 0 at the first to 1 at the last place


@dataclass(frozen=True)
class PlacedObject:
    """An object of a scene.

    Attributes:
        image: The name of the photo in the data set.
        label: The object's class.
        box: Its box x0,y0,x1,y1 in the photo, as shares of the photo's width and height.
        quadrant: Where it lies in the scene: 0 and 1 above, 2 and 3 below.
    """

    image: str
    label: int
    box: tuple[float, float, float, float]
    quadrant: int


@dataclass(frozen=True)
class CopiedPatch:
    """A square of x that is copied into y.

    Attributes:
        side: Its side, as a share of the input's shorter side.
        x_place, y_place: Where it lies in x and in y: (across, down), from 0 at the first to 1 at the last place.
    """

    side: float
    x_place: Place
    y_place: Place


@dataclass(frozen=True)
class PairCase:
    """One case.

    Attributes:
        name: Its name in results, such as "scenes-0003".
        kind: "photos", "scenes" or "patches".
        seed: The text that seeds its draws.
        images: For photos x, y of the same class, and z of another one; for patches x and y of different classes.
        labels: The classes of these images.
        scenes: For scenes the objects of X and of Y, ordered by quadrant.
        shared: For scenes the index of the object of the shared class in X and in Y.
        patch: For patches the copied square.
        held_out: For photos whether the pair helps to choose thresholds, and is left out of the numbers of boxes.
    """

    name: str
    kind: str
    seed: str
    images: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    scenes: tuple[tuple[PlacedObject, ...], ...] = ()
    shared: tuple[int, ...] = ()
    patch: CopiedPatch | None = None
    held_out: bool = False

    @property
    def objects(self) -> int:
        """The number of objects per scene; 0 for other kinds."""
        return len(self.scenes[0]) if self.scenes else 0


class Draws:
    """Random choices that depend on a text alone, and are the same in every version of Python."""

    def __init__(self, seed: str) -> None:
        self._next = random.Random(seed).random

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._next()

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._next() * len(options))]

    def order(self, options: Iterable[T]) -> list[T]:
        """The options in random order."""
        return [one for _, _, one in sorted((self._next(), place, one) for place, one in enumerate(options))]


def pair_cases(dataset: Dataset, plan: PairPlan) -> list[PairCase]:
    """Draw `plan.limit` cases of every kind that the tests need, one kind after the other in turn."""
    makers = {PHOTO_PAIRS: _photos, SCENES: _scene, PATCHES: _patch}
    if unread := sorted(sample.name for sample in dataset if sample.boxes and sample.size is None):
        first = f"{len(unread)} photos" if len(unread) > 1 else "One photo"
        warn(f"{first} with boxes can be in no case that needs them, since the file cannot be read: {unread[0]!r}.")
    pools = {kind: _pool(dataset, plan, kind) for kind in plan.kinds}
    orders = {kind: Draws(f"{plan.seed}:{kind}").order(_chosen_classes(pools[kind], kind)) for kind in plan.kinds}
    found = []
    for number in range(plan.limit):
        for kind in plan.kinds:
            seed = f"{plan.seed}:{kind}:{number}"
            label = orders[kind][number % len(orders[kind])]
            found.append(makers[kind](f"{kind}-{number:04d}", seed, label, number, pools[kind], plan))
    return found


def manifest_text(dataset: Dataset, plan: PairPlan, cases: Sequence[PairCase]) -> str:
    """The cases as JSON, one per line: names of photos, numbers and seeds."""
    head = {"kind": "cases of the tests of pairs", "seed": plan.seed, "source": dataset.fingerprint()}
    lines = ",\n".join(f"    {json.dumps(_plain(case), ensure_ascii=False)}" for case in cases)
    return f'{json.dumps(head, ensure_ascii=False, indent=2)[:-2]},\n  "cases": [\n{lines}\n  ]\n}}\n'


def read_cases(file: Path, dataset: Dataset, plan: PairPlan) -> list[PairCase]:
    """The cases of a manifest, those that the plan's tests need. Every photo in them must be in the data set."""
    found = read_json(file)
    with reworded(f"{readable(str(file))!r} is no list of cases as gamlens evaluate pairs writes it", *MALFORMED):
        cases = [_case(own) for own in found["cases"] if own["kind"] in plan.kinds]
        names = {sample.name for sample in dataset}
        photos = [name for case in cases for name in (*case.images, *(own.image for s in case.scenes for own in s))]
    if lost := [name for name in photos if name not in names]:
        raise GamlensError(
            f"{readable(str(file))!r} names the photo {lost[0]!r}, which the data set {dataset.name!r} in "
            f"{dataset.root!r} does not have: {near(lost[0], names)}"
        )
    if missing := [kind for kind in plan.kinds if kind not in {case.kind for case in cases}]:
        raise GamlensError(f"{readable(str(file))!r} has no {missing[0]}, which the tests need: leave their tests out.")
    return cases


def _case(own: Mapping[str, Any]) -> PairCase:
    """The case that `_plain` describes."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    given["scenes"] = tuple(
        tuple(PlacedObject(**{**one, "box": tuple(one["box"])}) for one in scene) for scene in own.get("scenes", ())
    )
    if patch := own.get("patch"):
        given["patch"] = CopiedPatch(patch["side"], tuple(patch["x_place"]), tuple(patch["y_place"]))
    return PairCase(**given)


def cases_sha256(cases: Sequence[PairCase]) -> str:
    """The sha256 of all cases, which tells two draws apart."""
    return hashlib.sha256(json.dumps([_plain(case) for case in cases]).encode()).hexdigest()


def _plain(case: PairCase) -> dict[str, Any]:
    """The fields of a case that say something."""
    return {name: value for name, value in asdict(case).items() if value not in (None, (), False)}


Pool = Mapping[int, Sequence[tuple[Sample, Box | None]]]  # by class: photos, each with the largest box of the class


def _pool(dataset: Dataset, plan: PairPlan, kind: str) -> Pool:
    """The photos of every class, sorted by name, those that can be used for a kind of cases.

    Scenes, patches and the test of boxes need boxes.
    """
    boxed = kind != PHOTO_PAIRS or "boxes" in plan.tests
    found: dict[int, list[tuple[Sample, Box | None]]] = defaultdict(list)
    for sample in sorted(dataset, key=lambda sample: sample.name):
        for label in sample.labels:
            own = [box for box in sample.boxes if box.label == label and sample.size is not None]
            largest = max(own, key=lambda box: box.area, default=None)
            short = 0.0 if largest is None else min(largest.x1 - largest.x0, largest.y1 - largest.y0)
            if short >= (LEAST_BOX if kind == SCENES else 1) or not boxed:
                found[label].append((sample, largest))
    if boxed and not found:
        tests = "curves and partner need none (--tests curves,partner)"
        raise GamlensError(
            f"The data set {dataset.name!r} in {dataset.root!r} has no boxes, which {kind} are made by: use data with "
            f"boxes; the tests {tests}."
        )
    return dict(found)


def _chosen_classes(pool: Pool, kind: str) -> list[int]:
    """The classes that cases are drawn of: those with two photos where both sides show the class."""
    several = [label for label, own in sorted(pool.items()) if len(own) > 1 or kind == PATCHES]
    if not several or len(pool) < 2:
        raise GamlensError(
            f"There are {len(pool)} classes, {len(several)} of them with two photos that can be used: {kind} need one "
            "with two photos, and another class."
        )
    return several


def _photos(name: str, seed: str, label: int, number: int, pool: Pool, plan: PairPlan) -> PairCase:
    """Two photos of a class, and one that shows none of the classes of the first."""
    draws = Draws(seed)
    x, y = (sample for sample, _ in draws.order(pool[label])[:2])
    other, (z, _) = _another(draws, pool, {*x.labels, *y.labels}, name)
    held_out = bool(plan.hold_out) and "boxes" in plan.tests and number % plan.hold_out == 0
    return PairCase(name, PHOTO_PAIRS, seed, (x.name, y.name, z.name), (label, label, other), held_out=held_out)


def _patch(name: str, seed: str, label: int, number: int, pool: Pool, plan: PairPlan) -> PairCase:
    """A square around the object of x, which goes to another place in a photo of another class."""
    draws = Draws(seed)
    x, box = draws.pick(pool[label])
    other, (y, _) = _another(draws, pool, {*x.labels}, name)
    side = draws.between(SMALLEST_PATCH, LARGEST_PATCH)
    left, top, right, bottom = _shares(x, box)
    centre = [draws.between((3 * a + b) / 4, (a + 3 * b) / 4) for a, b in ((left, right), (top, bottom))]
    across, down = (min(max((middle - side / 2) / (1 - side), 0.0), 1.0) for middle in centre)
    tried = [(draws.between(0, 1), draws.between(0, 1)) for _ in range(PLACES_TRIED)]
    place = min(tried, key=lambda one: _overlap((across, down), one, side))
    patch = CopiedPatch(side, (across, down), place)
    return PairCase(name, PATCHES, seed, (x.name, y.name), (label, other), patch=patch)


def _scene(name: str, seed: str, label: int, number: int, pool: Pool, plan: PairPlan) -> PairCase:
    """Two scenes of k objects: one of the class `label` in each, and all others of different classes."""
    draws, count = Draws(seed), plan.objects[number % len(plan.objects)]
    pair = draws.order(pool[label])[:2]
    used = {label}.union(*(sample.labels for sample, _ in pair))
    scenes, shared = [], []
    for own in pair:
        chosen = [(label, own)]
        while len(chosen) < count:
            other, another = _another(draws, pool, used, name)
            used |= {*another[0].labels}
            chosen.append((other, another))
        quadrants = draws.order(range(MOST_OBJECTS))[:count]
        placed = [
            PlacedObject(sample.name, own_label, _shares(sample, box), quadrant)
            for (own_label, (sample, box)), quadrant in zip(chosen, quadrants, strict=True)
        ]
        ordered = sorted(placed, key=lambda one: one.quadrant)
        scenes.append(tuple(ordered))
        shared.append(ordered.index(placed[0]))
    return PairCase(name, SCENES, seed, scenes=tuple(scenes), shared=tuple(shared))


def _another(draws: Draws, pool: Pool, used: set[int], name: str) -> tuple[int, tuple[Sample, Box | None]]:
    """A class that is not used yet, and a photo of it that shows none of the used classes."""
    free = [label for label in sorted(pool) if label not in used]
    for _ in range(DRAWS_TRIED if free else 0):
        label = draws.pick(free)
        found = draws.pick(pool[label])
        if used.isdisjoint(found[0].labels):
            return label, found
    raise GamlensError(
        f"{name}: there is no photo that shows none of the {len(used)} classes that the case has already: use data "
        "with more classes, or fewer objects per scene (--objects)."
    )


def _shares(sample: Sample, box: Box | None) -> tuple[float, float, float, float]:
    """A box as shares of its photo's width and height; the whole photo without a box."""
    if box is None or sample.size is None:
        return (0.0, 0.0, 1.0, 1.0)
    height, width = sample.size
    return (box.x0 / width, box.y0 / height, box.x1 / width, box.y1 / height)


def _overlap(one: Place, other: Place, side: float) -> float:
    """The area that two squares of one side share, given by their places."""
    along, down = (max(0.0, side - abs(a - b) * (1 - side)) for a, b in zip(one, other, strict=True))
    return along * down
