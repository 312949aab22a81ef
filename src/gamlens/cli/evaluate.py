"""The commands that measure: evaluate, table, subset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box

from gamlens import METHODS, Lens
from gamlens import data as datasets
from gamlens.cli import options
from gamlens.cli.common import (
    absolute_model,
    absolute_weights,
    errors_as_lines,
    exit_with_failures,
    make_lens,
    note,
    out_console,
    say,
    say_table,
)
from gamlens.cli.progress import ItemProgress
from gamlens.data import Dataset, Manifest
from gamlens.engine import ENGINES
from gamlens.errors import GamlensError, near
from gamlens.evaluation import protocol as protocols
from gamlens.evaluation import results, tables
from gamlens.evaluation.protocol import Protocol, Unit, parse_list
from gamlens.evaluation.runs import Engine, evaluate_run
from gamlens.evaluation.table_files import comma_separated, latex, markdown, write_files

app = typer.Typer()

MANIFESTS = ("pairs", "neighbour-pairs", "small-25", "small-10", "hold-out")


def _choice(name: str, what: str) -> str:
    return f"{what}: {', '.join(protocols.CHOICES[name])}."


@app.command(
    epilog="Example:  gamlens evaluate localization --data ilsvrc --root ILSVRC --model resnet50 --n 1,2 --out runs/loc"
)
def evaluate(
    kind: Annotated[str, typer.Argument(help=", ".join(protocols.KINDS), show_default=False)],
    root: options.DatasetRoot,
    out: Annotated[
        str, typer.Option("--out", "-o", help="Folder of the run, or s3://..., gs://...", show_default=False)
    ],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    task: Annotated[str, typer.Option(help=_choice("task", "What is explained"))] = "classification",
    methods: options.MethodNames = "gam,grad_cam_pp,grad_cam",
    n: Annotated[str, typer.Option("--n", "-n", help="Numbers of blocks, comma separated.")] = "1,2",
    subset: Annotated[str, typer.Option(help=_choice("subset", "All items, or small objects (percentile)"))] = "all",
    input: Annotated[str, typer.Option(help=_choice("input", "How an image becomes the input"))] = "squash",
    fill: Annotated[str, typer.Option(help=_choice("fill", "What hidden pixels become"))] = "black",
    masked: Annotated[str, typer.Option(help=_choice("masked", "Pairs: which images are masked"))] = "one",
    box_: Annotated[str, typer.Option("--box", help=_choice("box", "The predicted box"))] = "all",
    pairs_: Annotated[str, typer.Option("--pairs", help=_choice("pairs", "How pairs are chosen"))] = "drawn",
    seed: Annotated[int, typer.Option(help="Of the drawn pairs.")] = 0,
    hold_out_: Annotated[
        str, typer.Option("--hold-out", help="Every so many items choose thresholds (0: none), or a manifest.")
    ] = "10",
    items_: Annotated[Path | None, typer.Option("--items", help="A manifest of items or pairs to measure.")] = None,
    curves: Annotated[int, typer.Option(help="objective: insertion and deletion in so many steps (0: none).")] = 0,
    views: Annotated[str, typer.Option(help="Further views, such as flip,1.43,2.0.")] = "",
    limit: options.ItemLimit = None,
    batch: Annotated[int, typer.Option(help="Images per forward.")] = 16,
    chunk: Annotated[int, typer.Option(help="Items per file: what a broken-off run loses at most.")] = 64,
    engine: Annotated[str, typer.Option(help="Where it runs: " + ", ".join(ENGINES) + ".")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without it one starts here.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding threads; with ray, models at work.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in a folder that holds a run.")] = False,
    device: options.DeviceName = None,
) -> None:
    """Measure saliency maps on data with ground truth: ADP and PIC, box IoU, or segmentation IoU.

    Stopped at any moment, the same command goes on where it was.
    """
    with errors_as_lines(resumes=True):
        every, named = protocols.parse_hold_out(hold_out_)
        protocol = Protocol(
            kind, task, parse_list(methods), protocols.numbers(n), subset, input, fill, masked, box_, pairs_, seed,
            hold_out=every, views=protocols.parse_views(views), curves=curves,
        )  # fmt: skip
        where, chosen = Engine(engine, workers, address), Manifest.load(items_) if items_ else None
        make = partial(make_lens, absolute_model(model), absolute_weights(weights), blocks, device, embedding=embedding)
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
        _show(tables.cells(run))
    if done["errors"]:
        first = [f"  {row['item']}: {row['error']}" for row in run.errors[:5]]
        exit_with_failures("\n".join((f"{done['errors']} items have errors; their rows say why:", *first)))


@app.command(epilog="Example:  gamlens table runs/loc runs/adp --confidence probability --out tables")
def table(
    runs: options.RunFolders,
    confidence: options.Confidence = "logit",
    first: Annotated[str, typer.Option(help="The method held against the others, item by item.")] = "gam",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write table and paired .md, .csv, .tex.")] = None,
) -> None:
    """The paper's tables from runs: n=1, n=2, improvement, intervals, controls, and the paper's numbers."""
    with errors_as_lines():
        tables.check_confidence(confidence)
        read = [results.read(run, only=tables.NEEDED) for run in runs]
        if first not in METHODS:
            raise GamlensError(f"There is no method {first!r}: {near(first, METHODS)}")
        found = [cell for run in read for cell in tables.cells(run, confidence=confidence)]
        pairs = [contest for run in read for contest in tables.contests(run, first=first, confidence=confidence)]
        if found and not any(cell.method == first for cell in found):
            have = ", ".join(dict.fromkeys(cell.method for cell in found if cell.n))
            raise GamlensError(f"No run measured {first!r}: give --first one of {have}.")
        _show(found)
        for name in dict.fromkeys(_where(contest) for contest in pairs):
            header, lines = tables.contest_rows([contest for contest in pairs if _where(contest) == name])
            title = f"{METHODS[first].title} against the others, item by item: {name}"
            _print(title, ("metric", *header[4:5], *header[6:]), [(line[3], line[4], *line[6:]) for line in lines])
        errors = sum(len(run.errors) for run in read)
        say(f"{errors} items with errors are left out.")
        if out is not None:
            made = {"table": tables.rows_of(found), "paired": tables.contest_rows(pairs)}
            kinds = {"md": markdown, "csv": comma_separated, "tex": latex}
            texts = {f"{name}.{kind}": text(*cells) for name, cells in made.items() for kind, text in kinds.items()}
            write_files(out, texts, {})


@app.command(epilog="Example:  gamlens subset pairs --root ILSVRC --out pairs.json --seed 3")
def subset(
    kind: Annotated[str, typer.Argument(help=", ".join(MANIFESTS), show_default=False)],
    root: options.DatasetRoot,
    out: Annotated[Path, typer.Option("--out", "-o", help="The manifest, a JSON file.", show_default=False)],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    masks: Annotated[
        bool | None, typer.Option("--masks/--boxes", help="Small by mask or by box; by box where there are any.")
    ] = None,
) -> None:
    """Write down a subset of a data set: pairs, small objects, a hold-out."""
    with errors_as_lines():
        if kind not in MANIFESTS:
            raise GamlensError(f"There is no subset {kind!r}: {near(kind, MANIFESTS)}")
        dataset = datasets.load(data, root, split=split)
        by = not any(sample.boxes for sample in dataset) if masks is None else masks
        made: Manifest = {
            "pairs": lambda: datasets.pairs(dataset, seed=seed),
            "neighbour-pairs": lambda: datasets.neighbour_pairs(dataset),
            "small-25": lambda: datasets.small(dataset, 25, masks=by),
            "small-10": lambda: datasets.small(dataset, 10, masks=by),
            "hold-out": lambda: datasets.hold_out(dataset),
        }[kind]()
        made.save(out)
        say(f"{len(made.items)} items of {len(dataset)} images in {out}")


def _show(found: list[tables.Cell]) -> None:
    for name in dict.fromkeys(_where(cell) for cell in found):
        mine = [cell for cell in found if _where(cell) == name]
        counts = sorted({cell.value.n for cell in mine})
        items = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        errors = sum({cell.run: cell.errors for cell in mine}.values())
        _print(f"{name}: {items} items, {errors} errors", *tables.tall(mine))


def _where(found: tables.Cell | tables.Contest) -> str:
    of = found.setting
    small = "" if of.subset == "all" else f", the smallest {of.subset} %"
    return f"{of.model} on {of.data}{small}, {of.task}{f'; {of.variant}' if of.variant else ''}"


def _print(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table with its title; where it is wider than the terminal, intervals go to a line of their own."""
    widths = (max(map(len, column)) + 2 for column in zip(header, *lines, strict=True))
    if sum(widths) > out_console.width:
        lines = [[cell.replace(" [", "\n[").replace(" (", "\n(") for cell in line] for line in lines]
    style = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD, "pad_edge": False}
    say_table(header, lines, title=title, **style)
