"""The command that varies how many blocks are read and how they are joined: ablate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gamlens.cli.common import Blocks, Device, Model, Weights, err_console, make_lens, out_console, progress, speaking
from gamlens.data import DATASETS, align, load
from gamlens.errors import GamlensError
from gamlens.evaluation import ablation, results
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import JOINED, numbers, parse_list, units

app = typer.Typer()
EXAMPLE = "Example:  gamlens ablate --data ilsvrc --root ILSVRC --model resnet50 --out ablation"


@app.command(epilog=EXAMPLE)
def ablate(
    root: Annotated[Path, typer.Option(help="The folder of the data set.", show_default=False)],
    data: Annotated[str, typer.Option(help="Data set with boxes: " + ", ".join(DATASETS) + ".")] = "ilsvrc",
    split: Annotated[str | None, typer.Option(help="Split of the data set, such as val.")] = None,
    model: Model = "efficientnet_lite0",
    weights: Weights = None,
    blocks: Blocks = None,
    methods: Annotated[str, typer.Option(help="Methods, comma separated.")] = ",".join(ablation.BLOCK_METHODS),
    n: Annotated[str, typer.Option("--n", "-n", help="Numbers of blocks, comma separated; all by default.")] = "",
    fusions: Annotated[str, typer.Option(help="How blocks are joined, comma separated.")] = ",".join(JOINED),
    block_weights: Annotated[str, typer.Option(help="For the fusion 'weights': one a block, in network order.")] = "",
    fill: Annotated[str, typer.Option(help="What hidden pixels become: black, mean.")] = "black",
    confidence: Annotated[str, typer.Option(help="ADP and PIC of the logit or the probability.")] = "logit",
    limit: Annotated[int | None, typer.Option(help="Only the first so many items.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Images a forward.", min=1)] = 16,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables and plot.")] = Path("gamlens-ablation"),
    device: Device = None,
) -> None:
    """How many blocks, and joined how? IoU, ADP and PIC of every method against n, by mean, max, product, weights."""
    with speaking():
        plan = ablation.Plan(
            parse_list(methods), numbers(n), parse_list(fusions), _floats(block_weights), fill, confidence
        )
        lens = make_lens(model, weights, blocks, device)
        dataset = align(load(data, root, split=split), lens.labels)
        protocol = plan.protocol(lens)
        items = units(dataset, protocol)[:limit]
        rows: list[dict[str, Any]] = []
        with progress(False) as bar:
            task = bar.add_task("measuring", total=len(items))
            for part in evaluate(lens, items, protocol, batch=batch):
                rows += part
                bar.update(task, completed=len({row["item"] for row in rows}))
        about = results.describe(lens, dataset, protocol, len(items))
        found = ablation.table(rows, about, plan)
        written = ablation.write(found, plan, out, about)
        for measure in ablation.MEASURES:
            header, lines = ablation.table_of(found, plan, measure)
            shown = Table(*header)
            for line in lines:
                shown.add_row(*line)
            out_console.print(shown)
        out_console.print(f"{len(written)} files; look at {out / 'ablation.png'}", highlight=False, soft_wrap=True)
        if failed := sum(bool(row["error"]) for row in rows):
            err_console.print(f"{failed} items could not be read and are left out.", highlight=False)
            raise typer.Exit(1)


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Weights are numbers, such as 1,2,3,4; found {text!r}.") from error
