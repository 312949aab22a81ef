"""Measures how far maps in half precision, or of a compiled model, differ from fp32, on real weights and images.

Compared are class maps (always for the top class of fp32) and both maps of pairs (the first half of a batch with the
second half, by cosine), for n = 1 and 2. For every map it computes Spearman's rank correlation of the pixels, the
largest and the mean absolute difference, and the IoU of the boxes at 0.25. The table has the median and the worst of
each, and how often the top class changes. On CUDA the reference is fp32 without TF32, and fp32 with PyTorch's own flags
is one of the rows; `--reference default` does not change the flags. Weights and images are looked for in ../shared, in
GAMLENS_WEIGHTS and GAMLENS_DATA, or where --weights and --images say.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import real
import torch
from gpu import about
from torch import Tensor

from gamlens import GamlensError, Lens, metrics
from gamlens import boxes as locate
from gamlens.inputs.batch import Views, prepare
from gamlens.models.hooked import PRECISIONS

FOLDERS = {"resnet50": "ILSVRC", "densenet201": "imagenette", "efficientnet_lite0": "ILSVRC"}
FILES = {"resnet50": "resnet50_imagenet1k_fp16.pth", "densenet201": "densenet201_imagenette_fp16.pth"}
NUMBERS = (1, 2)
THRESHOLD = 0.25
PLACES = {"spearman": 5, "largest": 4, "mean": 4, "iou": 3}
WORST = {"spearman": min, "largest": max, "mean": max, "iou": min}
TITLES = {"spearman": "rank correlation", "largest": "largest difference", "mean": "mean difference", "iou": "box IoU"}
EXAMPLE = """examples:
  python benchmarks/precision.py --limit 40
  python benchmarks/precision.py --models resnet50 --weights carried --images carried/images --compile --json p.json"""
Row = dict[str, Any]


def lens(name: str, weights: Path, device: str, precision: str, *, fast: bool) -> Lens:
    """A lens on a model with its real weights; those of efficientnet_lite0 are part of its package."""
    model: Any = real.original_resnet50() if name == "resnet50" else name
    file = weights / FILES[name] if name in FILES else None
    return Lens(model, weights=file, device=device, precision=precision, compile=fast)


def files(folder: Path, limit: int | None) -> list[str]:
    """`limit` image files below a folder, spread evenly over it."""
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpeg", ".jpg", ".png"))
    if not found:
        sys.exit(f"There are no images below {folder}: point --images to a folder of them.")
    return [str(file) for file in found[:: max(1, len(found) // (limit or len(found)))][:limit]]


@contextmanager
def tf32(on: bool | None) -> Iterator[None]:
    """Switch TF32 in convolutions and matrix products on or off; None leaves both as they are."""
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    for place in places if on is not None else ():
        place.allow_tf32 = on
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.allow_tf32 = value


def maps_of(look: Lens, batch: Tensor, classes: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """Returns {what is explained: maps} of a batch, and its top classes, which are explained if `classes` is None."""
    top = look.classify(batch, n=1).check().targets
    wanted, half = top if classes is None else classes, len(batch) // 2
    found = {f"class, n = {n}": look.classify(batch, wanted, n=n).check().maps for n in NUMBERS}
    for n in NUMBERS if half else ():
        both = look.compare(batch[:half], batch[half : 2 * half], n=n)
        found[f"pair, n = {n}"] = torch.cat([both.x.check().maps, both.y.check().maps])
    return found, top


def differences(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Differences of maps a and b: (N,H,W), (N,H,W) -> {name: (N,)}. The rank correlation of a flat map is NaN."""
    apart = (a - b).abs().flatten(1)
    boxes = [locate.boxes(maps, threshold=THRESHOLD) for maps in (a, b)]
    return {
        "spearman": metrics.pearson(metrics.ranks(a), metrics.ranks(b)),
        "largest": apart.amax(dim=1),
        "mean": apart.mean(dim=1),
        "iou": metrics.box_iou(boxes[1], list(boxes[0][:, None])),
    }


def summary(found: dict[str, Tensor]) -> Row:
    """The median and the worst of each difference. NaN values are left out and counted as `flat`."""
    row: Row = {"maps": len(found["largest"]), "flat": int(found["spearman"].isnan().sum())}
    for name, values in found.items():
        some = values[~values.isnan()].double().tolist()
        row[name] = [statistics.median(some), WORST[name](some)] if some else [float("nan")] * 2
    return row


