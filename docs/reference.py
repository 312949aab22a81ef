"""Writes reference.md: every name that gamlens knows, from its registries and docstrings.

Run it with `make docs`. A test compares the page with what this script would write.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gamlens import DATASETS, METHODS, METRICS, MODELS
from gamlens.cli import app
from gamlens.figures import FIGURES
from gamlens.fuse import FUSIONS
from gamlens.scores import CLASS_SCORES, PAIR_SCORES

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference: every name

This page lists every name that the command line, the studio and the Python API accept. It is made from the registries
and docstrings of the code by `make docs`, so it is complete. Tensors: B images, C channels, h x w positions of a block,
H x W pixels, R or N maps, P pairs, D numbers of an embedding, K classes.
"""


def page() -> str:
    """The text of reference.md."""
    return "\n".join([HEAD, *(f"## {title}\n\n{lead}\n\n{table}" for title, lead, table in sections())])


def sections() -> Iterable[tuple[str, str, str]]:
    """The title, the sentence below it, and the table of each section."""
    yield (
        "Methods",
        "`--method`, `classify(method=...)`. Formulas and advice: [methods.md](methods.md).",
        _table(METHODS, ("title", "reads", "map at one block", "source"), _method),
    )
    yield (
        "Similarities of pairs",
        "`--score` and `evaluate --task`, `compare(score=...)`; or a callable on two embeddings.",
        _table(PAIR_SCORES, ("title", "point-to-point matches", "ADP has a meaning", "formula"), _pair_score),
    )
    yield (
        "Class scores",
        "`classify --score`, `classify(score=...)`; or a callable on the model's output.",
        _table(CLASS_SCORES, ("what is explained",), lambda fn: (_first(fn),)),
    )
    yield (
        "Ways to join blocks",
        "`--fuse`, `explain(fuse=...)`; or one weight per block.",
        _table(FUSIONS, (), lambda _: ()),
    )
    yield (
        "Metrics",
        "What `gamlens evaluate KIND` measures of every map, and where it is stored.",
        _table(METRICS, ("title", "better", "kind of evaluation", "columns", "per item"), _metric),
    )
    yield (
        "Data sets",
        "`--data`, `gamlens.data.load(name, root)`.",
        _table(DATASETS, ("data", "ground truth", "what is read"), _dataset),
    )
    yield (
        "Models",
        "`--model`, `Lens(name)`; also any classifier of torchvision, `timm/NAME`, `hf/ID`, `file.py:build`, and any "
        "`nn.Module` in Python.",
        _table(MODELS, ("what is built",), _described),
    )
    yield (
        "Figures",
        "`gamlens figure NAME`. Pictures: [figures.md](figures.md).",
        _table(FIGURES, ("takes", "shows"), lambda figure: (figure.takes, figure.about)),
    )
    yield "Commands", "`gamlens COMMAND --help` lists the options.", _table(_commands(), ("what it does",), _described)


def _method(method: Any) -> tuple[str, ...]:
    reads = {
        "input": "pixels, their gradient",
        "pair": "activations of both images",
        "block": "activation, gradient" if method.needs_gradient else "activation",
    }[method.kind]
    return method.title, reads, _first(method.fn), _first(sys.modules[method.fn.__module__])


def _pair_score(score: Any) -> tuple[str, ...]:
    return score.title, _yes(score.sums_over_positions), _yes(score.positive), _first(score.fn)


def _metric(metric: Any) -> tuple[str, ...]:
    better = {"up": "higher", "down": "lower"}[metric.better]
    columns = ", ".join(f"`{name}`" for name in metric.columns)
    return metric.title, better, ", ".join(metric.kinds), columns, _first(metric.fn)


def _dataset(entry: Any) -> tuple[str, ...]:
    return entry.title, ", ".join(entry.truth), _first(entry.read)


def _described(entry: Callable[..., Any]) -> tuple[str]:
    return (_first(entry),)


def _commands() -> dict[str, Callable[..., Any]]:
    found = {command.name: command.callback for command in app.registered_commands}
    for group in app.registered_groups:
        found |= {f"{group.name} {one.name}": one.callback for one in group.typer_instance.registered_commands}
    return {name: callback for name, callback in found.items() if name and callback}


def _first(entry: Any) -> str:
    """The first paragraph of the docstring of a function or module."""
    entry = entry.func if isinstance(entry, partial) else entry
    return _flat((inspect.getdoc(entry) or "").split("\n\n")[0])


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _table(entries: Mapping[str, Any], header: tuple[str, ...], cells: Callable[[Any], tuple[str, ...]]) -> str:
    lines = [("name", *header), ("---",) * (len(header) + 1)]
    lines += [(f"`{name}`", *cells(entry)) for name, entry in entries.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
