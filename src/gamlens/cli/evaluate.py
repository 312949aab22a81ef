"""The commands that measure: evaluate, subset, ablate."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gamlens import Lens
from gamlens import data as datasets
from gamlens.cli import options
from gamlens.cli.common import ItemProgress, command, exit_with_failures, lens_maker, make_lens, note, say, say_table
from gamlens.cli.show import show_cells
from gamlens.data import DATASETS, Dataset, Manifest
from gamlens.engine import ENGINES
from gamlens.errors import GamlensError, Registry
from gamlens.evaluation import ablation, measure, results, tables
from gamlens.evaluation import protocol as protocols
from gamlens.evaluation.protocol import Protocol, Unit, parse_list
from gamlens.evaluation.runs import Engine, evaluate_run
from gamlens.methods import PAPER_METHODS, names

MANIFESTS: Registry[Callable[[Dataset, int, bool], Manifest]] = Registry(
    "subset",
    {
        "pairs": lambda dataset, seed, masks: datasets.pairs(dataset, seed=seed),
        "neighbour-pairs": lambda dataset, seed, masks: datasets.neighbour_pairs(dataset),
        "small-25": lambda dataset, seed, masks: datasets.small(dataset, 25, masks=masks),
        "small-10": lambda dataset, seed, masks: datasets.small(dataset, 10, masks=masks),
        "hold-out": lambda dataset, seed, masks: datasets.hold_out(dataset),
    },
)
EVALUATED_METHODS, ABLATED_METHODS = ",".join(PAPER_METHODS), ",".join(names("block"))


def _choice(name: str, what: str) -> str:
    return f"{what}: {', '.join(protocols.CHOICES[name])}."


@command("evaluate localization --data ilsvrc --root ILSVRC --model resnet50 --n 1,2 --out runs/loc", resumes=True)
def evaluate(
    kind: Annotated[str, Argument(help=", ".join(protocols.KINDS), show_default=False)],
    root: options.DatasetRoot,
    out: Annotated[str, Option("--out", "-o", help="Folder of the run, or s3://..., gs://...", show_default=False)],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    task: Annotated[str, Option(help=_choice("task", "What is explained"))] = "classification",
    methods: options.EvaluatedMethodNames = EVALUATED_METHODS,
    n: Annotated[str, Option("--n", "-n", help="Numbers of blocks, comma separated.")] = "1,2",
    subset: Annotated[str, Option(help=_choice("subset", "All items, or small objects (percentile)"))] = "all",
    input: Annotated[str, Option(help=_choice("input", "How an image becomes the input"))] = "squash",
    fill: Annotated[str, Option(help=_choice("fill", "What hidden pixels become"))] = "black",
    masked: Annotated[str, Option(help=_choice("masked", "Pairs: which images are masked"))] = "one",
    box_: Annotated[str, Option("--box", help=_choice("box", "The predicted box"))] = "all",
    pairs_: Annotated[str, Option("--pairs", help=_choice("pairs", "How pairs are chosen"))] = "drawn",
    seed: Annotated[int, Option(help="Of the drawn pairs.")] = 0,
    hold_out_: Annotated[
        str, Option("--hold-out", help="Every so many items choose thresholds (0: none), or a manifest.")
    ] = "10",
    items_: Annotated[Path | None, Option("--items", help="A manifest of items or pairs to measure.")] = None,
    curves: Annotated[int, Option(help="objective: insertion and deletion in so many steps (0: none).")] = 0,
    views: Annotated[str, Option(help="Further views, such as flip,1.43,2.0.")] = "",
    limit: options.ItemLimit = None,
    batch: Annotated[int, Option(help="Images per forward.")] = 16,
    chunk: Annotated[int, Option(help="Items per file: what a broken-off run loses at most.")] = 64,
    engine: Annotated[str, Option(help="Where it runs: " + ", ".join(ENGINES) + ".")] = "local",
    address: Annotated[str | None, Option(help="Of a Ray cluster; without it one starts here.")] = None,
    workers: Annotated[int | None, Option(help="Decoding threads; with ray, models at work.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start over in a folder that holds a run.")] = False,
    device: options.DeviceName = None,
) -> None:
    """Measure saliency maps on data with ground truth: ADP and PIC, box IoU, or segmentation IoU.

    Stopped at any moment, the same command goes on where it was.
    """
    every, named = protocols.parse_hold_out(hold_out_)
    protocol = Protocol(
        kind, task, parse_list(methods), protocols.numbers(n), subset, input, fill, masked, box_, pairs_, seed,
        hold_out=every, views=protocols.parse_views(views), curves=curves,
    )  # fmt: skip
    where, chosen = Engine(engine, workers, address), Manifest.load(items_) if items_ else None
    make = lens_maker(model, weights, blocks, device, embedding=embedding)
    lens, whole = make(), datasets.load(data, root.resolve(), split=split)
    dataset, items, about = _items(lens, whole, protocol, {"items": chosen, "hold_out": named})
    with ItemProgress(f"{kind}, {task}", len(items[:limit])) as progress:
        done = evaluate_run(
            make if engine == "ray" else lambda: lens, dataset, items[:limit], protocol, out, batch=batch,
            chunk=chunk, engine=where, fresh=fresh, about={**about, "split": split}, status=progress,
        )  # fmt: skip
    _tell_end(out, done, random=lens.weights == "random")


def _items(
    lens: Lens, whole: Dataset, protocol: Protocol, given: dict[str, Manifest | None]
) -> tuple[Dataset, list[Unit], dict[str, Any]]:
    """The data in the model's classes, what of it is measured, and which manifests said so."""
    dataset = datasets.align(whole, lens.labels) if protocol.task == "classification" else whole
    about = {"manifests": {name: manifest.fingerprint() for name, manifest in given.items() if manifest}}
    own = {name: manifest and datasets.align_manifest(manifest, whole, dataset) for name, manifest in given.items()}
    return dataset, protocols.units(dataset, protocol, chosen=own["items"], hold_out=own["hold_out"]), about


