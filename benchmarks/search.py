"""Measures a search index (`gamlens.Index`): how fast it searches, what indexing costs, and how good its hits are.

`--measure speed`: every backend on vectors made from the photos' EfficientNet-Lite0 embeddings (D = 1,280), at 10
thousand and 100 thousand rows, and at a million rows of width 256. A made vector is (1 - s) a + s b + noise: a and b
are embeddings of two random photos, s is uniform from 0 to 0.5, and the Gaussian noise has 0.2 times each value's
standard deviation over the photos; negative values are set to 0. For width 256, a and b are first projected on the 256
principal axes of the photos' embeddings (centred), and nothing is set to 0. Queries are made the same way with other
random numbers, so none of them is a row. Catalogue and vector file are written by the package's own functions; a row
has a path, a frame and three columns of metadata.

Calls take turns in random order, in one process, at each step with different queries: `Index.search` with a prepared
query, which includes the catalogue and the metadata of the hits; the backend's `search` alone; and the bare library:
for `exact` a numpy product and faiss's IndexFlatIP of the same unit vectors in memory, for the others the same file,
opened by the library itself, with as many candidates as ours asks for ("bare", to which the others are compared) and
with just the ten hits. Ours scores its best candidates again in float64. Recall is the share of the ten best of an
exact search. A "new" filter is one that was not asked before; the index remembers the last few. "After a change":
another connection has changed one image's metadata. Where the vectors are as wide as the model's, photos are queries,
too: `Index.search` with a file, which includes decoding, one forward and the look for its own contents, beside
`Lens.embed` of the file and the bare library.

`--measure cost`: `Index.add` of 256 photos, with and without activations, beside a plain no-grad forward of the same
decoded images in batches of the same size, as they are and in the memory format channels_last, which `Index.add` uses
on a CPU, and beside decoding and such a forward one after the other. They take turns. Images that the model sees and
FLOPs are counted; the probe of `Index.create` is not part of either.

`--measure quality`: the photos are indexed, and each ILSVRC photo is searched for among the other ILSVRC photos, of
which 3 of 999 are of its class: chance is 0.3 % and the largest precision at 10 is 30 %. Intervals are bootstrap
intervals over classes. Region queries are those for the largest ground-truth box of the class: by the positions of the
last block that lie in it (`Index.query(photo, box=...)`), and by cutting the box out.

Photos are those of ../shared/data (or where GAMLENS_DATA points), X-rays left out. Embeddings and made indexes are kept
in the folder --work (4 GB for all cases) and used again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import real
import search_speed
import torch
from cost import hardware, version
from growth import operations
from PIL import Image
from search_vectors import embedded, photos
from torch import Tensor

from gamlens import GamlensError, Index, Lens
from gamlens.data.ilsvrc import ilsvrc
from gamlens.data.sample import Box, Sample
from gamlens.index.index import BATCH_ON_CPU
from gamlens.inputs.batch import join
from gamlens.metrics import Difference, Interval, bootstrap, paired

CASES = ("10000x1280", "100000x1280", "1000000x256")
MODELS = ("efficientnet_lite0", "resnet50")
TOP = 10
FORWARD, TOGETHER = "forward of decoded photos", "decode, then forward"
SMALL_BOX = 0.25  # of the image
EXAMPLE = """examples:
  python benchmarks/search.py --measure cost quality --work /tmp/search
  python benchmarks/search.py --measure speed --work /tmp/search --markdown speed.md   # half an hour on two cores
  python benchmarks/search.py --work /tmp/smoke --limit 60                             # seconds: does it run?"""
Table = list[tuple[str, ...]]


def speed(args: argparse.Namespace) -> list[Table]:
    lens = real.lens(MODELS[0])
    files, vectors = embedded(lens, photos(args.limit), args.work / f"photos-{MODELS[0]}.gamlens")
    asked = {tuple(map(int, text.split("x"))): None for text in args.cases}
    if args.limit:
        asked = {(min(rows, 60 * args.limit), width): None for rows, width in asked}
    queries = min(args.queries, args.limit or args.queries)
    cases: list[search_speed.SpeedCase] = []
    for rows, width in asked:
        made = search_speed.measured(MODELS[0], files, vectors, rows, width, args.backends, queries, args.work)
        for case in made:
            cases.append(case)
            print(f"{case.backend}, {rows:,} x {width:,}, is done", flush=True)
            if args.markdown:
                write(args.markdown, ["## speed", *map(markdown, search_speed.tables(cases))])
    return search_speed.tables(cases)


def cost(args: argparse.Namespace) -> list[Table]:
    found: Table = [
        ("model", "call", "images run per image", "FLOPs", "ms/image", "x forward", "x decode, then forward",
         "bytes on disk per image"),
    ]  # fmt: skip
    for name in args.models:
        found += cost_rows(name, real.lens(name), [str(file) for file in photos(args.limit or 256)], args)
    return [found]


