"""What self-similarity refinement brings, on five real networks, beside plain maps, other methods and controls.

`--measure` evaluates every network of `real.NAMES` and writes one .npz file per run, with the value of every item:
boxes (all pixels, and the largest region), ADP, ADP of equal mass, PIC, insertion and deletion for classes; boxes, ADP
and PIC for pairs of neighbours; and, for scenes of two photos side by side, how much of a map lies on its own photo.
`--show` reads these files and prints tables with paired intervals.

Half of the classes served to choose the form of the refinement and its constants. Everything here is reported on the
other half. The first half chooses the thresholds of boxes and is left out of the numbers. Measuring takes some 700,000
forwards: minutes on a GPU; --limit for a try.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import real
import torch
from more_blocks import cut, read, save
from PIL import Image

from gamlens import Lens, Refinement, metrics
from gamlens.data import Dataset, Item, Manifest, Sample, align, load, small
from gamlens.evaluation import masked, results, run_scores
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.refine import SHARP_VIEWS

CURVES = {"curves": 7, "curve_background": "blur", "equal_mass": True}
SCENES = 300
KEPT = (0.0, 0.25, 0.75)  # weights of the plain map that are tried beside the usual one


@dataclass(frozen=True)
class Variant:
    """Some rows of the tables: methods at n, refined or not.

    Attributes:
        name: What its files are called.
        methods, n, refine, keep, views: As in Protocol.
        controls: Whether the controls are measured, too.
    """

    name: str
    methods: tuple[str, ...] = ("gam",)
    n: tuple[int, ...] = (2,)
    refine: int = 0
    keep: float = Refinement.keep
    views: tuple[str | float, ...] = ()
    controls: bool = False

    def protocol(self, kind: str, **more: Any) -> Protocol:
        chosen = {"methods": self.methods, "n": self.n, "refine": self.refine, "keep": self.keep, "views": self.views}
        return Protocol(kind, **{**chosen, **more})


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain", n=(1, 2, 3), controls=True),
        Variant("others", methods=("grad_cam", "grad_cam_pp", "layer_cam"), n=(1,)),
        Variant("refined", n=(1, 2, 3), refine=2, controls=True),
        Variant("refined-grad-cam", methods=("grad_cam",), n=(1,), refine=2),
        Variant("one-block", refine=1),
        *(Variant(f"keep-{keep:g}", refine=2, keep=keep) for keep in KEPT),
        Variant("views", views=SHARP_VIEWS),
        Variant("refined-views", refine=2, views=SHARP_VIEWS),
    )
}
WITHOUT_PAIRS = ("others", "one-block", *(f"keep-{keep:g}" for keep in KEPT[1:]))
TITLES = {  # {method or control: its title}
    "gam": "GAM", "grad_cam": "Grad-CAM", "grad_cam_pp": "Grad-CAM++", "layer_cam": "LayerCAM", "blank": "blank map",
    "ones": "all ones", "centre": "centre prior", "random": "random 7 x 7", "centre_refined": "centre prior, refined",
    "random_refined": "random 7 x 7, refined",
}  # fmt: skip


def first_half(dataset: Dataset) -> Manifest:
    """The images of every second class, by which choices were made."""
    classes = sorted({label for sample in dataset.samples for label in sample.labels})
    chosen = {*classes[::2]}
    kept = tuple(item for item in _items(dataset) if item.label in chosen)
    return Manifest("first half", None, dataset.fingerprint(), kept)


def _items(dataset: Dataset) -> Iterator[Item]:
    for sample in dataset.samples:
        for label in sample.labels:
            yield Item((sample.name,), label)


@contextmanager
def _controls(wanted: bool) -> Iterator[None]:
    """Measure no controls unless they are wanted: they are the same for every variant."""
    kept = dict(metrics.CONTROLS) if wanted else {}
    refined = mock.patch.object(metrics, "REFINED_CONTROLS", metrics.REFINED_CONTROLS if wanted else ())
    with mock.patch.dict(metrics.CONTROLS, kept, clear=True), refined:
        yield


def measure(options: Any) -> None:
    masked.IMAGES_AT_ONCE = 512 if options.device.startswith("cuda") else masked.IMAGES_AT_ONCE
    for name in options.models:
        lens = real.lens(name).to(options.device)
        folder = "imagenette" if name == "densenet201" else "ILSVRC"
        whole = load("ilsvrc", real.DATA / folder)
        dataset = align(whole, lens.labels)
        half = first_half(dataset)
        if options.scenes:
            scenes(
                lens, [s for s in dataset.samples if s.name not in half.names], options.measure / f"{name}-scenes.json"
            )
        for task in options.tasks:
            for variant in (VARIANTS[name] for name in options.variants):
                if task != "classification" and (variant.name in WITHOUT_PAIRS or variant.views):
                    continue
                for kind, more in plans(task, options):
                    start = time.perf_counter()
                    protocol = variant.protocol(kind, task=task, **more)
                    items = units(dataset, protocol, hold_out=half)
                    items = [unit for unit in items if kind == "localization" or not any(unit.held_out)]
                    with _controls(variant.controls):
                        parts = evaluate(lens, items[: options.limit], protocol, batch=options.batch)
                        rows = [row for part in parts for row in part]
                    run = results.collect(results.describe(lens, dataset, protocol, len(items)), rows)
                    label = "-".join((name, task, kind, *([more["box"]] if "box" in more else []), variant.name))
                    save(run, options.measure / f"{label}.npz")
                    seconds = time.perf_counter() - start
                    print(f"{label}: {len(items)} items, {seconds:.0f} s", file=sys.stderr, flush=True)


def plans(task: str, options: Any = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is measured for a task: (kind, further fields of the protocol). Options may leave some of it out."""
    pairs = {} if task == "classification" else {"pairs": "neighbour"}
    for box in ("all", "largest"):
        if options is None or box in options.boxes:
            yield "localization", {"box": box, **pairs}
    if options is None or options.objective:
        curves = CURVES if task == "classification" and (options is None or options.curves) else {"equal_mass": True}
        yield "objective", {**pairs, **curves}


