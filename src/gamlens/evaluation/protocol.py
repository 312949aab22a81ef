"""What is measured and how. Every choice has a name, and is recorded with every result."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gamlens import methods
from gamlens.data import DATASETS, PAIRS_PER_CLASS, Dataset, Manifest, Sample, narrow, neighbour_pairs, pairs, small
from gamlens.errors import GamlensError, near
from gamlens.evaluation.explainers.explainer import Explainer
from gamlens.evaluation.map_rows import MapRow
from gamlens.fuse import FUSIONS, Fusion
from gamlens.inputs.batch import Views
from gamlens.lattice import READINGS
from gamlens.metrics import BLUR_KERNEL, BLUR_SIGMA, KINDS, check_blur
from gamlens.refine import SHARP_VIEWS, Refinement
from gamlens.scores import PAIR_SCORES, check_temperature

ABLATED_KINDS = ("localization", "objective")  # the kinds whose metrics an ablation measures
WEIGHTS = "weights"  # the name of the weighted mean among the ways to join blocks
CONTROL = "control"  # what controls have in place of the name of a fusion
JOINED = (*FUSIONS, WEIGHTS)  # the names of all ways to join blocks
NOT_RECORDED = ("fusions", "block_weights")  # the ablation records them as its plan
PAIR_MARK = "~"  # stands between the names of the two images in the name of a pair
ADDED = ("temperature", "pairs_per_class", "curve_background", "blur_kernel", "blur_sigma", "lattice", "refine", "keep")
JOINT_KINDS = tuple(f"objective+{kind}" for kind in KINDS if kind != "objective")  # two kinds measured on the same maps
CHOICES: dict[str, tuple[str, ...]] = {
    "kind": (*KINDS, *JOINT_KINDS),
    "subset": ("all", "25", "10"),
    "input": ("squash", "crop"),
    "fill": ("black", "mean"),
    "masked": ("one", "both"),
    "box": ("all", "largest"),
    "pairs": ("drawn", "neighbour"),
    "hold_out_by": ("pairs", "maps"),
    "lattice": READINGS,
    "curve_background": ("fill", "blur"),
}
# What a run was measured with whose run.json does not have these fields, because an earlier version wrote it.
UNSAID: dict[str, Any] = {"hold_out_by": "maps", "lattice": "keep", "temperature": 1.0, "pairs_per_class": 3}
UNSAID |= {"refine": 0, "keep": Refinement.keep, "equal_mass": False}
UNSAID |= {"road": [], "infidelity": 0, "sensitivity": 0, "coherency": False, "cost": False, "variant_n": 0}
UNSAID |= {"compiled": False}
UNSAID |= {"curve_background": "fill", "blur_kernel": BLUR_KERNEL, "blur_sigma": BLUR_SIGMA}  # any blur will do


def choices() -> dict[str, tuple[str, ...]]:
    """The values that a field of a Protocol may have: {field: values}. A task is "classification" or a pair score."""
    return CHOICES | {"task": ("classification", *PAIR_SCORES)}


@dataclass(frozen=True)
class Protocol:
    """What an evaluation measures. The defaults are the paper's, as we read it.

    Attributes:
        kind: What is compared with the maps: "localization" boxes, "segmentation" masks, "objective" the model's score;
            "objective+localization" and "objective+segmentation" measure both on the same maps.
        task: What is explained: "classification", or the name of a pair score.
        methods: The methods: names of METHODS, with the suffixes "+refine" and "+views" for refined maps and maps
            averaged over views ("gam+refine+views"); explainers of other packages or of a user's file by their spec
            (`explainers.find`); or an Explainer.
        n: The numbers of blocks. Explainers that do not read blocks give one row, whatever n.
        subset: "all" items, or only those with small objects: up to the "25"th or "10"th percentile of object size.
        input: How an image becomes the model's input: "squash" resizes the whole image, "crop" cuts out its centre.
        fill: The colour of hidden pixels in image x map: "black" or "mean".
        masked: For the objective evaluation of pairs: mask "one" image at a time, or "both".
        box: What the predicted box goes around: "all" pixels >= threshold, or the "largest" component of them.
        pairs: Pairs are "drawn" at random, or each image of a class with the next one by name ("neighbour").
        seed: The seed of drawn pairs.
        hold_out: Every how many items one is held out to choose thresholds on; 0 for none.
        hold_out_by: What is held out of pairs: whole "pairs", both maps together, or single "maps", counted x, y, x, y,
            ... as early versions did. With "maps", a map may be counted whose pair helped to choose the threshold.
        views: Further views of each image, "flip" and scales, over which maps are averaged.
        lattice: How blocks are read of which the network uses only every second (or s-th) row and column: "read" or
            "keep", as in `Trace.explain`. Runs of versions that did not record it have "keep".
        refine: By how many earlier blocks maps are refined; 0 for not at all. Then centre and random, two of the
            controls, are measured refined as well.
        keep: The weight of the map before refinement in the refined one.
        equal_mass: Whether the objective evaluation also measures ADP with every map replaced by its ranks, which takes
            one more forward per map.
        curves: The number of steps of insertion and deletion; 0 to leave both out.
        road: The percentages of pixels that ROAD removes, such as (10, 30, 50, 70, 90); () to leave ROAD out.
        infidelity: The number of random squares that are hidden to measure infidelity; 0 to leave it out.
        sensitivity: The number of noisy copies of every image that are explained to measure the maximal sensitivity; 0
            to leave it out.
        coherency: Whether image x map is explained again, which coherency and ADCC need.
        cost: Whether the time and the memory that each map takes are measured.
        variant_n: The number of blocks of methods with +refine or +views; 0 for every number of `n`.
        compiled: Whether masked images run through the compiled network, whose results differ in the last digits.
        temperature: What the class scores are divided by before they become the probability of the objective
            evaluation. Maps are made of the class score itself and do not depend on it.
        pairs_per_class: How many pairs of each class are drawn.
        curve_background: What hidden pixels show in insertion and deletion: the colour `fill`, or the image behind a
            Gaussian "blur".
        blur_kernel, blur_sigma: The width of that blur's window and its standard deviation, in pixels of the input.
        fusions: Makes this an ablation: the ways to join blocks, of which each is measured, by the metrics of
            ABLATED_KINDS. If empty, blocks are joined by the mean.
        block_weights: For the fusion "weights", the weights of all blocks in the order they run. If empty, the last of
            n blocks has the weight n, the one before it n - 1, and so on.
    """

    kind: str = "localization"
    task: str = "classification"
    methods: tuple[str | Explainer, ...] = methods.PAPER_METHODS
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
    lattice: str = "read"
    curves: int = 0
    temperature: float = 1.0
    pairs_per_class: int = PAIRS_PER_CLASS
    curve_background: str = "fill"
    blur_kernel: int = BLUR_KERNEL
    blur_sigma: float = BLUR_SIGMA
    fusions: tuple[str, ...] = ()
    block_weights: tuple[float, ...] = ()
    hold_out_by: str = "pairs"
    refine: int = 0
    keep: float = Refinement.keep
    equal_mass: bool = False
    road: tuple[float, ...] = ()
    infidelity: int = 0
    sensitivity: int = 0
    coherency: bool = False
    cost: bool = False
    variant_n: int = 0
    compiled: bool = False

    def __post_init__(self) -> None:
        for name, allowed in choices().items():
            if (value := getattr(self, name)) not in allowed:
                raise GamlensError(f"{name} cannot be {value!r}: {near(str(value), allowed)}")
        if isinstance(self.methods, str):
            raise GamlensError(f"methods={self.methods!r}: give a tuple of names, such as ({self.methods!r},).")
        rows = [MapRow.parse(method) for method in self.methods]
        for row in rows:
            row.check(self.task)
        if any(row.variant for row in rows) and (self.refine or self.views):
            raise GamlensError(
                "A method with +refine or +views says itself how its maps are made: leave refine and views out, which "
                "apply to every method."
            )
        if self.variant_n and self.variant_n not in self.n:
            raise GamlensError(f"variant_n={self.variant_n} is not among the numbers of blocks, n={self.n}: add it.")
        if self.fusions and any(row.explainer or row.name != row.method for row in rows):
            raise GamlensError("Fusions can be varied only for our own methods, without +refine and +views.")
        if twice := [name for name, count in Counter(row.name for row in rows).items() if count > 1]:
            raise GamlensError(
                f"The method {twice[0]!r} is named twice: name it once, or give functions names of their own, as in "
                "bench.external(function, name='mine')."
            )
        if self.pairs_per_class < 1:
            raise GamlensError(f"pairs_per_class={self.pairs_per_class}: give the number of pairs to draw, at least 1.")
        if self.pairs_per_class != PAIRS_PER_CLASS and self.pairs != "drawn":
            raise GamlensError(
                f"pairs_per_class={self.pairs_per_class} is the number of pairs that are drawn; with pairs="
                f"{self.pairs!r} every image is paired with the next one: leave it out, or use pairs='drawn'."
            )
        if self.refine < 0:
            raise GamlensError(f"refine={self.refine}: give the number of blocks to refine by, or 0 for none.")
        if self.keep != Refinement.keep and not self.refine:
            raise GamlensError(f"keep={self.keep} is a weight in refined maps: it needs refine, such as refine=2.")
        _ = self.refinement  # checks the values of both
        if self.hold_out < 0:
            raise GamlensError(f"hold_out={self.hold_out}: give 0 to hold out nothing, or 10 for every tenth item.")
        if not self.methods or not self.n or min(self.n) < 1:
            raise GamlensError(f"Give at least one method and n of 1 or more; found {self.methods}, n={self.n}.")
        if self.curves == 1 or self.curves < 0:
            raise GamlensError(f"curves={self.curves}: give 0 for no curves, or 2 steps or more, such as 20.")
        for name in ("curves", "road", "infidelity", "sensitivity", "coherency", "equal_mass"):
            if getattr(self, name) and "objective" not in self.kinds:
                raise GamlensError(
                    f"{name}={getattr(self, name)} is measured by the model's score: it needs kind objective."
                )
        alone = [name for name in ("infidelity", "sensitivity", "coherency") if getattr(self, name)]
        if alone and self.masked != "one" and self.task != "classification":
            raise GamlensError(
                f"{', '.join(alone)} belong{'s' * (len(alone) == 1)} to the map of one image of a pair: use "
                f"masked='one', or leave out what is not measured with masked={self.masked!r}."
            )
        if not all(0 < share < 100 for share in self.road):
            shares = ",".join(f"{share:g}" for share in self.road)
            raise GamlensError(f"road={shares}: give percentages of pixels between 0 and 100, such as 10,50,90.")
        if self.infidelity < 0 or self.sensitivity < 0:
            raise GamlensError(
                f"infidelity={self.infidelity}, sensitivity={self.sensitivity}: give 0 to leave them out, or how many "
                "perturbations to measure, such as 10."
            )
        if self.curve_background != "fill" and not self.curves:
            raise GamlensError(f"curve_background={self.curve_background!r} needs curves: give their number of steps.")
        check_blur(self.blur_kernel, self.blur_sigma)
        check_temperature(self.temperature)
        if self.temperature != 1 and not ("objective" in self.kinds and self.task == "classification"):
            raise GamlensError(
                f"temperature={self.temperature} changes the probability of a class alone: it needs kind objective and "
                "task classification."
            )
        if "segmentation" in self.kinds and self.task != "classification":
            raise GamlensError("Segmentation is measured for classes only: use task classification.")
        for fusion in self.fusions:
            if fusion not in JOINED:
                raise GamlensError(f"There is no fusion {fusion!r}: {near(fusion, JOINED)}")
        if self.fusions and self.kind != "localization":
            raise GamlensError(
                "Fusions can be varied only for kind localization, which then measures ADP and PIC, too."
            )
        if len(self.kinds) > 1 and self.masked != "one" and not self.fusions:
            raise GamlensError(
                f"kind={self.kind!r} needs masked='one': boxes and masks belong to one image of a pair, and with "
                "masked='both' a value belongs to both."
            )
        if self.fusions and self.masked != "one":
            raise GamlensError("Fusions can be varied only with masked='one': boxes belong to one image of a pair.")

    @property
    def refinement(self) -> Refinement | None:
        """How maps are refined; None for not at all."""
        return Refinement(self.refine, self.keep) if self.refine else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evaluation whose metrics are measured on every map."""
        return ABLATED_KINDS if self.fusions else kinds_of(self.kind)

    @property
    def truth(self) -> str:
        """The kind of ground truth that the items must have: "localization", "segmentation", or "" for none."""
        return next((kind for kind in kinds_of(self.kind) if kind != "objective"), "")

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the methods in results."""
        return tuple(MapRow.parse(method).name for method in self.methods)

    @property
    def all_views(self) -> tuple[str | float, ...]:
        """The views that images are prepared in: those of every method, or those of methods with the suffix +views."""
        own = any("views" in MapRow.parse(method).variant for method in self.methods)
        return SHARP_VIEWS if own else self.views

    def fusion(self, name: str, n: int) -> Fusion:
        """The fusion of that name for n blocks, as `Trace.explain` takes it: a name, or one weight per block."""
        if name != WEIGHTS:
            return name
        return self.block_weights[-n:] or [float(place) for place in range(1, n + 1)]

    def record(self) -> dict[str, Any]:
        """What run.json says about the protocol."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in NOT_RECORDED}
        return {
            **found,
            "methods": self.method_names,
            "road": tuple(map(float, self.road)),
            "temperature": float(self.temperature),
            "keep": float(self.keep),
            "blur_sigma": float(self.blur_sigma),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Protocol":
        """The protocol that run.json describes. A field that it lacks has the value that runs had before the field."""
        known = {**UNSAID, **record}
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in known.items()}
        return cls(**given)


