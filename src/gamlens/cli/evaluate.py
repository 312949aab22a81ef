"""The commands that measure: evaluate, table, subset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gamlens.cli.common import Device, Model, Weights, err_console, make_lens, out_console, progress, speaking
from gamlens.data import DATASETS, Manifest, align, hold_out, load, neighbour_pairs, pairs, small
from gamlens.errors import GamlensError, near
from gamlens.experiments import results, tables
from gamlens.experiments.evaluate import evaluate as measure
from gamlens.experiments.protocol import (
    CHOICES,
    KINDS,
    Protocol,
    numbers,
    parse_list,
    parse_views,
    units,
)
from gamlens.geometry import Transform

app = typer.Typer()

Data = Annotated[str, typer.Option(help="Data set: " + ", ".join(DATASETS) + ".")]
Root = Annotated[Path, typer.Option(help="The folder of the data set.", show_default=False)]
EXAMPLE = "Example:  gamlens evaluate localization --data ilsvrc --root ILSVRC --model resnet50 --n 1,2 --out runs/loc"
SUBSETS = ("pairs", "neighbour-pairs", "small-25", "small-10", "hold-out")


def _choice(name: str, what: str) -> str:
    return f"{what}: {', '.join(CHOICES[name])}."


@app.command(epilog=EXAMPLE)
def evaluate(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS), show_default=False)],
    root: Root,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.", show_default=False)],
    data: Data = "ilsvrc",
    split: Annotated[str | None, typer.Option(help="Split of the data set, such as val.")] = None,
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    task: Annotated[str, typer.Option(help=_choice("task", "What is explained"))] = "classification",
    methods: Annotated[str, typer.Option(help="Methods, comma separated.")] = "gam,grad_cam_pp,grad_cam",
    n: Annotated[str, typer.Option("--n", "-n", help="Numbers of blocks, comma separated.")] = "1,2",
    subset: Annotated[str, typer.Option(help=_choice("subset", "All items, or small objects (percentile)"))] = "all",
    input: Annotated[str, typer.Option(help=_choice("input", "How an image becomes the input"))] = "squash",
    fill: Annotated[str, typer.Option(help=_choice("fill", "What hidden pixels become"))] = "black",
    masked: Annotated[str, typer.Option(help=_choice("masked", "Pairs: which images are masked"))] = "one",
    box: Annotated[str, typer.Option(help=_choice("box", "The predicted box"))] = "all",
    pairs_: Annotated[str, typer.Option("--pairs", help=_choice("pairs", "How pairs are chosen"))] = "drawn",
    seed: Annotated[int, typer.Option(help="Of the drawn pairs.")] = 0,
    views: Annotated[str, typer.Option(help="Further views, such as flip,1.43,2.0.")] = "",
    limit: Annotated[int | None, typer.Option(help="Only the first so many items.")] = None,
    batch: Annotated[int, typer.Option(help="Images a forward.")] = 16,
    device: Device = None,
) -> None:
    """Measure saliency maps on data with ground truth: ADP and PIC, box IoU, or segmentation IoU."""
    with speaking():
        looks = parse_views(views)
        protocol = Protocol(
            kind, task, parse_list(methods), numbers(n), subset, input, fill, masked, box, pairs_, seed, views=looks
        )
        lens = make_lens(model, weights, None, device)
        if isinstance(lens.transform, Transform):
            lens.transform = lens.transform.using(input)
        dataset = load(data, root, split=split)
        if task == "classification":
            dataset = align(dataset, lens.labels)
        items = units(dataset, protocol)[:limit]
        rows: list[results.Row] = []
        with progress(False) as bar:
            task_id = bar.add_task(f"{kind}, {task}", total=len(items))
            for part in measure(lens, items, protocol, batch=batch):
                rows += part
                bar.update(task_id, completed=len({row["item"] for row in rows}))
        results.write(out, results.describe(lens, dataset, protocol, len(items)), rows)
        failed = sum(bool(row["error"]) for row in rows)
        out_console.print(f"{len(items)} items, {len(rows)} rows in {out}", highlight=False)
        if lens.weights != "random":
            _show(tables.cells(results.read(out)))
        if failed:
            err_console.print(f"{failed} items could not be read; their rows say why.", highlight=False)
            raise typer.Exit(1)


@app.command(epilog="Example:  gamlens table runs/loc runs/adp --confidence probability --out tables")
def table(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)],
    confidence: Annotated[str, typer.Option(help="ADP and PIC of the logit or the probability.")] = "logit",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write table.md, .csv and .tex here.")] = None,
) -> None:
    """The paper's tables from runs: n=1, n=2, improvement, intervals, controls, and the paper's numbers."""
    with speaking():
        if confidence not in ("logit", "probability"):
            raise GamlensError(f"--confidence is logit or probability, not {confidence!r}.")
        found = [cell for run in runs for cell in tables.cells(results.read(run), confidence=confidence)]
        _show(found)
        errors = sum(len(results.read(run).errors) for run in runs)
        out_console.print(f"{errors} items with errors are left out.", highlight=False)
        if out is not None:
            header, lines = tables.rows_of(found)
            out.mkdir(parents=True, exist_ok=True)
            (out / "table.md").write_text(tables.markdown(header, lines))
            (out / "table.csv").write_text(tables.comma_separated(header, lines))
            (out / "table.tex").write_text(tables.latex(header, lines))


@app.command(epilog="Example:  gamlens subset pairs --root ILSVRC --out pairs.json --seed 3")
def subset(
    kind: Annotated[str, typer.Argument(help=", ".join(SUBSETS), show_default=False)],
    root: Root,
    out: Annotated[Path, typer.Option("--out", "-o", help="The manifest, a JSON file.", show_default=False)],
    data: Data = "ilsvrc",
    split: Annotated[str | None, typer.Option(help="Split of the data set.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Write down a subset of a data set: pairs, small objects, a hold-out."""
    with speaking():
        if kind not in SUBSETS:
            raise GamlensError(f"There is no subset {kind!r}: {near(kind, SUBSETS)}")
        dataset = load(data, root, split=split)
        made: Manifest = {
            "pairs": lambda: pairs(dataset, seed=seed),
            "neighbour-pairs": lambda: neighbour_pairs(dataset),
            "small-25": lambda: small(dataset, 25),
            "small-10": lambda: small(dataset, 10),
            "hold-out": lambda: hold_out(dataset),
        }[kind]()
        made.save(out)
        out_console.print(f"{len(made.items)} items of {len(dataset)} images in {out}", highlight=False)


def _show(found: list[tables.Cell]) -> None:
    header, lines = tables.rows_of(found)
    shown = Table(*header)
    for line in lines:
        shown.add_row(*line)
    out_console.print(shown)
