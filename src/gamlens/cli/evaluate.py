"""The commands `evaluate`, `subset` and `ablate`."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from gamlens import Lens
from gamlens import data as datasets
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, lens_maker, make_lens
from gamlens.cli.evaluate_pairs import (
    PAIR_HELP,
    CasesFile,
    ObjectCounts,
    TestNames,
    WindowSide,
    WindowStride,
    check_options,
    chosen_plan,
    evaluate_pairs,
    given_options,
)
from gamlens.cli.show import cell_records, say_numbers, show_cells
from gamlens.cli.terminal import note, say
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.data import Dataset, Manifest
from gamlens.errors import Registry
from gamlens.evaluation import ablation, measure, results, tables
from gamlens.evaluation import protocol as protocols
from gamlens.evaluation.explainers import split_names
from gamlens.evaluation.pair_tests.pair_plan import PAIR_KIND, PAIR_TESTS, PairPlan
from gamlens.evaluation.protocol import Protocol, Unit, parse_list, parse_numbers
from gamlens.evaluation.runs import Engine, evaluate_run
from gamlens.methods import PAPER_METHODS, names
from gamlens.metrics import BLUR_KERNEL, BLUR_SIGMA, METRICS
from gamlens.models.devices import AUTO
from gamlens.scores import PAIR_SCORES


@dataclass(frozen=True)
class SubsetOptions:
    """What the kinds of subsets are made with: the seed and the number of drawn pairs; masks or boxes for sizes."""

    seed: int
    pairs_per_class: int
    masks: bool


MANIFESTS: Registry[Callable[[Dataset, SubsetOptions], Manifest]] = Registry(
    "subset",
    {
        "pairs": lambda dataset, how: datasets.pairs(dataset, per_class=how.pairs_per_class, seed=how.seed),
        "neighbour-pairs": lambda dataset, how: datasets.neighbour_pairs(dataset),
        "small-25": lambda dataset, how: datasets.small(dataset, 25, masks=how.masks),
        "small-10": lambda dataset, how: datasets.small(dataset, 10, masks=how.masks),
        "hold-out": lambda dataset, how: datasets.hold_out(dataset),
    },
)
EVALUATED_METHODS, ABLATED_METHODS = ",".join(PAPER_METHODS), ",".join(names("block"))
ALL_TESTS, ALL_COUNTS = ",".join(PAIR_TESTS), ",".join(map(str, PairPlan.objects))  # of the tests of pairs
METRIC_HELP = ", ".join(
    f"{kind} ({', '.join(metric.title for metric in METRICS.values() if kind in metric.kinds)})"
    for kind in protocols.KINDS
)


def _choice(name: str, what: str) -> str:
    return f"{what}: {', '.join(protocols.choices()[name])}."


@command("evaluate localization --data ilsvrc --root ILSVRC --model resnet50 --n 1,2 --out runs/loc", resumes=True)
def evaluate(
    context: Context,
    kind: Annotated[
        str,
        Argument(
            help=f"What to measure: {METRIC_HELP}. 'objective' measures how the model's confidence changes when it "
            "sees the image only where the map is bright; the others compare maps with true boxes or masks. "
            f"{PAIR_HELP}.",
            show_default=False,
        ),
    ],
    root: options.DatasetRoot,
    out: Annotated[
        str, Option("--out", "-o", help="The folder of the run, or a URI: s3://..., gs://...", show_default=False)
    ],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    task: Annotated[str, Option(help=_choice("task", "What is explained"))] = "classification",
    methods: options.EvaluatedMethodNames = EVALUATED_METHODS,
    n: Annotated[
        str, Option("--n", "-n", help="Numbers of last blocks to use, comma separated; each is measured.")
    ] = "1,2",
    subset: options.SubsetName = "all",
    input: options.InputChoice = "squash",
    fill: Annotated[str, Option(help=_choice("fill", "With objective: the colour of hidden pixels"))] = "black",
    masked: Annotated[
        str, Option(help=_choice("masked", "With objective, for pairs: hide pixels in one image at a time, or in both"))
    ] = "one",
    box_: options.BoxChoice = "all",
    pairs_: options.PairChoice = "drawn",
    seed: options.PairSeed = 0,
    pairs_per_class: options.PairsPerClass = datasets.PAIRS_PER_CLASS,
    hold_out_: Annotated[
        str,
        Option(
            "--hold-out",
            help="With localization and segmentation, the threshold from which a pixel counts as bright is chosen on "
            "held-out items, which the results leave out. 10 holds out every tenth item, 0 none; or give a manifest "
            "file of them (gamlens subset hold-out).",
        ),
    ] = "10",
    hold_out_by: Annotated[
        str,
        Option(
            help=_choice(
                "hold_out_by",
                "For tasks that compare pairs: hold out whole pairs, or single maps, as gamlens 0.1.0 did",
            ),
        ),
    ] = "pairs",
    items_: Annotated[
        Path | None,
        Option(
            "--items",
            help="Measure only the items or pairs of this manifest file, which `gamlens subset` wrote. By default all.",
        ),
    ] = None,
    curves: options.CurveSteps = 0,
    road: options.RoadShares = "",
    infidelity: options.InfidelityCount = 0,
    sensitivity: options.SensitivityCount = 0,
    coherency: options.CoherencyFlag = False,
    compile_: options.CompileFlag = False,
    cost: Annotated[
        bool,
        Option(
            "--cost/--no-cost",
            help="Also measure the time and the peak memory that making each map takes, per image.",
        ),
    ] = False,
    curve_background: Annotated[
        str,
        Option(
            help=_choice(
                "curve_background",
                "With --curves: what hidden pixels show, the colour of --fill or the image behind a Gaussian blur, as "
                "in --curves 7 --curve-background blur",
            )
        ),
    ] = "fill",
    blur_kernel: Annotated[
        int, Option(help="With --curve-background blur: the width of the blur's window in pixels, an odd number.")
    ] = BLUR_KERNEL,
    blur_sigma: Annotated[
        float, Option(help="With --curve-background blur: the standard deviation of the blur in pixels.")
    ] = BLUR_SIGMA,
    temperature: Annotated[
        float,
        Option(
            help="With objective: the class scores are divided by this before they become the probability, which "
            "`gamlens table --confidence probability` and the curves use."
        ),
    ] = 1.0,
    views: options.ViewNames = "",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    equal_mass: Annotated[
        bool,
        Option(
            help="With objective: also measure ADP with every map replaced by its ranks, so that no map gains by "
            "showing more of the image. It takes one more forward pass per map."
        ),
    ] = True,
    limit: options.ItemLimit = None,
    batch: Annotated[int, Option(help="Number of images per forward pass.")] = 16,
    chunk: options.ChunkSize = 64,
    engine: options.EngineName = "local",
    address: options.ClusterAddress = None,
    workers: options.WorkerCount = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Delete the results that --out already holds, and start over.")
    ] = False,
    device: options.DeviceName = AUTO,
    tests: TestNames = ALL_TESTS,
    objects: ObjectCounts = ALL_COUNTS,
    window: WindowSide = PairPlan.window,
    stride: WindowStride = PairPlan.stride,
    cases: CasesFile = None,
) -> dict[str, Any]:
    """Measure how good saliency maps are, on a data set.

    A run may be stopped at any time: the same command continues it. `gamlens table` and `gamlens report` show its
    results.

    `gamlens evaluate pairs` tests explanations of pairs and writes a page with its results into --out. Its defaults are
    --task cosine --n 2 --fill mean --curves 10 --chunk 4 --limit 100, and these --methods: gam, grad_cam, grad_cam_pp,
    layer_cam, vdsn, vdsn_max, gam+refine, occlusion, interactions, interactions_average, where
    occlusion slides a window over one image, and interactions link places of both. The time that it shows for a method
    is that of the forward that all methods share, of the backward where the method reads gradients, and of its own
    maps. Options that do not apply are refused.
    """
    given = given_options(context)
    check_options(kind, given)
    if kind == PAIR_KIND:
        asked: dict[str, Any] = {
            "task": task, "methods": split_names(methods), "n": protocols.numbers(n), "tests": parse_list(tests),
            "objects": protocols.numbers(objects), "limit": limit, "seed": seed, "curves": curves, "fill": fill,
            "curve_background": curve_background, "blur_kernel": blur_kernel, "blur_sigma": blur_sigma,
            "window": window, "stride": stride,
        }  # fmt: skip
        plan = chosen_plan(given, asked, hold_out_)
        lens = make_lens(model, weights, blocks, device, embedding=embedding)
        with waiting("reading the data set"):
            photos = datasets.load(data, Path(os.path.realpath(root)), split=split)
        size = chunk if "chunk" in given else None
        return evaluate_pairs(lens, photos, plan, out, given=cases, chunk=size, fresh=fresh, workers=workers)
    every, held_out = protocols.parse_hold_out(hold_out_)
    named_methods = split_names(methods)
    how = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=named_methods)
    protocol = Protocol(
        kind, task, named_methods, protocols.numbers(n), subset, input, fill, masked, box_, pairs_, seed,
        hold_out=every, views=protocols.parse_views(views), lattice=lattice, curves=curves, hold_out_by=hold_out_by,
        temperature=temperature, pairs_per_class=pairs_per_class, curve_background=curve_background,
        blur_kernel=blur_kernel, blur_sigma=blur_sigma,
        equal_mass=equal_mass and "objective" in protocols.kinds_of(kind) and is_positive(task),
        road=parse_numbers(road), infidelity=infidelity, sensitivity=sensitivity, coherency=coherency, cost=cost,
        compiled=compile_,
        refine=how.blocks if how else 0, keep=how.keep if how else Protocol.keep,
    )  # fmt: skip
    where, chosen = Engine(engine, workers, address), Manifest.load(items_) if items_ else None
    make = lens_maker(model, weights, blocks, device, embedding=embedding)
    lens = make()
    with waiting("reading the data set"):
        whole = datasets.load(data, Path(os.path.realpath(root)), split=split)
        dataset, items, about = chosen_items(lens, whole, protocol, {"items": chosen, "hold_out": held_out})
    with ItemProgress(f"{kind}, {task}", len(items[:limit])) as progress:
        done = evaluate_run(
            make if engine == "ray" else lambda: lens, dataset, items[:limit], protocol, out, batch=batch,
            chunk=chunk, engine=where, fresh=fresh, about={**about, "split": split}, status=progress,
        )  # fmt: skip
    return _tell_end(out, done, random=lens.weights == "random")


def is_positive(task: str) -> bool:
    """Whether the explained score is positive for images that fit, so that a share of it has a meaning."""
    return task not in PAIR_SCORES or PAIR_SCORES[task].positive


def chosen_items(
    lens: Lens, whole: Dataset, protocol: Protocol, given: dict[str, Manifest | None]
) -> tuple[Dataset, list[Unit], dict[str, Any]]:
    """Return the data set with the model's class numbers, the items to measure, and fingerprints of the manifests."""
    dataset = datasets.align(whole, lens.labels) if protocol.task == "classification" else whole
    about = {"manifests": {name: manifest.fingerprint() for name, manifest in given.items() if manifest}}
    own = {name: manifest and datasets.align_manifest(manifest, whole, dataset) for name, manifest in given.items()}
    return dataset, protocols.units(dataset, protocol, chosen=own["items"], hold_out=own["hold_out"]), about