def kinds_of(kind: str) -> tuple[str, ...]:
    """The kinds of evaluation that a kind stands for: "objective+localization" stands for both."""
    return tuple(kind.split("+"))


def usual_truth(about: Mapping[str, Any]) -> bool:
    """Whether a run used the ground truth that is usual for its data set (`DatasetEntry.measured_by`), or needed none.

    `about` is the description of the run (run.json).
    """
    kind, data = about["protocol"]["kind"], about["data"]
    masks = data in DATASETS and getattr(DATASETS[data], "measured_by", "boxes") == "masks"
    return bool(kind == "objective" or ("segmentation" if masks else "localization") in kinds_of(kind))


def holds_out_pairs(about: Mapping[str, Any]) -> bool:
    """Whether the numbers of a run depend on `hold_out_by`: it is of pairs, and held-out ones choose thresholds."""
    chosen = about["protocol"]
    holds_out = chosen.get("hold_out", Protocol.hold_out) or "hold_out" in about.get("manifests", {})
    return bool(holds_out) and chosen["kind"] != "objective" and chosen["task"] != "classification"


def variant(about: Mapping[str, Any]) -> str:
    """The choices of a run that are not the defaults, as text: `input=crop, views=flip+1.43`."""
    usual, chosen, named = Protocol().record(), {**UNSAID, **about["protocol"]}, about.get("manifests", {})
    words = [] if usual_truth(about) else [f"kind={chosen['kind']}"]
    for name in ("input", "fill", "masked", "box", "pairs", "seed", "hold_out", *ADDED):
        if chosen.get(name, usual[name]) != usual[name] and name not in named:
            words.append(f"{name}={chosen[name]}")
    if holds_out_pairs(about) and chosen["hold_out_by"] != usual["hold_out_by"]:
        words.append(f"hold_out_by={chosen['hold_out_by']}")
    if chosen.get("views"):
        words.append("views=" + "+".join(map(str, chosen["views"])))
    return ", ".join(words + [f"{name}={fingerprint[:8]}" for name, fingerprint in named.items()])


