"""How much do the numbers depend on what the paper leaves open? Every reading in one table, beside the paper's level.

ResNet-50 on the shared ILSVRC sample, classes and pairs: the input squashed or cropped, hidden pixels black or of the
mean colour, the confidence a logit or a probability, one or both images of a pair masked, in all combinations.
DenseNet-201 on imagenette: which tensors are its blocks. Each line has ADP, PIC or IoU of every method at n = 1 and 2,
maps without a model (blank, centre) as controls, and how far the line is from the paper's. The paper's networks
(ResNet-101, DenseNet-201 with 1,000 classes) are others: levels can be compared, single numbers cannot.

It needs torch and torchvision only. All readings take some 600,000 forwards: a quarter of an hour on a GPU. On a CPU,
use --limit, or --one to change one choice at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import real
import torch

from gamlens import Lens
from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.paper_numbers import paper_of
from gamlens.evaluation.protocol import CHOICES, Protocol, units
from gamlens.evaluation.run_scores import CONFIDENCE_KINDS
from gamlens.evaluation.runs import set_input
from gamlens.evaluation.table_files import markdown
from gamlens.methods import METHODS

ASKED = ("gam", "grad_cam", "grad_cam_pp", "grad_cam_pp_literal")
CONTROLS = ("blank", "centre")
WANTED = ("ADP", "PIC", "IoU")
TASKS = ("classification", "cosine", "dot")
FOLDERS = {"resnet50": "ILSVRC", "densenet201": "imagenette"}
# The choices that matter, by (kind, whether pairs are explained).
OPEN: dict[tuple[str, bool], tuple[str, ...]] = {
    ("objective", False): ("input", "fill", "lattice"),
    ("objective", True): ("input", "fill", "masked", "lattice"),
    ("localization", False): ("input", "lattice"),
    ("localization", True): ("input", "lattice"),
}
DENSE, TRANSITIONS = (tuple(f"features.{part}{i}" for i in (1, 2, 3)) for part in ("denseblock", "transition"))
BLOCKS: dict[str, dict[str, tuple[str, ...]]] = {  # {network: {reading: the names of its blocks; empty: the usual}}
    "resnet50": {"": ()},
    "densenet201": {
        "": (),
        "norm5 before its ReLU": (*DENSE, "features.norm5"),
        "transitions": (*TRANSITIONS, "features:relu"),
        "ReLUs of transitions": (*(f"{name}.relu" for name in TRANSITIONS), "features:relu"),
    },
}


@dataclass(frozen=True)
class Reading:
    """A network, the name of its blocks (a key of BLOCKS), a protocol, and the confidence of ADP and PIC."""

    model: str
    blocks: str
    protocol: Protocol
    confidence: str

    @property
    def name(self) -> str:
        """The choices that were made, such as "input=crop, fill=mean, probability"; "as usual" for the defaults."""
        usual = Protocol()
        changed = [
            f"{name}={getattr(self.protocol, name)}"
            for name in OPEN[self.protocol.kind, self.protocol.task != "classification"]
            if getattr(self.protocol, name) != getattr(usual, name)
        ]
        words = [self.blocks, *changed, "probability" if self.confidence == "probability" else ""]
        return ", ".join(filter(None, words)) or "as usual"


def protocols(kind: str, task: str, methods: tuple[str, ...], *, one: bool) -> Iterator[Protocol]:
    """The protocols of a task: every combination of the open choices; with `one`, those that change at most one."""
    usual = Protocol(kind, task, methods, pairs="neighbour")
    known = {name: CHOICES[name] for name in OPEN[kind, task != "classification"]}
    for values in product(*known.values()):
        made = replace(usual, **dict(zip(known, values, strict=True)))
        if not one or sum(getattr(made, name) != getattr(usual, name) for name in known) <= 1:
            yield made


def readings(model: str, task: str, methods: tuple[str, ...], *, one: bool) -> Iterator[list[Reading]]:
    """The readings of a network and a task; those that share a run come together. Other blocks change nothing else."""
    for kind in ("objective", "localization"):
        confidences = CONFIDENCE_KINDS if (kind, task) == ("objective", "classification") else ("logit",)
        for blocks in BLOCKS[model]:
            own = list(protocols(kind, task, methods, one=one))
            for protocol in own[:1] if model != "resnet50" else own:
                yield [Reading(model, blocks, protocol, confidence) for confidence in confidences]


@cache
def lens_of(model: str, blocks: tuple[str, ...], device: str) -> Lens:
    """The real network, read at these blocks (the usual ones if there is none)."""
    if not blocks:
        return real.lens(model).to(device)
    weights, labels = real.WEIGHTS / "densenet201_imagenette_fp16.pth", real.labels(FOLDERS[model])
    return Lens(model, weights=weights, labels=labels, blocks=list(blocks)).to(device)


def measure(group: Sequence[Reading], options: Any) -> list[dict[str, Any]]:
    """Measure the readings of one run: one line per reading and metric."""
    start, first = time.perf_counter(), group[0]
    lens = lens_of(first.model, BLOCKS[first.model][first.blocks], options.device)
    dataset = load("ilsvrc", real.DATA / FOLDERS[first.model])
    set_input(lens, first.protocol)
    items = units(dataset, first.protocol)[: options.limit]
    rows = [row for part in evaluate(lens, items, first.protocol, batch=options.batch) for row in part]
    run = results.collect(results.describe(lens, dataset, first.protocol, len(items)), rows)
    lines = [line for reading in group for line in lines_of(reading, tables.cells(run, confidence=reading.confidence))]
    seconds = time.perf_counter() - start
    words = (first.model, first.protocol.kind, first.protocol.task, first.name)
    print(f"  {', '.join(words)}: {len(items)} items, {seconds:.0f} s", file=sys.stderr, flush=True)
    return lines


def lines_of(reading: Reading, cells: Sequence[tables.Cell]) -> list[dict[str, Any]]:
    """One line per metric: {"gam n=1": value, ...}, the controls, and the mean distance from the paper's numbers."""
    found = []
    for metric in WANTED:
        own = {f"{cell.method} n={cell.n}": cell.value.mean for cell in cells if cell.metric == metric}
        if own:
            paper = paper_line(reading.protocol, metric, reading.model)
            apart = [abs(value - paper[key]) for key, value in own.items() if key in paper]
            items = max(cell.value.n for cell in cells if cell.metric == metric)
            line = {"model": reading.model, "task": reading.protocol.task, "metric": metric, "reading": reading.name}
            line |= {"protocol": reading.protocol.record(), "confidence": reading.confidence, "items": items}
            distance = sum(apart) / len(apart) if apart else None
            found.append({**line, "values": own, "paper": paper, "distance": distance})
    return found