# Two objects in one picture


def scenes(lens: Lens, samples: list[Sample], path: Path, *, batch: int = 20) -> None:
    """Photos of two classes side by side: the share of a class's map that lies on its own half, and where its peak is.

    For pairs, the scene is compared with another photo of one of the classes: the partner decides which half counts.
    """
    made = _pairs_of_photos(samples)
    methods = {
        "GAM n=1": ("gam", 1, False), "GAM n=2": ("gam", 2, False), "GAM n=1 refined": ("gam", 1, True),
        "GAM n=2 refined": ("gam", 2, True), "GAM n=2 refined, keep 0": ("gam", 2, Refinement(2, 0.0)),
        "Grad-CAM n=1": ("grad_cam", 1, False), "Grad-CAM n=1 refined": ("grad_cam", 1, True),
    }  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {}
    for start in range(0, len(made), batch):
        part = made[start : start + batch]
        pictures = [_side_by_side(left, right) for left, right, _, _ in part]
        labels = [[left.labels[0], right.labels[0]] for left, right, _, _ in part]
        trace = lens.trace(pictures, labels, n=2, refine=True, keep_graph=False)
        for title, (method, n, refine) in methods.items():
            _put(found, f"class|{title}", trace.explain(method, n, refine=refine).maps)
        twice = [picture for picture in pictures for _ in range(2)]
        partners = [str(sample.image) for _, _, left, right in part for sample in (left, right)]
        pair = lens.trace_pair(twice, partners, n=2, refine=True)
        for title, (method, n, refine) in methods.items():
            _put(found, f"cosine|{title}", pair.explain(method, n, refine=refine).x.maps)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"scenes": len(made), "values": found}))


def _pairs_of_photos(samples: list[Sample]) -> list[tuple[Sample, Sample, Sample, Sample]]:
    """Left and right photo of a scene, of different classes, and another photo of each one's class: seeded."""
    draw = np.random.default_rng(0)
    by_class: dict[int, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.name):
        by_class.setdefault(sample.labels[0], []).append(sample)
    classes, made = sorted(by_class), []
    while len(made) < SCENES:
        left, right = (by_class[label] for label in draw.choice(classes, 2, replace=False))
        (a, more_a), (b, more_b) = (draw.choice(len(own), 2, replace=False) for own in (left, right))
        made.append((left[a], right[b], left[more_a], right[more_b]))
    return made


def _side_by_side(left: Sample, right: Sample) -> Image.Image:
    scene = Image.new("RGB", (512, 256))
    for place, sample in enumerate((left, right)):
        scene.paste(Image.open(sample.image).convert("RGB").resize((256, 256)), (256 * place, 0))
    return scene


def _put(found: dict[str, dict[str, list[float]]], key: str, maps: torch.Tensor) -> None:
    """Add the share of each map on its own half, and whether its peak is there: rows are of left, right, left, ..."""
    width = maps.shape[2] // 2
    total = maps.sum(dim=(1, 2)).clamp(min=1e-12)
    left = (maps[:, :, :width].sum(dim=(1, 2)) / total).cpu()
    peak = (maps.flatten(1).argmax(dim=1) % maps.shape[2] < width).float().cpu()
    of_left = torch.arange(len(maps)) % 2 == 0
    own = found.setdefault(key, {"share": [], "peak": []})
    own["share"] += torch.where(of_left, left, 1 - left).tolist()
    own["peak"] += torch.where(of_left, peak, 1 - peak).tolist()


# Tables


def show(folder: Path) -> str:
    """Markdown: for each network and task one table of values and one of differences to GAM n=2, and the scenes."""
    lines: list[str] = []
    for name in real.NAMES:
        for task in ("classification", "cosine", "dot"):
            if rows := table_rows(folder, name, task):
                lines += _tables(f"{name}, {task}", rows)
        if (scene := folder / f"{name}-scenes.json").is_file():
            lines += _scene_table(name, json.loads(scene.read_text()))
    return "\n".join(lines)


Scores = dict[str, run_scores.Score]  # {column of the table: the values of its items}