@dataclass(frozen=True)
class Unit:
    """One item to measure: an image and a class, or a pair of images of one class.

    Attributes:
        name: The name of the item in results.
        samples: Its one or two images.
        label: The class.
        held_out: For each image, whether its map is used to choose thresholds and left out of the result.
        problem: Why the item cannot be measured, such as a missing mask; "" if it can.
        costed: Whether its batch is one of those in which the memory that maps take is measured, and the time of our
            own methods, each of which is then called on its own.
    """

    name: str
    samples: tuple[Sample, ...]
    label: int
    held_out: tuple[bool, ...] = (False,)
    problem: str = ""
    costed: bool = False


NamedSamples = tuple[str, tuple[Sample, ...], int]  # an item's name, its one or two images, and their class


def units(
    dataset: Dataset, protocol: Protocol, *, chosen: Manifest | None = None, hold_out: Manifest | None = None
) -> list[Unit]:
    """List the items that a protocol measures, and which of their maps are held out to choose thresholds.

    Classes: items are sorted by name; every `protocol.hold_out`-th item of the whole data set is held out, counted
    before small objects are selected. Pairs: every `protocol.hold_out`-th pair is held out, both maps of it; with
    `protocol.hold_out_by` "maps" every `protocol.hold_out`-th map, counted x, y, x, y, ...

    Args:
        dataset: The data set.
        protocol: The protocol.
        chosen: The items or pairs to measure, in place of those that the protocol selects or draws.
        hold_out: The images to hold out, in place of every `protocol.hold_out`-th. A pair is held out if it has one of
            them; with `protocol.hold_out_by` "maps" only their own maps are.
    """
    for manifest in (chosen, hold_out):
        if manifest is not None:
            manifest.check(dataset)
    pairwise = protocol.task != "classification"
    items = _paired_items(dataset, protocol, chosen) if pairwise else _class_items(dataset)
    found = []
    for place, (name, samples, label) in enumerate(items):
        held = _held_out(place, samples, protocol, hold_out)
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


