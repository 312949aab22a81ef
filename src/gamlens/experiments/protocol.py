"""What is measured and how: every choice by name, recorded with every result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gamlens import methods
from gamlens.data import Dataset, Sample, narrow, neighbour_pairs, pairs, small
from gamlens.errors import GamlensError, near
from gamlens.prepare import Views

KINDS = ("objective", "localization", "segmentation")
TASKS = ("classification", "cosine", "dot")
SUBSETS = ("all", "25", "10")
CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS,
    "task": TASKS,
    "subset": SUBSETS,
    "input": ("squash", "crop"),
    "fill": ("black", "mean"),
    "masked": ("one", "both"),
    "box": ("all", "largest"),
    "pairs": ("drawn", "neighbour"),
}


@dataclass(frozen=True)
class Protocol:
    """One measurement. Defaults are the paper's, as we read it."""

    kind: str = "localization"
    task: str = "classification"
    methods: tuple[str, ...] = ("gam", "grad_cam_pp", "grad_cam")
    n: tuple[int, ...] = (1, 2)
    subset: str = "all"
    input: str = "squash"
    fill: str = "black"
    masked: str = "one"
    box: str = "all"
    pairs: str = "drawn"
    seed: int = 0
    hold_out: int = 10
    views: tuple[str | float, ...] = ()

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise GamlensError(
                    f"{name}={getattr(self, name)!r} is no choice: {near(str(getattr(self, name)), choices)}"
                )
        for method in self.methods:
            if methods.find(method).kind == "input":
                raise GamlensError(f"Method {method!r} reads no blocks: evaluate methods such as gam or grad_cam.")
            if methods.find(method).kind != "block" and self.task == "classification":
                raise GamlensError(f"Method {method!r} explains pairs only: use task cosine or dot.")
        if not self.methods or not self.n or min(self.n) < 1 or self.hold_out < 0:
            raise GamlensError(f"Give at least one method and n of 1 or more; found {self.methods}, n={self.n}.")
        if self.kind == "segmentation" and self.task != "classification":
            raise GamlensError("Segmentation is measured for classes only: use task classification.")

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Unit:
    """One item to measure: an image and a class, or a pair of images of one class; held out for thresholds or not."""

    name: str
    samples: tuple[Sample, ...]
    label: int
    held_out: bool = False


def units(dataset: Dataset, protocol: Protocol) -> list[Unit]:
    """The items of a protocol, sorted by name; every `hold_out`-th chooses thresholds and is left out of IoU."""
    found = _pair_units(dataset, protocol) if protocol.task != "classification" else _class_units(dataset, protocol)
    if not found:
        raise GamlensError(f"{dataset.name} at {dataset.root!r} has no item for {protocol.kind} by {protocol.task}.")
    every = protocol.hold_out
    return [
        Unit(unit.name, unit.samples, unit.label, bool(every) and place % every == 0)
        for place, unit in enumerate(found)
    ]


def check_classes(labels: Sequence[str], dataset: Dataset) -> None:
    """An error where the model's classes cannot be the data set's: labels are compared by their number."""
    named = [name for name in dataset.classes if not name.isdigit()]
    if labels and named and len(labels) != len(dataset.classes):
        raise GamlensError(
            f"The model has {len(labels)} classes ({', '.join(labels[:3])}, ...), {dataset.name} has "
            f"{len(dataset.classes)} ({', '.join(dataset.classes[:3])}, ...): use a model of these classes, or task "
            "cosine or dot."
        )


def _class_units(dataset: Dataset, protocol: Protocol) -> list[Unit]:
    masks = protocol.kind == "segmentation"
    keep = None
    if protocol.subset != "all":
        keep = {(item.names[0], item.label) for item in small(dataset, float(protocol.subset), masks=masks).items}
    found = []
    for sample in sorted(dataset.samples, key=lambda sample: sample.name):
        for label in sample.labels:
            usable = sample.mask is not None if masks else _has_box(sample, label) or protocol.kind == "objective"
            wanted = keep is None or (sample.name, label) in keep or (not masks and (sample.name, -1) in keep)
            if usable and wanted:
                several = len(sample.labels) > 1
                found.append(Unit(f"{sample.name}#{label}" if several else sample.name, (sample,), label))
    return found


def _pair_units(dataset: Dataset, protocol: Protocol) -> list[Unit]:
    if protocol.subset != "all":
        dataset = narrow(dataset, small(dataset, float(protocol.subset)))
    drawn = neighbour_pairs(dataset) if protocol.pairs == "neighbour" else pairs(dataset, seed=protocol.seed)
    by_name = {sample.name: sample for sample in dataset.samples}
    found = []
    for item in drawn.items:
        a, b = (by_name[name] for name in item.names)
        found.append(Unit(f"{a.name}~{b.name}", (a, b), item.label))
    return found


def _has_box(sample: Sample, label: int) -> bool:
    return any(box.label == label for box in sample.boxes)


def parse_list(text: str) -> tuple[str, ...]:
    """A comma separated option as a tuple."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[int, ...]:
    """A comma separated list of whole numbers."""
    try:
        return tuple(int(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Give whole numbers, such as 1,2; found {text!r}.") from error


def parse_views(text: str) -> tuple[str | float, ...]:
    """A comma separated list of views, such as flip,1.43,2.0."""
    try:
        found = tuple(part if part == "flip" else float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Views are 'flip' and scales, such as flip,1.43,2.0; found {text!r}.") from error
    Views.parse(found)
    return found


def chunks(items: Sequence[Unit], size: int) -> list[Sequence[Unit]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
