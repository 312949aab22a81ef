"""The best and the worst items of a run as pictures. The images are read again from the data set."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gamlens.data import Sample, load
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.evaluation.results import Run
from gamlens.explanation import Explanation
from gamlens.figures.localization_figures import place_panel, truth_panel
from gamlens.figures.panels import SALIENCY_KEY, heat, place_keys
from gamlens.figures.request import example_of
from gamlens.inputs.images import upright
from gamlens.lens import Lens
from gamlens.render import Block, Grid, Heading, LineKey, Panel, ScaleKey, Text, thumbnail
from gamlens.report.paired_values import Column, ItemKey, gains

CASE_SIDE = 320


@dataclass(frozen=True, eq=False)
class Source:
    """The items of a run with their images and ground truth.

    Attributes:
        units: The items by name; empty if they cannot be read.
        classes: The class names of the data set.
        missing: Why the items cannot be read; "" if they can.
    """

    units: Mapping[str, Unit]
    classes: tuple[str, ...] = ()
    missing: str = ""


def source(run: Run, *, root: Path | None, split: str | None) -> Source:
    """The data set that a run was measured on, read again from `root`, or from where it was during the run."""
    about = run.about
    place = str(root) if root is not None else str(about.get("root") or "")
    if not place:
        return Source({}, missing="The run does not say where its images are: name the folder with --root.")
    try:
        dataset = load(about["data"], place, split=split)
        protocol = Protocol.from_record(about["protocol"])
        return Source({unit.name: unit for unit in units(dataset, protocol)}, dataset.classes)
    except (GamlensError, TypeError) as error:
        return Source({}, missing=f"The images of this run cannot be read: {error} Name the folder with --root.")


def areas(found: Source, keys: Sequence[ItemKey]) -> dict[ItemKey, float]:
    """The share of the image that the object covers, for every item and side that has a box or a mask."""
    shares: dict[ItemKey, float] = {}
    known = [(key, found.units[key[0]]) for key in keys if key[0] in found.units]
    for key, unit in known:
        sample = _sample(unit, key[1])
        own = [box.area for box in sample.boxes if box.label == unit.label]
        if own and sample.size:
            shares[key] = min(1.0, max(own) / (sample.size[0] * sample.size[1]))
        elif sample.mask is not None:
            shares[key] = float(sample.load_mask(unit.label).mean())
    return shares


def cases(run: Run, found: Source, base: Column, other: Column | None, *, lens: Lens | None, count: int) -> list[Block]:
    """Show the best and worst items of the column `base`, and the items on which it gains and loses most over `other`.

    With a lens the maps are drawn again; without it only photos and ground truth are shown. `count` items per group.
    """
    if found.missing:
        return [Text(found.missing)]
    used = base.counted.nonzero()[:, 0].tolist()
    ranked = sorted(used, key=lambda n: -base.sign * float(base.values[n]))
    order = [base.keys[n] for n in ranked]
    chosen = [(f"{base.name}: best", order[:count]), (f"{base.name}: worst", order[::-1][:count])]
    if other is not None:
        gain = gains(base, other)
        order = sorted(gain, key=lambda key: -gain[key])
        won, lost = [key for key in order if gain[key] > 0], [key for key in reversed(order) if gain[key] < 0]
        chosen.append((f"{base.name} gains most over {other.name}", won[:count]))
        chosen.append((f"{base.name} loses most to {other.name}", lost[:count]))
    note = Text("Only photos and ground truth are shown; name the model (`--model`) to have the maps drawn again.")
    blocks: list[Block] = [note] if lens is None else []
    for title, keys in chosen:
        blocks += _gallery(run, found, title, keys, [base, *([other] if other else [])], lens)
    return blocks


def _gallery(
    run: Run, found: Source, title: str, keys: Sequence[ItemKey], shown: Sequence[Column], lens: Lens | None
) -> list[Block]:
    rows, labels, gone = [], [], []
    for key in keys:
        unit = found.units.get(key[0])
        try:
            if unit is None:
                raise GamlensError(f"{key[0]!r} is not in the data set that was read.")
            rows.append(tuple(_panels(run, unit, key[1], shown, lens)))
            side = f" ({key[1]})" if key[1] else ""
            label = found.classes[unit.label].split(",")[0] if unit.label < len(found.classes) else ""
            labels.append(f"{_sample(unit, key[1]).name}{side}" + ("" if label.isdigit() else f" {label}"))
        except GamlensError as error:
            gone.append(str(error))
    blocks: list[Block] = [Heading(title)] if rows or gone else []
    if rows:
        heads = ("Photo", *((column.name for column in shown) if lens is not None else ()))
        blocks.append(Grid(tuple(rows), heads, tuple(labels), keys=_keys(run, lens is not None)))
    if gone:
        blocks.append(Text(f"{len(gone)} pictures are missing: {gone[0]}"))
    return blocks


def _keys(run: Run, maps: bool) -> tuple[ScaleKey | LineKey, ...]:
    kind = _truth_kind(run)
    if kind == "objective":
        return (SALIENCY_KEY,) if maps else ()
    keys = place_keys("predicted, at the method's threshold", truth=True, dashed=kind == "localization")
    return keys if maps else keys[-1:]


def _panels(run: Run, unit: Unit, side: str, shown: Sequence[Column], lens: Lens | None) -> list[Panel]:
    """The photo with its ground truth, then the map of each column with its value as the caption."""
    sample, kind = _sample(unit, side), _truth_kind(run)
    example = example_of(sample, unit, kind)
    truth = truth_panel(example, upright(sample.image))
    values = [_value(column, (unit.name, side)) for column in shown]
    if lens is None:
        words = ", ".join(f"{column.name} {value}" for column, value in zip(shown, values, strict=True))
        panels = [replace(truth, caption=words)]
    else:
        panels = [truth]
        for column, value, result in zip(shown, values, _maps(run, unit, side, shown, lens), strict=True):
            caption = f"{column.item_title} {value}"
            if column.threshold is None:
                panels.append(heat(result, caption=caption))
            else:
                place = place_panel(result, example, column.threshold, masks=kind == "segmentation")
                panels.append(replace(place, caption=caption))
    return [replace(panel, image=thumbnail(panel.image, CASE_SIDE)) for panel in panels]


def _maps(run: Run, unit: Unit, side: str, shown: Sequence[Column], lens: Lens) -> list[Explanation]:
    choices = run.about["protocol"]
    most = max(column.n for column in shown)
    views: Any = tuple(choices.get("views") or ())
    protocol = Protocol.from_record(choices)
    read = [*dict.fromkeys(column.method for column in shown)]
    how: dict[str, Any] = {"lattice": protocol.lattice, "refine": protocol.refinement}
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        if choices["task"] == "classification":
            trace = lens.trace(
                unit.samples[0].image, [unit.label], n=most, method=read, views=views, refine=how["refine"]
            )
            return [trace.explain(column.method, column.n, **how) for column in shown]
        images = (sample.image for sample in unit.samples)
        pair = lens.trace_pair(*images, n=most, method=read, views=views, refine=how["refine"])
        both = [pair.explain(column.method, column.n, score=choices["task"], **how) for column in shown]
        return [result.y if side == "y" else result.x for result in both]


def _truth_kind(run: Run) -> str:
    """The kind of the run's ground truth; "objective" if it has none."""
    return Protocol.from_record(run.about["protocol"]).truth or "objective"


def _value(column: Column, key: ItemKey) -> str:
    return f"{float(column.values[column.keys.index(key)]):.1f} %" if key in column.keys else "-"


def _sample(unit: Unit, side: str) -> Sample:
    return unit.samples[1 if side == "y" else 0]
