"""The layout of the paper's Tables 1 and 2, from `paper_tables.toml`: sections, lines, and the network of each line."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gamlens.errors import GamlensError, near

PAPER_LAYOUT_FILE = "paper_tables.toml"


@dataclass(frozen=True)
class PaperNetwork:
    """A network of the paper and the data set that it is measured on.

    Attributes:
        name: Its name in options, such as "resnet" in `--model resnet=resnet50`.
        model: Its name in MODELS.
        title: Its name in texts.
        data: The data set's name in DATASETS, which is also the option that takes its folder.
        short: The paper's name of the data set.
        checkpoint: Which weights the paper used, for people who have to find them.
        subsets: The subsets that the paper reports.
    """

    name: str
    model: str
    title: str
    data: str
    short: str
    checkpoint: str
    subsets: tuple[str, ...] = ("all", "25", "10")


@dataclass(frozen=True)
class PaperSection:
    """A part of a table: what is measured (`kind`) and explained (`task`), and for which networks."""

    title: str
    kind: str
    task: str
    networks: tuple[PaperNetwork, ...]


@dataclass(frozen=True)
class PaperLine:
    """A line of a table: a metric of a network's maps on all items of a data set, or on those with small objects."""

    section: PaperSection
    network: PaperNetwork
    subset: str
    metric: str

    @property
    def data(self) -> str:
        """The data set and the subset as the paper writes them, such as `VRC (25 %)`."""
        return self.network.short if self.subset == "all" else f"{self.network.short} ({self.subset} %)"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        number: Its number.
        title: What it shows.
        metrics: The titles of the metrics that it shows.
        column: What its second column says of a line: its "metric" or its "model".
        digits: How many digits its numbers have after the point.
        sections: Its sections.
    """

    number: int
    title: str
    metrics: tuple[str, ...]
    column: str
    digits: int
    sections: tuple[PaperSection, ...]

    @property
    def networks(self) -> dict[str, PaperNetwork]:
        """The networks of the table by name, in the order in which they appear."""
        return {network.name: network for section in self.sections for network in section.networks}

    def lines(self) -> list[PaperLine]:
        """The lines of the table from top to bottom."""
        return [
            PaperLine(section, network, subset, metric)
            for section in self.sections
            for metric in self.metrics
            for network in section.networks
            for subset in network.subsets
        ]


def paper_table(number: int) -> PaperTable:
    """The table of that number; the paper has the tables 1 and 2."""
    found = {table.number: table for table in paper_tables()}
    if number not in found:
        known = " and ".join(map(str, found))
        raise GamlensError(f"The paper has the tables {known} to reproduce, not {number}: give one of these.")
    return found[number]


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """Both tables."""
    networks, found = paper_networks(), []
    for given in _layout()["tables"]:
        sections = tuple(
            PaperSection(part["title"], part["kind"], part["task"], tuple(networks[name] for name in part["networks"]))
            for part in given["sections"]
        )
        table = {**given, "metrics": tuple(given["metrics"]), "sections": sections}
        found.append(PaperTable(**table))
    return tuple(found)


@cache
def paper_networks() -> dict[str, PaperNetwork]:
    """The networks of both tables by name."""
    found = {}
    for name, given in _layout()["networks"].items():
        options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
        found[name] = PaperNetwork(name=name, **options)
    return found


def default_methods() -> tuple[str, ...]:
    """The methods that are measured if none are named: the paper's, and Grad-CAM++ in its stable form."""
    return tuple(_layout()["methods"])


def instead_of(method: str) -> str | None:
    """The method of the paper whose numbers may be shown beside a method that it did not run; None if there is none."""
    found: Mapping[str, str] = _layout()["instead"]
    return found.get(method)


def by_network(
    option: str, given: Sequence[str], networks: Mapping[str, PaperNetwork], *, only: str = ""
) -> dict[str, str]:
    """Read an option that is repeated per network, such as `--model resnet=resnet50`: {network: value}.

    Args:
        option: The name of the option, for error messages.
        given: What the user gave.
        networks: The networks that can be named.
        only: The network that a value without a name is for; "" if it must be named.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            name, value = only, text
        if name not in networks or not value:
            why = near(name, networks) if name else f"there are {', '.join(networks)}."
            raise GamlensError(
                f"{option} {text!r} does not say what it is for: {why} Give a network of the table and a value, such "
                f"as {option} {only or next(iter(networks))}={value or 'VALUE'}."
            )
        if name in found:
            raise GamlensError(f"{option} is given twice for {name}: {found[name]!r} and {value!r}. Leave one out.")
        found[name] = value
    return found


@cache
def _layout() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(PAPER_LAYOUT_FILE).read_text(encoding="utf-8"))
