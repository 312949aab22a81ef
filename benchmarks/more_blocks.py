"""What a second and a third block bring, on five real networks, with and without the handling of lattices.

`--measure` evaluates every network of `real.NAMES` on its images and writes one .npz file per run, with the value of
every item: boxes (localization), ADP, PIC, insertion and deletion (objective) for classes, and boxes, ADP and PIC for
pairs. `--show` reads these files and prints tables with intervals over whole images and pairs. Measuring takes some
1,200,000 forwards: minutes on a GPU; --limit for a try.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import real
import torch

from gamlens.data import align, load, small
from gamlens.evaluation import results, run_scores, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.lattice import READINGS
from gamlens.metrics import Interval

METHODS = ("gam", "grad_cam_pp", "grad_cam_pp_literal", "grad_cam")
LITERAL = "grad_cam_pp_literal"
N = (1, 2, 3)
CURVES = {"curves": 7, "curve_background": "blur"}
WITH_PAIRS = ("resnet50", "efficientnet_lite0", "densenet201")
TITLES = {"IoU": "IoU", "ADP": "ADP", "PIC": "PIC", "Insertion": "ins.", "Deletion": "del."}


def protocols(name: str, lattice: str) -> Iterator[Protocol]:
    """What is measured on a network: classes, with curves for all but literal Grad-CAM++, and pairs of neighbours."""
    usual: dict[str, Any] = {"methods": METHODS, "n": N, "lattice": lattice}
    yield Protocol("localization", **usual)
    yield Protocol("objective", **{**usual, "methods": tuple(m for m in METHODS if m != LITERAL)}, **CURVES)
    if lattice == "read":
        yield Protocol("objective", **{**usual, "methods": (LITERAL,)})
        for task in ("cosine", "dot") if name in WITH_PAIRS else ():
            for kind in ("localization", "objective"):
                yield Protocol(kind, task, pairs="neighbour", **usual)


def measure(options: Any) -> None:
    for name in options.models:
        lens = real.lens(name).to(options.device)
        folder = "imagenette" if name == "densenet201" else "ILSVRC"
        whole = load("ilsvrc", real.DATA / folder)
        dataset = align(whole, lens.labels)
        lattices = lens.trace(torch.zeros(1, 3, *lens.transform.size), 0, n=3).lattices
        for lattice in options.readings if lattices else READINGS[:1]:
            for protocol in protocols(name, lattice):
                if options.kinds and protocol.kind not in options.kinds:
                    continue
                start, literal = time.perf_counter(), "-literal" if protocol.methods == (LITERAL,) else ""
                items = units(dataset, protocol)[: options.limit]
                rows = [row for part in evaluate(lens, items, protocol, batch=options.batch) for row in part]
                run = results.collect(results.describe(lens, dataset, protocol, len(items)), rows)
                save(run, options.measure / f"{name}-{protocol.kind}-{protocol.task}{literal}-{lattice}.npz")
                seconds = time.perf_counter() - start
                what = f"{name} {lattice}: {protocol.kind}, {protocol.task}"
                print(f"{what}: {len(items)} items, {seconds:.0f} s", file=sys.stderr, flush=True)


def save(run: results.Run, path: Path) -> None:
    """Write a run to one file: its description, and every column that tables read as an array."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted, arrays = ("side", *run_scores.needed()), {"about": np.array(json.dumps(run.about))}
    for (method, n), columns in run.groups.items():
        arrays |= {f"{method}|{n}|{name}": np.array(columns[name]) for name in wanted if name in columns}
    np.savez_compressed(path, **arrays)


def read(path: Path) -> results.Run:
    """Read a run that `save` wrote."""
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        for key in arrays.files:
            if key != "about":
                method, n, name = key.split("|")
                value = arrays[key]
                groups.setdefault((method, int(n)), {})[name] = value.tolist() if value.dtype.kind == "U" else value
    return results.Run(about, groups, [])