def cost_rows(name: str, lens: Lens, files: Sequence[str], args: argparse.Namespace) -> Table:
    """One row per call; ratios are medians of the ratios of each round, with the smallest and the largest."""
    parts = [files[at : at + args.batch] for at in range(0, len(files), args.batch)]
    last = [batch_of(lens, part) for part in parts]
    decoded = [batch.contiguous() for batch in last]
    place = args.work / f"cost-{name}.gamlens"
    ready: dict[str, Callable[[], Callable[[], Any]]] = {  # makes what is timed
        FORWARD: lambda: partial(forward, lens, last),
        TOGETHER: lambda: lambda: forward(lens, (batch_of(lens, part) for part in parts)),
        "forward, not channels last": lambda: partial(forward, lens, decoded),
        "Index.add": lambda: partial(new_index(place, lens, False).add, files, batch_size=args.batch),
        "Index.add, activations": lambda: partial(new_index(place, lens, True).add, files, batch_size=args.batch),
    }
    work, sizes = {}, {}
    for title, make in ready.items():  # this warms up, too
        work[title] = images_run(lens, make()) / len(files), operations(make())
        size = sum(file.stat().st_size for file in place.iterdir()) if place.exists() else 0
        sizes[title] = f"{size / len(files):,.0f}" if title.startswith("Index") else "-"
    times: dict[str, list[float]] = {title: [] for title in ready}
    order = random.Random(0)
    for _ in range(args.repeats):
        for title in order.sample(list(ready), len(ready)):
            call = ready[title]()
            start = time.perf_counter()
            call()
            times[title].append(time.perf_counter() - start)
    shutil.rmtree(place)
    rows = []
    for title, own in times.items():
        counted = f"{work[title][0]:g}", f"{work[title][1] / work[FORWARD][1]:.4f}"
        ratios = ratio(own, times[FORWARD]), ratio(own, times[TOGETHER])
        rows.append((name, title, *counted, f"{1000 * statistics.median(own) / len(files):.1f}", *ratios, sizes[title]))
    return rows


def batch_of(lens: Lens, files: Sequence[str]) -> Tensor:
    found = join([lens.prepare(file) for file in files]).batches[0]
    return found.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def forward(lens: Lens, batches: Iterable[Tensor]) -> None:
    for batch in batches:
        lens.model(batch)


def new_index(place: Path, lens: Lens, activations: bool) -> Index:
    shutil.rmtree(place, ignore_errors=True)
    return Index.create(place, lens, activations=activations)


def images_run(lens: Lens, call: Callable[[], Any]) -> int:
    """How many images the model sees in a call."""
    seen: list[int] = []
    handle = lens.model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    call()
    handle.remove()
    return sum(seen)


