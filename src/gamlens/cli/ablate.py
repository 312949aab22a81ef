"""The command that varies how many blocks are read and how they are joined: ablate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gamlens.cli import options
from gamlens.cli.common import errors_as_lines, exit_with_failures, make_lens, say, say_table
from gamlens.cli.progress import ItemProgress
from gamlens.data import DATASETS, align, load
from gamlens.errors import GamlensError
from gamlens.evaluation import ablation, results
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import JOINED, numbers, parse_list, units

app = typer.Typer()
ABLATED_METHODS = ",".join(ablation.BLOCK_METHODS)


@app.command(epilog="Example:  gamlens ablate --data ilsvrc --root ILSVRC --model resnet50 --out ablation")
def ablate(
    root: options.DatasetRoot,
    data: Annotated[str, typer.Option(help=f"Data set with boxes: {', '.join(DATASETS)}.")] = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    methods: options.MethodNames = ABLATED_METHODS,
    n: Annotated[str, typer.Option("--n", "-n", help="Numbers of blocks, comma separated; all by default.")] = "",
    fusions: Annotated[str, typer.Option(help="How blocks are joined, comma separated.")] = ",".join(JOINED),
    block_weights: Annotated[str, typer.Option(help="For the fusion 'weights': one per block, in network order.")] = "",
    fill: Annotated[str, typer.Option(help="What hidden pixels become: black, mean.")] = "black",
    confidence: options.Confidence = "logit",
    limit: options.ItemLimit = None,
    batch: options.BatchSize = 16,
    out: options.TablesFolder = Path("gamlens-ablation"),
    device: options.DeviceName = None,
) -> None:
    """How many blocks, and joined how? IoU, ADP and PIC of every method against n, by mean, max, product, weights."""
    with errors_as_lines():
        plan = ablation.Plan(
            parse_list(methods), numbers(n), parse_list(fusions), _floats(block_weights), fill, confidence
        )
        lens = make_lens(model, weights, blocks, device)
        dataset = align(load(data, root, split=split), lens.labels)
        protocol = plan.protocol(lens)
        items = units(dataset, protocol)[:limit]
        rows: list[dict[str, Any]] = []
        with ItemProgress("measuring", len(items)) as progress:
            progress(0, 0)
            for part in evaluate(lens, items, protocol, batch=batch):
                rows += part
                progress(len({row["item"] for row in rows}), 0)
        about = results.describe(lens, dataset, protocol, len(items))
        found = ablation.table(rows, about, plan)
        written = ablation.write(found, plan, out, about)
        for measure in ablation.MEASURES:
            say_table(*ablation.table_of(found, plan, measure))
        say(f"{len(written)} files; look at {out / 'ablation.png'}")
        if failed := sum(bool(row["error"]) for row in rows):
            exit_with_failures(f"{failed} items could not be read and are left out.")


def _floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in parse_list(text))
    except ValueError as error:
        raise GamlensError(f"Weights are numbers, such as 1,2,3,4; found {text!r}.") from error
