"""Pictures of a few cases: both images with the map of every explainer, and the links that interactions find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gamlens import render
from gamlens.engine import ResultRow
from gamlens.errors import GamlensError, attempt
from gamlens.evaluation.pair_tests.case_images import ReadyCase, SamplesByName, load_case
from gamlens.evaluation.pair_tests.pair_cases import PairCase
from gamlens.evaluation.pair_tests.pair_explainers import (
    OWN_TITLES,
    ExplainedPair,
    PairExplainers,
    PairRow,
    title_of_row,
)
from gamlens.evaluation.pair_tests.pair_measures import object_links
from gamlens.evaluation.pair_tests.pair_plan import PAIR_TESTS, PATCHES, PHOTO_PAIRS, SCENES
from gamlens.evaluation.pair_tests.pair_runs import seeding_names
from gamlens.inputs.images import Picture
from gamlens.render import RGB, Block, Grid, Heading, LineKey, LinkMark, Panel

PICTURED = 3  # cases per kind
COLUMNS = 3  # panels per line
LINKS_SHOWN = 4
GAP = 6  # pixels between the two images of a panel
SHARED_INK: RGB = (64, 224, 120)
OTHER_INK: RGB = (255, 255, 255)


@dataclass
class CasePictures:
    """The blocks of a page with the pictures of cases, by the test that they belong to."""

    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def add(self, test: str, blocks: Iterable[Block]) -> None:
        self.blocks.setdefault(test, []).extend(blocks)


def chosen_cases(cases: Sequence[PairCase], rows: Sequence[ResultRow], count: int = PICTURED) -> list[PairCase]:
    """The first cases of every kind that were measured; of scenes those with most objects first, one of each number."""
    good = {row["case"] for row in rows if not row["error"]}
    found: list[PairCase] = []
    for kind in dict.fromkeys(PAIR_TESTS.values()):
        own = [case for case in cases if case.kind == kind and case.name in good]
        places = {number: place for place, number in enumerate(sorted({case.objects for case in own}, reverse=True))}
        seen: dict[int, int] = {}
        turns = []
        for case in own:  # the first case of every number of objects comes before the second of any
            seen[case.objects] = seen.get(case.objects, 0) + 1
            turns.append((seen[case.objects], places[case.objects]))
        found += [case for _, case in sorted(zip(turns, own, strict=True), key=lambda one: one[0])][:count]
    return found


def case_pictures(
    maker: PairExplainers,
    samples: SamplesByName,
    cases: Sequence[PairCase],
    rows: Sequence[ResultRow],
    classes: Sequence[str],
    *,
    status: Callable[[str], None] = lambda name: None,
) -> CasePictures:
    """Explain cases again, and draw them. A case whose photos cannot be read any more is left out.

    Args:
        maker: Explains pairs.
        samples: The photos by name.
        cases: The cases to show.
        rows: The rows of the run, whose numbers are the captions.
        classes: The class names of the data set.
        status: Called with the name of each case as it begins.
    """
    found, known = CasePictures(), {row["case"]: row for row in rows}
    for case in cases:
        status(case.name)
        ready = attempt(load_case, case, samples, maker.transform)
        if isinstance(ready, GamlensError):
            continue
        explained = maker.explain(ready.images[0], ready.images[1], seeding_names(case))
        _draw_case(found, maker, ready, explained, known[case.name], classes)
    return found


def _draw_case(
    found: CasePictures,
    maker: PairExplainers,
    ready: ReadyCase,
    explained: ExplainedPair,
    row: ResultRow,
    classes: Sequence[str],
) -> None:
    case, plan = ready.case, maker.plan
    head = Heading(f"{case.name}: {_named(case, classes)}")
    if case.kind == PHOTO_PAIRS:
        if home := next((test for test in ("curves", "boxes") if test in plan.tests), None):
            found.add(home, [head, _grid(maker, ready, explained, row)])
        if "partner" in plan.tests:
            found.add("partner", [head, _partner_grid(maker, ready, explained, row)])
        return
    blocks: list[Block] = [head, _grid(maker, ready, explained, row)]
    if case.kind == SCENES and explained.interactions:
        blocks.append(_linked(maker, ready, explained))
    found.add(next(test for test, kind in PAIR_TESTS.items() if kind == case.kind), blocks)


def _grid(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair, row: ResultRow) -> Grid:
    """One panel with both images, and one per explainer with both maps over them."""
    photos = [_photo(maker, image) for image in ready.images[:2]]
    panels = [Panel(_beside([_marked(ready, photo, side) for side, photo in enumerate(photos)]), "x and y")]
    for explainer in _shown(maker):
        maps = explained.maps[explainer.key]
        pictures = [
            _marked(ready, render.overlay(photo, _values(own)), side)
            for side, (photo, own) in enumerate(zip(photos, maps, strict=True))
        ]
        caption = _caption(row["values"].get(explainer.key, {}))
        panels.append(Panel(_beside(pictures), _title(maker, explainer), caption))
    return Grid(_lines(panels), keys=_keys(ready.case.kind))


def _partner_grid(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair, row: ResultRow) -> Grid:
    """One panel with x and its two partners, and one per explainer: the map of x with the one and with the other."""
    names = ready.case.images
    again = maker.with_partner(explained, ready.images[0], ready.images[2], (names[0], names[2]))
    photos = [_photo(maker, image) for image in ready.images]
    panels = [Panel(_beside(photos[1:]), "the partners y and z", "the map of x with y, left, and with z, right")]
    for explainer in _shown(maker):
        both = (explained.maps[explainer.key][0], again[explainer.key])
        change = row["values"].get(explainer.key, {}).get("partner_change")
        caption = "" if change is None else f"change {change:.2f}"
        pictures = [render.overlay(photos[0], _values(own)) for own in both]
        panels.append(Panel(_beside(pictures), _title(maker, explainer), caption))
    return Grid(_lines(panels))


def _linked(maker: PairExplainers, ready: ReadyCase, explained: ExplainedPair) -> Panel:
    """Both scenes with the strongest links between objects, by the last of the rows that have interactions."""
    key, found = list(explained.interactions.items())[-1]
    links = object_links(found, ready.truth)
    most = max(float(links.abs().max()), 1e-30)
    score = abs(found.score) or 1.0  # shares have the sign of what they are shares of
    order = links.flatten().argsort(descending=True, stable=True)[:LINKS_SHOWN].tolist()
    marks = []
    for i, j in ((at // links.shape[1], at % links.shape[1]) for at in order):
        boxes = [tuple(map(float, ready.truth[side][at].tolist())) for side, at in ((0, i), (1, j))]
        value = float(links[i, j])
        marks.append(
            LinkMark(
                _centre(boxes[0]),
                _centre(boxes[1]),
                value / most,
                f"{100 * value / score:.0f} %",
                _corners(boxes[0]),
                _corners(boxes[1]),
            )
        )
    photos = [_marked(ready, _photo(maker, image), side) for side, image in enumerate(ready.images)]
    right = order[0] == ready.case.shared[0] * links.shape[1] + ready.case.shared[1]
    words = (
        f"the {len(order)} highest links between objects, with their shares of the similarity; the highest one is "
        f"{'' if right else 'not '}that of the shared class"
    )
    picture = render.linked(photos[0], photos[1], marks)
    return Panel(picture, OWN_TITLES[key], words, mark="good" if right else "bad")


def _marked(ready: ReadyCase, picture: Image.Image, side: int) -> Image.Image:
    """A picture of x (0) or y (1) with the true boxes, the copied patch, or the objects; the shared one in green."""
    boxes = [_corners(tuple(map(float, box))) for box in ready.truth[side].tolist()]
    boxes = [box for box in boxes if box[0] < box[2] and box[1] < box[3]]
    if ready.case.kind != SCENES:
        ink = SHARED_INK if ready.case.kind == PATCHES else OTHER_INK
        return render.boxed(picture, boxes, colour=ink)
    shared = boxes.pop(ready.case.shared[side])
    return render.boxed(render.boxed(picture, boxes, dashed=True), [shared], colour=SHARED_INK, thick=1.5)


def _keys(kind: str) -> tuple[LineKey, ...]:
    """The legend of the lines in the pictures of a kind of cases."""
    return {
        PHOTO_PAIRS: (LineKey("true box", OTHER_INK),),
        SCENES: (LineKey("object of the shared class", SHARED_INK), LineKey("other objects", OTHER_INK, dashed=True)),
        PATCHES: (LineKey("copied patch", SHARED_INK),),
    }[kind]


def _caption(values: Mapping[str, Any]) -> str:
    """The numbers of one explainer on this case, in words."""
    words = {
        "inserted": "insertion {:.2f}", "deleted": "deletion {:.2f}", "object_hit": "hit {:.0%}",
        "object_share": "share {:.0%}", "link_hit": "link {:.0%}", "patch_peak": "peak {:.0%}",
        "patch_energy": "energy {:.1f}", "patch_auc": "AUC {:.2f}",
    }  # fmt: skip
    known = ((text, values.get(name)) for name, text in words.items())
    return ", ".join(text.format(value) for text, value in known if value is not None)


def _named(case: PairCase, classes: Sequence[str]) -> str:
    def name(label: int) -> str:
        return classes[label].split(",")[0] if label < len(classes) else f"class {label}"

    if case.kind == SCENES:
        shared = case.scenes[0][case.shared[0]].label
        others = [name(one.label) for scene in case.scenes for one in scene if one.label != shared]
        return f"{name(shared)} in both" + (f"; others: {', '.join(others)}" if others else "")
    if case.kind == PATCHES:
        return f"a patch of {name(case.labels[0])} in {name(case.labels[1])}"
    return f"{name(case.labels[0])}, and {name(case.labels[2])} as the other partner"


def _shown(maker: PairExplainers) -> list[PairRow]:
    return [row for row in maker.rows if not row.control]


def _title(maker: PairExplainers, row: PairRow) -> str:
    return title_of_row(row, several=len(maker.plan.n) > 1)


def _photo(maker: PairExplainers, image: Tensor) -> Image.Image:
    return Picture("image", tensor=image, scale=(maker.transform.mean, maker.transform.std)).open()


def _values(map: Tensor) -> NDArray[np.float32]:
    return np.asarray(map.float().clamp(0, 1).numpy(), dtype=np.float32)


def _beside(pictures: Sequence[Image.Image]) -> Image.Image:
    return render.beside(pictures, gap=GAP)


def _lines(panels: Sequence[Panel]) -> tuple[tuple[Panel | None, ...], ...]:
    filled: list[Panel | None] = [*panels, *([None] * (-len(panels) % min(COLUMNS, len(panels))))]
    return tuple(tuple(filled[at : at + COLUMNS]) for at in range(0, len(filled), COLUMNS))


def _centre(box: Sequence[float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    return box[0], box[1], box[2], box[3]