def _tell_end(out: str, done: dict[str, Any], *, random: bool) -> None:
    """The run's table and the items that failed; these make the exit code 1."""
    if not done["measured"]:
        note(f"this run was finished before; nothing was measured again ({out})")
    say(f"{done['items']} items in {out}")
    run = results.read(out, only=tables.NEEDED)
    if not random and run.groups:
        show_cells(tables.cells(run))
    if done["errors"]:
        first = [f"  {row['item']}: {row['error']}" for row in run.errors[:5]]
        exit_with_failures("\n".join((f"{done['errors']} items have errors; their rows say why:", *first)))


@command("subset pairs --root ILSVRC --out pairs.json --seed 3")
def subset(
    kind: Annotated[str, Argument(help=", ".join(MANIFESTS), show_default=False)],
    root: options.DatasetRoot,
    out: Annotated[Path, Option("--out", "-o", help="The manifest, a JSON file.", show_default=False)],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    seed: Annotated[int, Option(help="Of the draw.")] = 0,
    masks: Annotated[
        bool | None, Option("--masks/--boxes", help="Small by mask or by box; by box where there are any.")
    ] = None,
) -> None:
    """Write down a subset of a data set: pairs, small objects, a hold-out."""
    make = MANIFESTS[kind]
    dataset = datasets.load(data, root, split=split)
    by_mask = not any(sample.boxes for sample in dataset) if masks is None else masks
    made = make(dataset, seed, by_mask)
    made.save(out)
    say(f"{len(made.items)} items of {len(dataset)} images in {out}")


@command("ablate --data ilsvrc --root ILSVRC --model resnet50 --out ablation")
def ablate(
    root: options.DatasetRoot,
    data: Annotated[str, Option(help=f"Data set with boxes: {', '.join(DATASETS)}.")] = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    methods: options.BlockMethodNames = ABLATED_METHODS,
    n: Annotated[str, Option("--n", "-n", help="Numbers of blocks, comma separated; all by default.")] = "",
    fusions: Annotated[str, Option(help="How blocks are joined, comma separated.")] = ",".join(protocols.JOINED),
    block_weights: Annotated[str, Option(help="For the fusion 'weights': one per block, in network order.")] = "",
    fill: Annotated[str, Option(help="What hidden pixels become: black, mean.")] = "black",
    confidence: options.Confidence = "logit",
    limit: options.ItemLimit = None,
    batch: options.BatchSize = 16,
    out: options.TablesFolder = Path("gamlens-ablation"),
    device: options.DeviceName = None,
) -> None:
    """How many blocks, and joined how? IoU, ADP and PIC of every method against n, by mean, max, product, weights."""
    plan = ablation.Plan(
        parse_list(methods), protocols.numbers(n), parse_list(fusions), _floats(block_weights), fill, confidence
    )
    lens = make_lens(model, weights, blocks, device)
    dataset = datasets.align(datasets.load(data, root, split=split), lens.labels)
    protocol = plan.protocol(lens)
    items = protocols.units(dataset, protocol)[:limit]
    rows: list[dict[str, Any]] = []
    with ItemProgress("measuring", len(items)) as progress:
        progress(0, 0)
        for part in measure.evaluate(lens, items, protocol, batch=batch):
            rows += part
            progress(len({row["item"] for row in rows}), 0)
    about = results.describe(lens, dataset, protocol, len(items))
    found = ablation.table(rows, about, plan)
    written = ablation.write(found, plan, out, about)
    for name in ablation.MEASURES:
        say_table(*ablation.table_of(found, plan, name))
    say(f"{len(written)} files; look at {out / 'ablation.png'}")
    if failed := sum(bool(row["error"]) for row in rows):
        exit_with_failures(f"{failed} items could not be read and are left out.")


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Weights are numbers, such as 1,2,3,4; found {text!r}.") from error
