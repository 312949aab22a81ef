"""What is measured and how. Every choice has a name, and is recorded with every result."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gamlens import methods
from gamlens.data import DATASETS, Dataset, Manifest, Sample, narrow, neighbour_pairs, pairs, small
from gamlens.errors import GamlensError, near
from gamlens.fuse import FUSIONS, Fusion
from gamlens.inputs.batch import Views
from gamlens.metrics import KINDS
from gamlens.scores import PAIR_SCORES

ABLATED_KINDS = ("localization", "objective")
WEIGHTS, CONTROL = "weights", "control"
JOINED = (*FUSIONS, WEIGHTS)
NOT_RECORDED = ("fusions", "block_weights")  # the ablation records them as its plan
CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS,
    "subset": ("all", "25", "10"),
    "input": ("squash", "crop"),
    "fill": ("black", "mean"),
    "masked": ("one", "both"),
    "box": ("all", "largest"),
    "pairs": ("drawn", "neighbour"),
}


def choices() -> dict[str, tuple[str, ...]]:
    """The values that each field of a Protocol may have, by the field's name. A task is classes, or a pair score."""
    return CHOICES | {"task": ("classification", *PAIR_SCORES)}


@dataclass(frozen=True)
class Protocol:
    """One measurement. Defaults are the paper's, as we read it.

    `fusions` makes it an ablation: every one of these ways to join blocks is measured, in box IoU and in confidences
    under the map; without them blocks are joined by the mean. `block_weights` are those of all blocks in the order
    they run, for the fusion "weights"; without them the last of n blocks weighs n, the one before it n - 1, and so on.
    """

    kind: str = "localization"
    task: str = "classification"
    methods: tuple[str, ...] = methods.PAPER_METHODS
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
    curves: int = 0
    fusions: tuple[str, ...] = ()
    block_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in choices().items():
            if (value := getattr(self, name)) not in allowed:
                raise GamlensError(f"{name}={value!r} is no choice: {near(str(value), allowed)}")
        for method in self.methods:
            if methods.find(method).kind == "input":
                known = ", ".join(methods.names("block"))
                raise GamlensError(f"Method {method!r} reads no blocks: evaluate methods that do, such as {known}.")
            if methods.find(method).kind != "block" and self.task == "classification":
                raise GamlensError(f"Method {method!r} explains pairs only: use task {' or '.join(PAIR_SCORES)}.")
        if self.hold_out < 0:
            raise GamlensError(f"hold_out={self.hold_out}: give 0 (nothing is held out), or from 1 up, every so many.")
        if not self.methods or not self.n or min(self.n) < 1:
            raise GamlensError(f"Give at least one method and n of 1 or more; found {self.methods}, n={self.n}.")
        if self.curves == 1:
            raise GamlensError("curves=1: one step tells no map from another; give 2 or more, such as 20.")
        if self.curves < 0 or (self.curves and (self.kind, self.task) != ("objective", "classification")):
            raise GamlensError("Insertion and deletion (curves=...) belong to kind objective, task classification.")
        if self.kind == "segmentation" and self.task != "classification":
            raise GamlensError("Segmentation is measured for classes only: use task classification.")
        for fusion in self.fusions:
            if fusion not in JOINED:
                raise GamlensError(f"There is no fusion {fusion!r}: {near(fusion, JOINED)}")
        if self.fusions and (self.kind, self.task) != ("localization", "classification"):
            raise GamlensError("Fusions are varied for kind localization, task classification.")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is measured of every map."""
        return ABLATED_KINDS if self.fusions else (self.kind,)

    def fusion(self, name: str, n: int) -> Fusion:
        """The fusion of that name for n blocks."""
        if name != WEIGHTS:
            return name
        return self.block_weights[-n:] or [float(place) for place in range(1, n + 1)]

    def record(self) -> dict[str, Any]:
        """What run.json says about the protocol."""
        return {name: value for name, value in asdict(self).items() if name not in NOT_RECORDED}


def usual_truth(about: Mapping[str, Any]) -> bool:
    """Whether a run read the ground truth that is usual for its data set (`DatasetEntry.measured_by`), or none."""
    kind, data = about["protocol"]["kind"], about["data"]
    masks = data in DATASETS and getattr(DATASETS[data], "measured_by", "boxes") == "masks"
    return bool(kind == "objective" or kind == ("segmentation" if masks else "localization"))


def variant(about: Mapping[str, Any]) -> str:
    """What a run chose beside the defaults, in words: `input=crop, views=flip+1.43`."""
    usual, chosen, named = Protocol().record(), about["protocol"], about.get("manifests", {})
    words = [] if usual_truth(about) else [f"kind={chosen['kind']}"]
    for name in ("input", "fill", "masked", "box", "pairs", "seed", "hold_out"):
        if chosen.get(name, usual[name]) != usual[name] and name not in named:
            words.append(f"{name}={chosen[name]}")
    if chosen.get("views"):
        words.append("views=" + "+".join(map(str, chosen["views"])))
    return ", ".join(words + [f"{name}={fingerprint[:8]}" for name, fingerprint in named.items()])


@dataclass(frozen=True)
class Unit:
    """One item to measure: an image and a class, or a pair of images of one class.

    `held_out` says of each of its maps whether it chooses thresholds; `problem` why it cannot be measured.
    """

    name: str
    samples: tuple[Sample, ...]
    label: int
    held_out: tuple[bool, ...] = (False,)
    problem: str = ""


NamedSamples = tuple[str, tuple[Sample, ...], int]  # an item's name, its one or two images, and their class


def units(
    dataset: Dataset, protocol: Protocol, *, chosen: Manifest | None = None, hold_out: Manifest | None = None
) -> list[Unit]:
    """The items of a protocol, sorted by name. Held-out maps choose thresholds and are left out of IoU.

    Classes: every `hold_out`-th item of the whole data set, before small objects are picked. Pairs: every
    `hold_out`-th map, x and y of each pair in turn. `chosen` (items or pairs) and `hold_out` (images) are manifests
    that say it instead.
    """
    for manifest in (chosen, hold_out):
        if manifest is not None:
            manifest.check(dataset)
    pairwise = protocol.task != "classification"
    items = _paired_items(dataset, protocol, chosen) if pairwise else _class_items(dataset)
    every, found = protocol.hold_out, []
    for place, (name, samples, label) in enumerate(items):
        if hold_out is not None:
            held = tuple(sample.name in hold_out.names for sample in samples)
        else:
            maps = range(len(samples) * place, len(samples) * (place + 1))
            held = tuple(bool(every) and number % every == 0 for number in maps)
        found.append(Unit(name, samples, label, held, _problem(samples, label, protocol)))
    if not pairwise:
        found = _narrowed(found, dataset, protocol, chosen)
    if not found:
        raise GamlensError(f"{dataset.name} at {dataset.root!r} has no item for {protocol.kind} by {protocol.task}.")
    if all(unit.problem for unit in found):
        raise GamlensError(
            f"No item of {dataset.name} at {dataset.root!r} has the ground truth that {protocol.kind} needs: "
            f"{found[0].problem} Is a part of the data set missing, or is another kind of evaluation meant?"
        )
    return found


def _class_items(dataset: Dataset) -> Iterator[NamedSamples]:
    for sample in sorted(dataset.samples, key=lambda sample: sample.name):
        for label in sample.labels:
            yield f"{sample.name}#{label}" if len(sample.labels) > 1 else sample.name, (sample,), label


def _narrowed(found: list[Unit], dataset: Dataset, protocol: Protocol, chosen: Manifest | None) -> list[Unit]:
    """Only the items with small objects, or only those that a manifest names."""
    if chosen is None and protocol.subset == "all":
        return found
    masks = protocol.kind == "segmentation"
    wanted = chosen or small(dataset, float(protocol.subset), masks=masks)
    if any(len(item.names) > 1 for item in wanted.items):
        raise GamlensError(f"The manifest {wanted.kind!r} holds pairs: task classification needs single images.")
    keep = {(item.names[0], item.label) for item in wanted.items}
    return [
        unit for unit in found if not keep.isdisjoint({(unit.samples[0].name, unit.label), (unit.samples[0].name, -1)})
    ]


def _paired_items(dataset: Dataset, protocol: Protocol, chosen: Manifest | None) -> Iterator[NamedSamples]:
    if protocol.subset != "all" and chosen is None:
        dataset = narrow(dataset, small(dataset, float(protocol.subset)))
    drawn = chosen or (
        neighbour_pairs(dataset) if protocol.pairs == "neighbour" else pairs(dataset, seed=protocol.seed)
    )
    if any(len(item.names) != 2 for item in drawn.items):
        raise GamlensError(f"The manifest {drawn.kind!r} holds single images: {protocol.task} needs pairs.")
    by_name = {sample.name: sample for sample in dataset.samples}
    for item in drawn.items:
        yield "~".join(item.names), tuple(by_name[name] for name in item.names), item.label


def _problem(samples: tuple[Sample, ...], label: int, protocol: Protocol) -> str:
    """What the annotation of an item lacks; empty if nothing is missing."""
    for sample in samples:
        if protocol.kind == "segmentation" and sample.mask is None:
            return f"{sample.name} has no mask."
        if protocol.kind == "localization" and not any(box.label == label for box in sample.boxes):
            return f"{sample.name} has no ground-truth box of class {label}."
    return ""


def parse_list(text: str) -> tuple[str, ...]:
    """A comma separated option as a tuple."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[int, ...]:
    """A comma separated list of whole numbers."""
    try:
        return tuple(int(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Give whole numbers, such as 1,2; found {text!r}.") from error


def parse_hold_out(text: str) -> tuple[int, Manifest | None]:
    """Every so many items, or a manifest of items."""
    try:
        return int(text), None
    except ValueError:
        if not Path(text).exists():
            raise GamlensError(
                f"--hold-out {text!r} is no whole number from 0 up (0: none, 10: every tenth); no manifest lies there."
            ) from None
        return 0, Manifest.load(text)


def parse_views(text: str) -> tuple[str | float, ...]:
    """A comma separated list of views, such as flip,1.43,2.0."""
    try:
        found = tuple(part if part == "flip" else float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Views are 'flip' and scales, such as flip,1.43,2.0; found {text!r}.") from error
    Views.parse(found)
    return found