def named_runs(folder: Path) -> Iterator[tuple[str, results.Run]]:
    """The runs below a folder, and from those of classes the parts with small objects (25 % and 10 %)."""
    for path in sorted(folder.glob("*.npz")):
        run = read(path)
        yield path.stem, run
        if run.about["protocol"]["task"] == "classification" and "literal" not in path.stem:
            dataset = load("ilsvrc", real.DATA / Path(run.about["root"]).name)
            for percent in ("25", "10"):
                names = small(dataset, float(percent)).names
                yield f"{path.stem}-{percent}", cut(run, names, percent)


def cut(run: results.Run, names: frozenset[str], subset: str) -> results.Run:
    """Only the items of these images."""
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for key, columns in run.groups.items():
        kept = [place for place, item in enumerate(columns["item"]) if item in names]
        groups[key] = {}
        for name, values in columns.items():
            groups[key][name] = [values[place] for place in kept] if isinstance(values, list) else values[kept]
    about = {**run.about, "protocol": {**run.about["protocol"], "subset": subset}}
    return results.Run(about, groups, [])


def show(options: Any) -> str:
    """Markdown: per network and reading, every metric of every method at n = 1, 2, 3; then the gains."""
    lines = []
    for name, run in named_runs(options.show):
        lines.append(f"\n### {name}\n")
        cells = tables.cells(run)
        titles = [title for title in TITLES if any(cell.metric == title for cell in cells)]
        lines += ["| method | n | " + " | ".join(titles) + " |", "| --- " * (len(titles) + 2) + "|"]
        for key in dict.fromkeys((cell.method, cell.n) for cell in cells):
            own = {cell.metric: cell for cell in cells if (cell.method, cell.n) == key}
            words = [_interval(own[title].value) if title in own else "" for title in titles]
            lines.append(f"| {key[0]} | {key[1] or ''} | " + " | ".join(words) + " |")
        lines += ["", *gains(run, titles)]
    return "\n".join(lines)


def _interval(value: Interval) -> str:
    return f"{value.mean:.2f} ({value.low:.1f} to {value.high:.1f})"


def gains(run: results.Run, titles: list[str]) -> list[str]:
    """Paired differences with their 95 % intervals: n = 2 and 3 against n = 1, and GAM against the other methods."""
    values = {}
    for key, columns in run.groups.items():
        values[key] = {score.metric.title: score for score in run_scores.scores(run, columns)}
    pairs = [((method, n), (method, 1)) for method in METHODS for n in N[1:]]
    pairs += [(("gam", n), (other, n)) for other in METHODS[1:] for n in N]
    pairs += [(("gam", n), (control, 0)) for control in ("centre",) for n in N]
    lines = ["| difference | " + " | ".join(titles) + " |", "| --- " * (len(titles) + 1) + "|"]
    for one, other in pairs:
        if one not in values or other not in values:
            continue
        words = []
        for title in titles:
            a, b = values[one].get(title), values[other].get(title)
            if a is None or b is None:
                words.append("")
                continue
            found = a.minus(b)
            words.append(f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})")
        names = [f"{method} n={n}" if n else method for method, n in (one, other)]
        lines.append(f"| {names[0]} - {names[1]} | " + " | ".join(words) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help="measure, and write the files of values below this folder")
    parser.add_argument("--show", type=Path, help="print tables of the files below this folder")
    parser.add_argument("--models", nargs="*", default=real.NAMES, choices=real.NAMES)
    parser.add_argument("--readings", nargs="*", default=READINGS, choices=READINGS)
    parser.add_argument("--kinds", nargs="*", help="only these kinds of evaluation (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=50)
    parser.epilog = "example: python benchmarks/more_blocks.py --measure values --models resnet50 --limit 20"
    options = parser.parse_args()
    if options.measure:
        measure(options)
    if options.show:
        print(show(options))


if __name__ == "__main__":
    main()