def ratio(own: Sequence[float], other: Sequence[float]) -> str:
    found = [a / b for a, b in zip(own, other, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"


def quality(args: argparse.Namespace) -> list[Table]:
    samples = [sample for sample in ilsvrc(real.DATA).samples if sample.labels]
    classes = {sample.labels[0]: None for sample in samples}
    if args.limit:  # whole classes
        kept = set(list(classes)[: max(2, args.limit // 4)])
        samples = [sample for sample in samples if sample.labels[0] in kept]
    whole: Table = [("model", "photos searched", "queries", "precision at 1, %", "at 10, %", "of the largest possible")]
    regions: Table = [("model", "photos", "query", "n", "precision at 1, %", "minus whole photo", "better / worse")]
    for name in args.models:
        lens = real.lens(name)
        place = args.work / f"photos-{name}.gamlens"
        embedded(lens, [*photos(args.limit), *(Path(sample.image) for sample in samples)], place)
        with Index.open(place, lens) as index:
            column = f"class_of_{len(samples)}"  # another limit in the same folder is another column
            index.annotate({sample.image: {column: sample.labels[0]} for sample in samples})
            answers = [right_hits(index, sample, column) for sample in samples]
        whole.append(whole_row(name, samples, [found["whole photo"] for found in answers]))
        regions += region_rows(name, samples, answers)
    return [whole, regions]


def right_hits(index: Index, sample: Sample, column: str) -> dict[str, list[bool]]:
    """For each way to ask for a photo, whether each of the best hits is of its class; itself is not among them."""
    own, box = sample.labels[0], largest_box(sample)
    asked = {"whole photo": partial(index.query, sample.image)}
    if box is not None:
        edges = (box.x0, box.y0, box.x1, box.y1)
        asked["box, by positions"] = partial(index.query, sample.image, box=edges)
        asked["box, cut out"] = lambda: index.query(cut_out(sample.image, edges))
    found = {}
    for title, make in asked.items():
        try:
            query = make()
        except GamlensError:  # the box lies outside of what the model sees
            continue
        hits = index.search(query, top=TOP + 1, where=f"{column} is not null")
        others = [hit for hit in hits if hit.path != str(Path(sample.image).absolute())][:TOP]
        found[title] = [hit.metadata[column] == own for hit in others]
    return found


def cut_out(photo: str, edges: tuple[float, ...]) -> Image.Image:
    left, top, right, bottom = map(round, edges)
    return Image.open(photo).convert("RGB").crop((left, top, max(right, left + 1), max(bottom, top + 1)))


def largest_box(sample: Sample) -> Box | None:
    boxes = [box for box in sample.boxes if box.label == sample.labels[0]]
    return max(boxes, key=lambda box: box.area, default=None)


def share_of_photo(sample: Sample) -> float:
    box = largest_box(sample)
    return 1.0 if box is None or sample.size is None else box.area / (sample.size[0] * sample.size[1])


def whole_row(name: str, samples: Sequence[Sample], answers: Sequence[list[bool]]) -> tuple[str, ...]:
    labels = [sample.labels[0] for sample in samples]
    others = torch.tensor([labels.count(label) - 1 for label in labels], dtype=torch.float64)
    first, ten = (torch.tensor([sum(own[:top]) / top for own in answers]) for top in (1, TOP))
    most = float((others.clamp(max=TOP) / TOP).mean())
    chance = 100 * float(others.mean()) / (len(samples) - 1)
    shown = interval(bootstrap(ten, clusters=labels))
    return (
        name, f"{len(samples) - 1:,}", f"{len(samples):,}",
        f"{interval(bootstrap(first, clusters=labels))}; chance {chance:.1f}", f"{shown}; at most {100 * most:.1f}",
        f"{100 * float(ten.mean()) / most:.0f} %",
    )  # fmt: skip


def region_rows(name: str, samples: Sequence[Sample], answers: Sequence[dict[str, list[bool]]]) -> Table:
    """Precision at 1 of both sorts of region, on photos for which both can be asked, and on those with small boxes."""
    rows: Table = []
    both = [number for number, found in enumerate(answers) if len(found) == 3]
    small = [number for number in both if share_of_photo(samples[number]) < SMALL_BOX]
    for chosen, what in ((both, "all"), (small, f"box below {100 * SMALL_BOX:.0f} % of the photo")):
        labels = [samples[number].labels[0] for number in chosen]
        if not chosen:
            continue
        values = {
            title: torch.tensor([float(answers[number][title][0]) for number in chosen]) for title in answers[chosen[0]]
        }
        for title, own in values.items():
            gap = paired(own, values["whole photo"], clusters=labels)
            each = own - values["whole photo"]
            beside = (interval(gap), f"{int((each > 0).sum())} / {int((each < 0).sum())}")
            beside = ("-", "-") if title == "whole photo" else beside
            rows.append((name, what, title, f"{len(chosen)}", interval(bootstrap(own, clusters=labels)), *beside))
    return rows


def interval(found: Interval | Difference) -> str:
    sign = "+" if isinstance(found, Difference) else ""
    return f"{100 * found.mean:{sign}.1f} [{100 * found.low:{sign}.1f}, {100 * found.high:{sign}.1f}]"


def markdown(table: Table) -> str:
    rule = "|".join([" --- ", *[" ---: "] * (len(table[0]) - 1)])
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


MEASURES: dict[str, Callable[[argparse.Namespace], list[Table]]] = {"speed": speed, "cost": cost, "quality": quality}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog=EXAMPLE, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--measure", nargs="+", default=list(MEASURES), choices=MEASURES, help="speed cost quality")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps embeddings and indexes")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="ROWSxWIDTH", help=f"(default {' '.join(CASES)})")
    parser.add_argument("--backends", nargs="+", default=list(search_speed.BARE), choices=search_speed.BARE)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=real.NAMES, help="of cost and quality")
    parser.add_argument("--queries", type=int, default=200, help="timed queries of each call (default 200)")
    parser.add_argument("--batch", type=int, default=BATCH_ON_CPU, help="images per forward in cost (default 8)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of cost (default 5)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N photos, 60 N rows and N queries")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables for the documentation")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    head = f"{hardware('cpu')}, {torch.get_num_threads()} threads, torch {torch.__version__}, {libraries()}"
    print(head)
    parts = [head]
    for name in args.measure:
        found = [markdown(table) for table in MEASURES[name](args)]
        print(f"\n## {name}", *found, sep="\n\n", flush=True)
        parts += [f"## {name}", *found]
    if args.markdown:
        write(args.markdown, parts)


def write(file: Path, parts: Sequence[str]) -> None:
    file.write_text("\n\n".join(parts) + "\n")


def libraries() -> str:
    found = {name: version(name) for name in ("numpy", "usearch", "faiss-cpu")}
    return ", ".join(f"{name} {number}" for name, number in found.items() if number)


if __name__ == "__main__":
    main()