def _held_out(place: int, samples: tuple[Sample, ...], protocol: Protocol, named: Manifest | None) -> tuple[bool, ...]:
    """Whether the map of each image of an item is held out; `place` counts the items from 0."""
    by_maps, every = protocol.hold_out_by == "maps", protocol.hold_out
    if named is not None:
        maps = tuple(sample.name in named.names for sample in samples)
        return maps if by_maps else (any(maps),) * len(samples)
    counts = range(len(samples) * place, len(samples) * (place + 1)) if by_maps else [place] * len(samples)
    return tuple(bool(every) and number % every == 0 for number in counts)


def _class_items(dataset: Dataset) -> Iterator[NamedSamples]:
    for sample in sorted(dataset.samples, key=lambda sample: sample.name):
        for label in sample.labels:
            yield f"{sample.name}#{label}" if len(sample.labels) > 1 else sample.name, (sample,), label


def _narrowed(found: list[Unit], dataset: Dataset, protocol: Protocol, chosen: Manifest | None) -> list[Unit]:
    """Only the items with small objects, or only those that a manifest names."""
    if chosen is None and protocol.subset == "all":
        return found
    masks = protocol.truth == "segmentation"
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
        neighbour_pairs(dataset)
        if protocol.pairs == "neighbour"
        else pairs(dataset, per_class=protocol.pairs_per_class, seed=protocol.seed)
    )
    if any(len(item.names) != 2 for item in drawn.items):
        raise GamlensError(f"The manifest {drawn.kind!r} holds single images: {protocol.task} needs pairs.")
    by_name = {sample.name: sample for sample in dataset.samples}
    for item in drawn.items:
        yield PAIR_MARK.join(item.names), tuple(by_name[name] for name in item.names), item.label


def _problem(samples: tuple[Sample, ...], label: int, protocol: Protocol) -> str:
    """What the annotation of an item lacks; empty if nothing is missing."""
    for sample in samples:
        if protocol.truth == "segmentation" and sample.mask is None:
            return f"{sample.name} has no mask."
        if protocol.truth == "localization" and not any(box.label == label for box in sample.boxes):
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


def parse_numbers(text: str) -> tuple[float, ...]:
    """A comma separated list of numbers."""
    try:
        return tuple(float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Give numbers, such as 1,2,3,4; found {text!r}.") from error


def parse_hold_out(text: str) -> tuple[int, Manifest | None]:
    """Read the option --hold-out: a number (every how many items one is held out), or the file of a manifest.

    Returns:
        The number (0 with a manifest), and the manifest or None.
    """
    try:
        return int(text), None
    except ValueError:
        if not Path(text).exists():
            raise GamlensError(
                f"--hold-out {text!r} is neither a whole number (0: hold out nothing, 10: every tenth item) nor a "
                "manifest file that exists."
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