@dataclass(frozen=True)
class Setting:
    """A setting that is compared with the reference. `strict` switches TF32 off."""

    title: str
    precision: str
    fast: bool = False
    strict: bool = False


def settings(options: argparse.Namespace) -> list[Setting]:
    strict = options.reference == "strict"
    cuda = options.device.startswith("cuda")
    found = [Setting("fp32, TF32 as PyTorch sets it", "fp32")] if cuda and strict else []
    found += [Setting(precision, precision) for precision in ("bf16", "fp16")]
    if options.compile:
        found += [Setting(f"{name}, compiled", name, True, strict and name == "fp32") for name in PRECISIONS]
    return found


def compare(name: str, options: argparse.Namespace) -> list[Row]:
    """Compare every setting of one model with fp32, batch by batch."""
    make = partial(lens, name, options.weights, options.device)
    names = files(options.images or real.DATA / FOLDERS[name], options.limit)
    first = make("fp32", fast=False)
    parts = [names[at : at + options.batch] for at in range(0, len(names), options.batch)]
    batches = [prepare(part, first.transform, Views()).batches[0] for part in parts]
    with tf32(False if options.reference == "strict" else None):
        wanted = [maps_of(first, batch.to(options.device), None) for batch in batches]
    rows = []
    for setting in settings(options):
        try:
            with tf32(False if setting.strict else None):
                look = make(setting.precision, fast=setting.fast)
                rows += beside(look, batches, wanted, setting.title, options)
        except GamlensError as error:
            print(f"  {name}, {setting.title}: {error}", file=sys.stderr)
            rows.append({"setting": setting.title, "what": "-", "note": str(error).split(":")[0]})
    fixed = {"model": name, "images": len(names), "reference": options.reference, "device": about(options.device)}
    return [fixed | row for row in rows]


def beside(
    look: Lens, batches: list[Tensor], wanted: list[tuple[dict[str, Tensor], Tensor]], title: str, options: Any
) -> list[Row]:
    found: dict[str, list[dict[str, Tensor]]] = {}
    changed = 0
    for batch, (reference, best) in zip(batches, wanted, strict=True):
        maps, top = maps_of(look, batch.to(options.device), best)
        changed += int((top != best).sum())
        for what, values in maps.items():
            found.setdefault(what, []).append(differences(reference[what], values))
    rows = []
    for what, parts in found.items():
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        rows.append({"setting": title, "what": what, "changed": changed} | summary(joined))
    return rows


def table(rows: list[Row]) -> str:
    heads = [*(f"{title}: median, worst" for title in TITLES.values()), "top class changed"]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        lines += ["", f"### {model}, {mine[0]['images']} images", "", f"| beside fp32 | maps | {' | '.join(heads)} |"]
        lines.append("| --- " * (2 + len(heads)) + "|")
        for row in mine:
            if "note" in row:
                lines.append(f"| {row['setting']} | {row['note']} " + "| " * len(heads) + "|")
                continue
            cells = [", ".join(f"{value:.{PLACES[key]}f}" for value in row[key]) for key in TITLES]
            flat = f" ({row['flat']} flat)" if row["flat"] else ""
            cells.append(f"{row['changed']} of {row['images']}")
            lines.append(f"| {row['setting']} | {row['what']}{flat} | {' | '.join(cells)} |")
    kinds = dict.fromkeys(f"Device: {row['device']}; reference: {row['reference']}" for row in rows)
    return "\n".join([*kinds, *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(FOLDERS), choices=list(FOLDERS), metavar="NAME")
    parser.add_argument("--weights", type=Path, default=real.WEIGHTS, help="the folder of the .pth files")
    parser.add_argument("--images", type=Path, help="a folder of images for every model")
    parser.add_argument("--limit", type=int, default=250, help="how many images, spread over the folder (default 250)")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--compile", action="store_true", help="also measure compiled models")
    parser.add_argument("--reference", choices=("strict", "default"), default="strict", help="strict: without TF32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="rows are merged into this file, model by model")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for name in options.models:
        start = time.perf_counter()
        rows = [row for row in rows if row["model"] != name] + compare(name, options)
        print(f"  {name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    if options.markdown:
        options.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
