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
from gamlens.index.backends import BACKENDS
from gamlens.scores import CLASS_SCORES, PAIR_SCORES

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference: every name

This page lists what can be chosen by name on the command line, in the studio and in Python: methods, scores, metrics,
data sets, models, figures and commands. It is made from the code by `make docs`, so it is complete. Classes and their
arguments are described in Python itself: `help(gamlens.Lens)`, `help(gamlens.Trace)`, `help(gamlens.Explanation)`.

Letters in the shapes of tensors: B images, C channels, h x w positions of a block, H x W pixels, R or N maps (or
items), P pairs, D numbers of an embedding, K classes, K_i boxes of item i, T thresholds, S points of a curve. In
formulas, h is the activation of a block, g its gradient, k a channel and ij a position. Of transformers, A is the
attention of a layer and G its gradient, with L layers, H heads, N tokens, queries i and keys j.
"""


def page() -> str:
    """The text of reference.md."""
    return "\n".join([HEAD, *(f"## {title}\n\n{lead}\n\n{table}" for title, lead, table in sections())])


def sections() -> Iterable[tuple[str, str, str]]:
    """The title, the sentence below it, and the table of each section."""
    yield (
        "Methods",
        "`--method`, `classify(method=...)`; the default, `auto`, is `attention_gam` for a transformer whose attention "
        "can be read, and `gam` otherwise. [Methods](methods.md) says what to know before you read a map.",
        _table(METHODS, ("title", "reads", "map at one block", "source"), _method),
    )
    yield (
        "Similarities of pairs",
        "`compare --score`, `compare(score=...)`, where the default is `cosine`, and `evaluate --task`. In Python also "
        "a callable on two embeddings. `PairTrace.matches` shows what a point of one image matches in the other; ADP "
        "needs a score that is above zero for images that are alike.",
        _table(PAIR_SCORES, ("title", "works with `matches`", "works with ADP", "formula"), _pair_score),
    )
    yield (
        "Class scores",
        "`classify --score`, `classify(score=...)`; the default is `logit`. In Python also a callable on the model's "
        "output. `probability` is `softmax`, or `sigmoid` for a multi-label model.",
        _table(CLASS_SCORES, ("what is explained",), lambda fn: (_first(fn),)),
    )
    yield (
        "Ways to fuse blocks",
        "`--fuse`, `explain(fuse=...)`: how the maps of n blocks become one, pixel by pixel; the default is `mean`. In "
        "Python also one weight per block, for a weighted mean.",
        _table(FUSIONS, (), lambda _: ()),
    )
    yield (
        "Metrics",
        "What `gamlens evaluate KIND` measures of every map, and in which columns of the results it is stored. KIND is "
        "`objective`, `localization` or `segmentation`.",
        _table(METRICS, ("title", "better", "kind of evaluation", "columns", "per item"), _metric),
    )
    yield (
        "Data sets",
        "`--data`, `gamlens.data.load(name, root)`; [data sets and checkpoints](data.md) has their layouts.",
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
        "`gamlens figure NAME`. Pictures: [figures and reports](figures.md). A figure takes single images, pairs of "
        "images, or images of a data set with boxes or masks; `overview` takes one image and a pair.",
        _table(FIGURES, ("takes", "shows"), lambda figure: (figure.takes, figure.about)),
    )
    yield (
        "Ways to search an index",
        "`gamlens index add --backend`, `Index.create(backend=...)`; the default, `auto`, is `exact` up to 100,000 "
        "images. [Visual search](search.md)",
        _table(BACKENDS, ("title", "finds every hit", "extra", "how"), _backend),
    )
    yield "Commands", "`gamlens COMMAND --help` lists the options.", _table(_commands(), ("what it does",), _described)


def _method(method: Any) -> tuple[str, ...]:
    reads = {
        "input": "pixels, their gradient",
        "pair": "activations of both images",
        "attention": ", ".join(what.replace("_", " ") for what in method.reads if what not in ("pooled", "image")),
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


def _backend(entry: Any) -> tuple[str, ...]:
    return entry.title, _yes(entry.exact), entry.extra, _first(sys.modules[entry.make.__module__])


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
