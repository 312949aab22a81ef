"""The command `leaderboard`."""

import os
from pathlib import Path
from typing import Annotated, Any

from rich import box
from typer import Option

from gamlens import Lens
from gamlens import data as datasets
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, lens_maker
from gamlens.cli.evaluate import chosen_items, is_positive
from gamlens.cli.terminal import note, say, say_table
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.data import Dataset, Manifest
from gamlens.evaluation import leaderboard as boards
from gamlens.evaluation import protocol as protocols
from gamlens.evaluation import results
from gamlens.evaluation.explainers import split_names
from gamlens.evaluation.leaderboard_texts import board_record, lead_sentence, summary_table
from gamlens.evaluation.protocol import Protocol, parse_numbers
from gamlens.evaluation.runs import Engine, evaluate_run
from gamlens.methods import METHODS, names
from gamlens.models.devices import AUTO
from gamlens.report.leaderboard_page import write_board

OUR_METHODS = "ours"  # stands for every method of ours that the model has
RUN_FOLDER = "run"  # below the folder of a leaderboard: the run that it is made of


@command(
    "leaderboard --data ilsvrc --root ILSVRC --model resnet50 --methods ours,ours+refine,captum:IntegratedGradients "
    "--limit 200 --out board",
    resumes=True,
)
def leaderboard(
    root: options.DatasetRoot,
    out: Annotated[
        Path, Option("--out", "-o", help="The folder of the leaderboard and of its run.", show_default=False)
    ],
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    task: Annotated[str, Option(help=f"What is explained: {', '.join(protocols.choices()['task'])}.")] = (
        "classification"
    ),
    methods: Annotated[
        str,
        Option(
            help="What is compared, comma separated. 'ours' stands for every method of ours that the model has, "
            f"'ours+refine' and 'ours+views' for the same with refined maps or averaged over views. "
            f"{options.EXPLAINER_HELP}"
        ),
    ] = f"{OUR_METHODS},{OUR_METHODS}+refine",
    n: Annotated[
        str, Option("--n", "-n", help="Numbers of last blocks to use, comma separated; each is a row.")
    ] = "1,2",
    variant_n: Annotated[
        int | None,
        Option(help="The number of blocks of the variants +refine and +views. By default all numbers of --n."),
    ] = None,
    items_: Annotated[
        Path | None, Option("--items", help="Measure only the items or pairs of this manifest file (gamlens subset).")
    ] = None,
    box_: options.BoxChoice = "all",
    pairs_: options.PairChoice = "drawn",
    pairs_per_class: options.PairsPerClass = datasets.PAIRS_PER_CLASS,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Only what needs few forward passes: no curves, ROAD, infidelity, sensitivity and coherency.",
        ),
    ] = False,
    curves: options.CurveSteps = 10,
    road: options.RoadShares = "20,40,60,80",
    infidelity: options.InfidelityCount = 10,
    sensitivity: options.SensitivityCount = 3,
    coherency: options.CoherencyFlag = True,
    compile_: options.CompileFlag = False,
    confidence: options.Confidence = "logit",
    limit: options.ItemLimit = None,
    batch: options.BatchSize = 8,
    chunk: options.ChunkSize = 64,
    engine: options.EngineName = "local",
    address: options.ClusterAddress = None,
    workers: options.WorkerCount = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Delete the results that --out already holds, and start over.")
    ] = False,
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Rank explainers on your model and data by every metric, beside controls, with their time and memory.

    Every explainer makes the maps of the same images, and every metric measures them alike. A page and tables show
    means with intervals, ranks, paired differences, which metrics agree, and quality against cost. A run may be
    stopped at any time: the same command continues it.
    """
    make = lens_maker(model, weights, blocks, device, embedding=embedding)
    lens = make()
    with waiting("reading the data set"):
        whole = datasets.load(data, Path(os.path.realpath(root)), split=split)
    kind = kind_for(whole, task)
    deep = not quick
    protocol = Protocol(
        kind, task, chosen_names(lens, methods, task), protocols.numbers(n), box=box_, pairs=pairs_,
        pairs_per_class=pairs_per_class, curves=curves if deep else 0, road=parse_numbers(road) if deep else (),
        infidelity=infidelity if deep else 0, sensitivity=sensitivity if deep else 0, coherency=coherency and deep,
        equal_mass=is_positive(task), cost=True, variant_n=variant_n or 0, compiled=compile_,
    )  # fmt: skip
    where, chosen = Engine(engine, workers, address), Manifest.load(items_) if items_ else None
    dataset, items, about = chosen_items(lens, whole, protocol, {"items": chosen, "hold_out": None})
    folder = out / RUN_FOLDER
    with ItemProgress(f"{kind}, {task}", len(items[:limit])) as progress:
        done = evaluate_run(
            make if engine == "ray" else lambda: lens, dataset, items[:limit], protocol, folder, batch=batch,
            chunk=chunk, engine=where, fresh=fresh, about={**about, "split": split}, status=progress,
        )  # fmt: skip
    if not done["measured"]:
        note(f"this run was already finished; nothing was measured again ({folder})")
    if lens.weights == "random":
        say(f"{done['items']} items in {folder}; the weights are random, so there is nothing to rank.")
        return {"run": folder, **done}
    with waiting("ranking"):
        board = boards.board(results.read(folder, only=boards.board_columns()), confidence=confidence)
        written = write_board(out, [(lens.name, board)])
    page = out / "leaderboard.html"
    record = {"page": page, **board_record(lens.name, board)}
    say_table(*summary_table(board), box=box.SIMPLE)
    say(lead_sentence(board).replace("`", "").replace("**", ""))
    say(f"All metrics with intervals are in {len(written)} files; open {page}")
    if done["errors"]:
        exit_with_failures(f"{done['errors']} items could not be measured; {page} lists them.", record)
    return record


def kind_for(dataset: Dataset, task: str) -> str:
    """The model's score, and the ground truth that the data set has: masks, or else boxes."""
    if task == "classification" and any(sample.mask is not None for sample in dataset):
        return "objective+segmentation"
    if any(sample.boxes for sample in dataset):
        return "objective+localization"
    return "objective"


def chosen_names(lens: Lens, text: str, task: str) -> tuple[str, ...]:
    """The option --methods with 'ours' and its variants spelled out for a model and task."""
    known = names("block", "attention") if lens.attention_layers else names("block")
    own = [name for name in known if METHODS[name].stable]
    pairs = [] if task == "classification" else list(names("pair"))
    found: list[str] = []
    for name in split_names(text):
        base, *variant = name.split("+") if ":" not in name else [name]
        if base != OUR_METHODS:
            found.append(name)
            continue
        found += ["+".join((one, *variant)) for one in [*own, *(pairs if not variant else [])]]
    return tuple(dict.fromkeys(found))