def _tell_end(out: str, done: dict[str, Any], *, random: bool) -> dict[str, Any]:
    """Print the run's table and the first items that failed. If any failed, the exit code is 1."""
    found: list[tables.Cell] = []
    if not done["measured"]:
        note(f"this run was already finished; nothing was measured again ({out})")
    with waiting("reading the results"):
        run = results.read(out, only=tables.needed())
        if not random and run.groups:
            found = tables.cells(run)
    show_cells(found, brief=True)
    more = "" if random else f"; `gamlens table {out}` shows them with intervals, `gamlens report {out}` makes a page"
    say(f"{done['items']} items in {out}{more}")
    record = {"run": out, **done, "numbers": cell_records(found)}
    if done["errors"]:
        first = [f"  {row['item']}: {row['error']}" for row in run.errors[:5]]
        exit_with_failures("\n".join((f"{done['errors']} items could not be measured:", *first)), record)
    return record


@command("subset pairs --root ILSVRC --out pairs.json --seed 3 --pairs-per-class 5")
def subset(
    kind: Annotated[
        str,
        Argument(
            help=f"The kind of subset: {', '.join(MANIFESTS)}. 'pairs' are drawn at random, 'neighbour-pairs' follow "
            "each other by file name, 'small-25' has the 25 % of items with the smallest objects, 'hold-out' every "
            "tenth image.",
            show_default=False,
        ),
    ],
    root: options.DatasetRoot,
    out: Annotated[Path, Option("--out", "-o", help="The manifest to write, a JSON file.", show_default=False)],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    seed: options.PairSeed = 0,
    pairs_per_class: options.PairsPerClass = datasets.PAIRS_PER_CLASS,
    masks: Annotated[
        bool | None,
        Option(
            "--masks/--boxes",
            help="For small-25 and small-10: measure objects by their masks or by their boxes. By default by boxes, "
            "where there are any.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Choose pairs, small objects or a hold-out of a data set, and write them to a manifest file for `evaluate`.

    `gamlens evaluate` takes the file with --items, or a hold-out with --hold-out.
    """
    make = MANIFESTS[kind]
    with waiting("reading the data set"):
        dataset = datasets.load(data, root, split=split)
        by_mask = not any(sample.boxes for sample in dataset) if masks is None else masks
        made = make(dataset, SubsetOptions(seed, pairs_per_class, by_mask))
        made.save(out)
    say(f"{len(made.items)} items of {len(dataset)} images in {out}")
    return {"file": out, "items": len(made.items), "images": len(dataset)}


@command("ablate --data ilsvrc --root ILSVRC --model resnet50 --task cosine --subset 25 --out ablation")
def ablate(
    root: options.DatasetRoot,
    data: Annotated[
        str, Option(help=f"The kind of data set; it must have boxes: {', '.join(datasets.names_with('boxes'))}.")
    ] = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    task: Annotated[str, Option(help=_choice("task", "What is explained"))] = "classification",
    subset: options.SubsetName = "all",
    methods: options.TestedMethodNames = ABLATED_METHODS,
    n: Annotated[str, Option("--n", "-n", help="Numbers of last blocks to use, comma separated. By default all.")] = "",
    fusions: Annotated[
        str, Option(help="How the maps of blocks are fused into one, comma separated. 'weights' is a weighted mean.")
    ] = ",".join(protocols.JOINED),
    block_weights: Annotated[
        str,
        Option(help="With 'weights' among --fusions: the weight of each block in network order. By default 1,2,3,..."),
    ] = "",
    fill: Annotated[str, Option(help="The colour of hidden pixels, for ADP and PIC: black, mean.")] = "black",
    confidence: options.Confidence = "logit",
    lattice: options.LatticeReading = "read",
    pairs_: options.PairChoice = "drawn",
    seed: options.PairSeed = 0,
    pairs_per_class: options.PairsPerClass = datasets.PAIRS_PER_CLASS,
    limit: options.ItemLimit = None,
    batch: options.BatchSize = 16,
    out: options.TablesFolder = Path("gamlens-ablation"),
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Measure how the number of blocks and their fusion change every metric of each method, on a data set.

    By default the maps of classes are measured on all items. With --task cosine, for example, the maps of pairs are,
    and with --subset 25 only the quarter of items with the smallest objects.
    """
    plan = ablation.Plan(
        parse_list(methods), protocols.numbers(n), parse_list(fusions), parse_numbers(block_weights), fill, confidence,
        task, subset, pairs_, seed, pairs_per_class, lattice,
    )  # fmt: skip
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    protocol = plan.protocol(lens)
    with waiting("reading the data set"):
        whole = datasets.load(data, root, split=split)
        dataset, items, _ = chosen_items(lens, whole, protocol, {"items": None, "hold_out": None})
    items = items[:limit]
    rows: list[dict[str, Any]] = []
    with ItemProgress("measuring", len(items)) as progress:
        progress(0, 0)
        for part in measure.evaluate(lens, items, protocol, batch=batch):
            rows += part
            progress(len({row["item"] for row in rows}), 0)
    about = results.describe(lens, dataset, protocol, len(items))
    with waiting("making the tables"):
        found = ablation.table(rows, about, plan)
        written = ablation.write(found, plan, out, about, ablation.fusion_gains(rows, about, plan))
    for name in ablation.measures(found):
        header, lines = ablation.table_of(found, plan, name)
        say_numbers(header[0], ("", *header[1:]), lines)
    say(f"{len(written)} files were written; open {out / 'ablation.png'}")
    record = json.loads((out / "ablation.json").read_text(encoding="utf-8"))
    if failed := sum(bool(row["error"]) for row in rows):
        exit_with_failures(f"{failed} items could not be read and are left out.", record)
    return dict(record)