def paper_line(protocol: Protocol, metric: str, model: str) -> dict[str, float]:
    """The paper's numbers of a task and metric, of the nearest network it has: {"gam n=1": number, ...}."""
    found = {}
    for method in protocol.methods:
        for n in protocol.n:
            known = paper_of(protocol.task, "ilsvrc", protocol.subset, metric, model, method, n)
            if known is not None:
                found[f"{method} n={n}"] = known.value
    return found


def show(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a table per network, task and metric, one line per reading, and the paper's line above them."""
    text = ""
    for key in dict.fromkeys((line["model"], line["task"], line["metric"]) for line in lines):
        own = [line for line in lines if (line["model"], line["task"], line["metric"]) == key]
        columns = [name for name in own[0]["values"] if not name.endswith("n=0")]
        heads = [f"{METHODS[name.split()[0]].title} {name.split()[1]}" for name in columns]
        better = "lower" if key[2] == "ADP" else "higher"
        text += f"### {key[0]}, {key[1]}: {key[2]} % ({better} is better), {own[0]['items']} items\n\n"
        rows = [("the paper", *(_number(own[0]["paper"].get(name)) for name in columns), *("" for _ in CONTROLS), "")]
        for line in own:
            values = [line["values"].get(name) for name in (*columns, *(f"{name} n=0" for name in CONTROLS))]
            rows.append((line["reading"], *map(_number, values), _number(line["distance"])))
        text += markdown(("reading", *heads, *CONTROLS, "from the paper"), rows) + "\n"
    return text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--methods", nargs="*", default=ASKED)
    parser.add_argument("--kinds", nargs="*", help="only these kinds of evaluation (default: all)")
    parser.add_argument("--one", action="store_true", help="change one choice at a time, in place of all combinations")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the lines to this file, after each run")
    parser.epilog = "example: python benchmarks/readings.py --models densenet201 --tasks cosine --limit 20"
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for model, task in product(options.models, options.tasks):
        for group in readings(model, task, tuple(options.methods), one=options.one):
            if options.kinds and group[0].protocol.kind not in options.kinds:
                continue
            lines += measure(group, options)
            if options.json:
                options.json.write_text(json.dumps(lines, indent=1))
    print(show(lines))


if __name__ == "__main__":
    main()