def table_rows(folder: Path, name: str, task: str) -> dict[str, Scores]:
    """{title of a row: its scores}."""
    rows: dict[str, Scores] = {}
    for variant in VARIANTS.values():
        for kind, more in plans(task):
            parts = (name, task, kind, *([more["box"]] if "box" in more else []), variant.name)
            path = folder / f"{'-'.join(parts)}.npz"
            if not path.is_file():
                continue
            run = read(path)
            for subset, cut_run in _subsets(run, kind, more):
                for (method, n), columns in cut_run.groups.items():
                    row = rows.setdefault(_title(variant, method, n), {})
                    for score in run_scores.scores(cut_run, columns):
                        if column := _column(score.metric.title, more.get("box", ""), subset):
                            row.setdefault(column, _of_second_half(score, columns["held_out"]))
    return rows


def _of_second_half(score: run_scores.Score, held_out: Any) -> run_scores.Score:
    """The score without the items of the first half, also where a metric has no threshold to choose on them."""
    if score.found.counted is not None:
        return score
    return replace(score, found=replace(score.found, counted=~torch.as_tensor(held_out)))


def _subsets(run: results.Run, kind: str, more: Mapping[str, Any]) -> Iterator[tuple[str, results.Run]]:
    yield "", run
    if kind == "localization" and more["box"] == "all" and run.about["protocol"]["task"] == "classification":
        dataset = load("ilsvrc", real.DATA / Path(run.about["root"]).name)
        for percent in ("25", "10"):
            part = cut(run, small(dataset, float(percent)).names, percent)
            if all(len(columns["item"]) for columns in part.groups.values()):  # a run with --limit may have none
                yield f" {percent} %", part


def _column(metric: str, box: str, subset: str) -> str:
    if metric == "PxAP" or (subset and metric != "IoU") or (box == "largest" and metric not in ("IoU", "MaxBoxAcc")):
        return ""
    return f"{metric}{f' {box}' if metric in ('IoU', 'MaxBoxAcc') and not subset else ''}{subset}"


def _title(variant: Variant, method: str, n: int) -> str:
    title = TITLES[method]
    if n == 0:
        return title
    title += f" n={n}"
    if variant.refine:
        title += ", refined" if variant.refine == 2 else f", refined by {variant.refine} block"
        title += f", keep {variant.keep:g}" if variant.keep != Refinement.keep else ""
    return f"{title}, six views" if variant.views else title


def _tables(title: str, rows: Mapping[str, Scores]) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = ["", f"### {title}", "", "| | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(_mean(row.get(column)) for column in columns) + " |")
    lines += ["", "| difference to GAM n=2 | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    base = rows["GAM n=2"]
    for name, row in rows.items():
        if name != "GAM n=2":
            words = [_difference(row.get(column), base.get(column)) for column in columns]
            lines.append(f"| {name} | " + " | ".join(words) + " |")
    return lines


def _mean(score: run_scores.Score | None) -> str:
    return "" if score is None else f"{score.interval.mean:.2f}"


def _difference(score: run_scores.Score | None, base: run_scores.Score | None) -> str:
    if score is None or base is None or len(score.counted) != len(base.counted):
        return ""
    found = score.minus(base)
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _scene_table(name: str, scene: Mapping[str, Any]) -> list[str]:
    """The share of maps on their own photo, its paired difference to GAM n=1, and how often the peak lies there."""
    lines = ["", f"### {name}, {scene['scenes']} scenes of two photos", ""]
    lines += ["| | map on its own half, % | difference to GAM n=1 | peak there, % |", "| --- " * 4 + "|"]
    for key, values in scene["values"].items():
        task, title = key.split("|")
        own, base = (torch.tensor(v["share"]) for v in (values, scene["values"][f"{task}|GAM n=1"]))
        clusters = [str(number // 2) for number in range(len(own))]
        apart = metrics.paired(100 * own, 100 * base, clusters=clusters)
        peak = 100 * float(np.mean(values["peak"]))
        difference = f"{apart.mean:+.1f} ({apart.low:+.1f} to {apart.high:+.1f})"
        lines.append(f"| {task}: {title} | {100 * float(own.mean()):.1f} | {difference} | {peak:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help="measure, and write the files of values below this folder")
    parser.add_argument("--show", type=Path, help="print tables of the files below this folder")
    parser.add_argument("--models", nargs="*", default=real.NAMES, choices=real.NAMES)
    tasks = ("classification", "cosine", "dot")
    parser.add_argument("--tasks", nargs="*", default=tasks, choices=tasks)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--boxes", nargs="*", default=("all", "largest"), choices=("all", "largest"))
    parser.add_argument("--no-objective", dest="objective", action="store_false", help="boxes alone")
    parser.add_argument("--no-curves", dest="curves", action="store_false", help="without insertion and deletion")
    parser.add_argument("--no-scenes", dest="scenes", action="store_false", help="without scenes of two photos")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=50)
    parser.epilog = "example: python benchmarks/refinement.py --measure values --models resnet50 --limit 20"
    options = parser.parse_args()
    if options.measure:
        measure(options)
    if options.show:
        print(show(options.show))


if __name__ == "__main__":
    main()
