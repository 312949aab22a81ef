"""The runs from which a table of the paper is made: which there are, what they measure, and what they lack.

There is one run per network, task and kind of evaluation. It measures every item that any of its lines needs once; the
lines of small objects are cut out of it (`paper_table.cut`), each with its own items and its own hold-out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gamlens import data, metrics
from gamlens.data import DATASETS, Dataset, Item, Manifest
from gamlens.errors import GamlensError, attempt
from gamlens.evaluation import results, tables
from gamlens.evaluation.paper_layout import PaperNetwork, PaperSection, PaperTable
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.evaluation.results import Run
from gamlens.evaluation.runs import Engine, evaluate_run
from gamlens.lens import Lens

RUNS_FOLDER = "runs"
HIDES_NOTHING = "ones"  # the control under which image x map is the image: it needs no forward of its own
RunKey = tuple[str, str, str]  # the network's name, the task, and the kind of evaluation


@dataclass(frozen=True)
class NetworkSource:
    """Where a network and its images come from.

    Attributes:
        make: Builds the lens, here or in another process.
        root: The folder of the data set; None if the user has none.
        named: Whether the user named the model or its weights. Then it is an error if the lens cannot be built;
            otherwise the network is left out.
    """

    make: Callable[[], Lens]
    root: Path | None = None
    named: bool = False


@dataclass(frozen=True, eq=False)
class PaperRun:
    """One run of a table.

    Attributes:
        network: The network of the paper.
        lens: The network itself, or what the user gave in its place.
        make: Builds the lens in another process.
        dataset: The data set, with the class numbers of the model if classes are explained.
        protocol: What is measured. Its subset is "all".
        rows: The items of each subset: {subset: items}. An item may be in several of them, also with another hold-out.
        problems: The subsets that could not be selected: {subset: why}.
        limited: Whether a subset has more items than are measured.
    """

    network: PaperNetwork
    lens: Lens
    make: Callable[[], Lens]
    dataset: Dataset
    protocol: Protocol
    rows: Mapping[str, Sequence[Unit]]
    problems: Mapping[str, str] = field(default_factory=dict)
    limited: bool = False

    @property
    def key(self) -> RunKey:
        return self.network.name, self.protocol.task, self.protocol.kind

    @property
    def name(self) -> str:
        """The name of its folder, such as ilsvrc-resnet-cosine-objective."""
        return "-".join(dict.fromkeys((self.network.data, *self.key)))

    @property
    def items(self) -> list[Unit]:
        """What the run measures: every item of its subsets once."""
        found: dict[tuple[str, int], Unit] = {}
        for items in self.rows.values():
            for unit in items:
                found.setdefault((unit.name, unit.label), unit)
        return list(found.values())

    @property
    def forwards(self) -> int:
        """How many images go through the network per item: the image itself and, for scores, image x each map."""
        maps = len(self.protocol.methods) * len(self.protocol.n) + len({*metrics.CONTROLS} - {HIDES_NOTHING})
        images = len(next(iter(self.rows.values()))[0].samples)
        return images * (1 + maps if self.protocol.kind == "objective" else 1)

    def about(self) -> dict[str, Any]:
        """What run.json says in addition: how many items each subset has, and which these are."""
        extra: dict[str, Any] = {"subsets": {subset: len(items) for subset, items in self.rows.items()}}
        if len(self.items) > len(self.rows["all"]):
            items = tuple(Item(tuple(s.name for s in unit.samples), unit.label) for unit in self.items)
            extra["manifests"] = {"items": Manifest("reproduce", None, "", items).fingerprint()}
        return extra


@dataclass(frozen=True)
class MissingLines:
    """Lines of a table that cannot be measured: which, why, and what to do about it."""

    what: str
    why: str


@dataclass(frozen=True, eq=False)
class TablePlan:
    """What is measured for a table, and what is missing for the rest of it.

    Attributes:
        table: The table.
        runs: What is measured.
        missing: The lines that cannot be measured.
        limit: The largest number of items per line, if that leaves out items of any line; otherwise None.
    """

    table: PaperTable
    runs: tuple[PaperRun, ...]
    missing: tuple[MissingLines, ...]
    limit: int | None = None


def plan_table(
    table: PaperTable, sources: Mapping[str, NetworkSource], protocol: Protocol, *, limit: int | None = None
) -> TablePlan:
    """Decide what is measured for a table.

    Args:
        table: The table.
        sources: Where each network of the table comes from; a network that is not named here is left out.
        protocol: The choices that all runs share; its kind, task and subset are replaced by those of each section. Its
            temperature is for the section of its own kind and task.
        limit: The largest number of items per line: the first ones.
    """
    runs: list[PaperRun] = []
    missing: list[MissingLines] = []
    for name, network in table.networks.items():
        found = _open(network, sources[name]) if name in sources else "It was left out on request."
        if isinstance(found, str):
            missing.append(MissingLines(f"{network.short}, {network.title}", found))
            continue
        own = [section for section in table.sections if network in section.networks]
        runs += [_plan_run(found, _of_section(protocol, section), limit) for section in own]
    order = {(section.task, section.kind): place for place, section in enumerate(table.sections)}
    runs.sort(key=lambda run: order[run.protocol.task, run.protocol.kind])
    missing += [
        MissingLines(f"{run.network.short} ({subset} %), {run.network.title}, {run.protocol.task}", why)
        for run in runs
        for subset, why in run.problems.items()
    ]
    if not runs:
        lacks = "; ".join(f"{one.what}: {one.why}" for one in missing)
        raise GamlensError(f"Nothing of Table {table.number} can be measured. {lacks}")
    return TablePlan(table, tuple(runs), tuple(missing), limit if any(run.limited for run in runs) else None)


def _of_section(protocol: Protocol, section: PaperSection) -> Protocol:
    """The protocol for a section. The temperature is left out where there is no probability of a class to change."""
    own = (section.kind, section.task) == (protocol.kind, protocol.task)
    temperature = protocol.temperature if own else Protocol.temperature
    return replace(protocol, kind=section.kind, task=section.task, subset="all", temperature=temperature)


@dataclass(frozen=True, eq=False)
class OpenedNetwork:
    """A network with its lens, the function that builds it again, and its whole data set."""

    network: PaperNetwork
    lens: Lens
    make: Callable[[], Lens]
    whole: Dataset


def _open(network: PaperNetwork, source: NetworkSource) -> OpenedNetwork | str:
    """Build the lens of a network and read its data set; returns what is missing if that cannot be done."""
    if source.root is None:
        title = DATASETS[network.data].title
        if source.named:
            raise GamlensError(
                f"A model or weights are given for {network.name!r}, but no data: give the folder of {title} with "
                f"--{network.data} FOLDER."
            )
        return f"Give the folder of {title} with --{network.data} FOLDER."
    dataset = data.load(network.data, source.root)
    lens = source.make() if source.named else attempt(source.make)
    if isinstance(lens, GamlensError):
        return (
            f"The model {network.model!r} could not be built: {lens} The paper used {network.checkpoint}: pass it with "
            f"--weights {network.name}=FILE, or name another model with --model {network.name}=NAME."
        )
    if lens.weights == "random":
        raise GamlensError(f"The weights of {network.name!r} are random, so it has no results: pass trained weights.")
    return OpenedNetwork(network, lens, source.make, dataset)


def _plan_run(opened: OpenedNetwork, protocol: Protocol, limit: int | None) -> PaperRun:
    """Select the items of every subset of a network; `limit` is the largest number per subset."""
    lens, whole = opened.lens, opened.whole
    dataset = data.align(whole, lens.labels) if protocol.task == "classification" else whole
    rows: dict[str, Sequence[Unit]] = {}
    problems: dict[str, str] = {}
    limited = False
    for subset in opened.network.subsets:
        own = replace(protocol, subset=subset)
        found = units(dataset, own) if subset == protocol.subset else attempt(units, dataset, own)
        if isinstance(found, GamlensError):
            problems[subset] = str(found)
        else:
            rows[subset] = found[:limit]
            limited = limited or len(rows[subset]) < len(found)
    return PaperRun(opened.network, lens, opened.make, dataset, protocol, rows, problems, limited)


def measure_run(
    run: PaperRun,
    out: Path,
    *,
    batch: int = 16,
    chunk: int = 64,
    engine: Engine | None = None,
    fresh: bool = False,
    status: Callable[[int, int], None] = lambda items, errors: None,
) -> dict[str, Any]:
    """Measure a run into its folder below `out`, or what is left of it; the options are those of `evaluate_run`."""
    make = run.make if engine is not None and engine.name != Engine().name else lambda: run.lens
    return evaluate_run(
        make, run.dataset, run.items, run.protocol, folder_of(run, out), batch=batch, chunk=chunk, engine=engine,
        fresh=fresh, about=run.about(), status=status,
    )  # fmt: skip


def folder_of(run: PaperRun, out: Path) -> Path:
    """The run folder of a run."""
    return out / RUNS_FOLDER / run.name


def read_run(run: PaperRun, out: Path) -> Run:
    """Read what a run measured: the columns that tables need, and those by which lines are cut out."""
    return results.read(folder_of(run, out), only=(*tables.needed(), "item", "image", "label", "side"))
