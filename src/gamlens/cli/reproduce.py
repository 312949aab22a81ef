"""The command `reproduce`."""

from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.table import Column
from typer import Option

from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, lens_maker
from gamlens.cli.show import cell_records
from gamlens.cli.terminal import note, say, say_table
from gamlens.cli.waiting import ItemProgress, steps, waiting
from gamlens.data import PAIRS_PER_CLASS
from gamlens.errors import GamlensError
from gamlens.evaluation import protocol as protocols
from gamlens.evaluation.explainers import split_names
from gamlens.evaluation.paper_files import table_files
from gamlens.evaluation.paper_forecast import finished_items, other_run, seconds_per_item
from gamlens.evaluation.paper_layout import PaperTable, by_network, default_methods, paper_networks, paper_table
from gamlens.evaluation.paper_runs import (
    RUNS_FOLDER,
    NetworkSource,
    TablePlan,
    folder_of,
    measure_run,
    plan_table,
    read_run,
)
from gamlens.evaluation.paper_table import FilledTable, fill_table
from gamlens.evaluation.paper_texts import limit_note, printed_sections
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.runs import Engine
from gamlens.evaluation.table_files import write_files
from gamlens.evaluation.tables import check_confidence
from gamlens.models.devices import AUTO

REPRODUCED_METHODS = ",".join(default_methods())
STYLE: dict[str, Any] = {
    "title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD, "pad_edge": False,
}  # fmt: skip
LEFT_OUT = "none"  # in place of a model: its lines are left out
NETWORKS_HELP = "; ".join(
    f"{network.name} ({network.model}, on --{network.data})" for network in paper_networks().values()
)


@command(
    "reproduce --table 1 --ilsvrc ILSVRC --model resnet=resnet50 --limit 100 --out paper", resumes=True, whole=True
)
def reproduce(
    table: Annotated[int, Option(help="The table of the GAM paper to measure again: 1 or 2.", show_default=False)],
    out: Annotated[
        Path, Option("--out", "-o", help=f"Write the tables into this folder, and the runs into {RUNS_FOLDER}/ in it.")
    ] = Path("gamlens-paper"),
    ilsvrc: Annotated[Path | None, Option(help="The folder of ILSVRC-2012, for the lines VRC.")] = None,
    coco: Annotated[Path | None, Option(help="The folder of MS-COCO (Table 2).")] = None,
    voc: Annotated[Path | None, Option(help="The folder of PASCAL VOC, VOCdevkit (Table 2).")] = None,
    chestxray: Annotated[Path | None, Option(help="The folder of ChestX-ray8, for the line XRAY (Table 2).")] = None,
    model: Annotated[
        list[str] | None,
        Option(
            "--model",
            "-m",
            help=f"Measure another model in place of a network of the paper, as NETWORK=MODEL. Repeat it for several. "
            f"The networks are {NETWORKS_HELP}. 'none' leaves a network out. {options.MODEL_HELP}",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        Option(
            help="The weights of a network, as NETWORK=WEIGHTS: a .safetensors or .pth file, or the name of weights of "
            "torchvision, such as IMAGENET1K_V1. Repeat it for several. By default each model's own pretrained weights."
        ),
    ] = None,
    methods: options.EvaluatedMethodNames = REPRODUCED_METHODS,
    n: Annotated[str, Option("--n", "-n", help="Numbers of last blocks to use, comma separated.")] = "1,2",
    limit: Annotated[
        int | None, Option(help="Measure at most this many items per line, the first ones. By default all.", min=1)
    ] = None,
    pairs_: options.PairChoice = "drawn",
    seed: options.PairSeed = 0,
    pairs_per_class: options.PairsPerClass = PAIRS_PER_CLASS,
    hold_out_by: Annotated[
        str, Option(help="Thresholds for pairs are chosen on whole pairs, or on single maps of pairs: pairs, maps.")
    ] = "pairs",
    input: options.InputChoice = "squash",
    fill: Annotated[str, Option(help="The colour of hidden pixels (Table 1): black, mean.")] = "black",
    masked: Annotated[
        str, Option(help="Hide pixels in one image of a pair at a time, or in both (Table 1): one, both.")
    ] = "one",
    box_: options.BoxChoice = "all",
    confidence: options.Confidence = "logit",
    temperature: Annotated[
        float,
        Option(
            help="For --confidence probability (Table 1, classification): the class scores are divided by this before "
            "they become the probability."
        ),
    ] = 1.0,
    lattice: options.LatticeReading = "read",
    batch: Annotated[int, Option(help="Number of images per forward pass.", min=1)] = 16,
    chunk: options.ChunkSize = 64,
    engine: options.EngineName = "local",
    address: options.ClusterAddress = None,
    workers: options.WorkerCount = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Delete the results that the run folders already hold, and start over.")
    ] = False,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Measure nothing: print what would be measured, about how long it takes on this machine, and what is "
            "missing.",
        ),
    ] = False,
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Measure a table of the GAM paper (Barkan et al., CIKM 2021) again, and write it in the paper's layout.

    Every line that the given data allow is measured; for the others it is said what they need. The command may be
    stopped at any time: the same command continues it, and nothing is measured twice. The table is written as Markdown,
    CSV and LaTeX, our numbers beside the paper's; an appendix has intervals, controls and further metrics.
    """
    check_confidence(confidence)
    layout, where = paper_table(table), Engine(engine, workers, address)
    first = layout.sections[0]
    protocol = Protocol(
        first.kind, first.task, split_names(methods), protocols.numbers(n), input=input, fill=fill, masked=masked,
        box=box_, pairs=pairs_, seed=seed, pairs_per_class=pairs_per_class, hold_out_by=hold_out_by, lattice=lattice,
        temperature=temperature,
    )  # fmt: skip
    roots = {"ilsvrc": ilsvrc, "coco": coco, "voc": voc, "chestxray": chestxray}
    sources = _sources(layout, roots, model or [], weights or [], device)
    with waiting("reading models and data sets"):
        plan = plan_table(layout, sources, protocol, limit=limit)
    if dry_run:
        return _show_plan(plan, out, chunk=chunk, batch=batch, engine=where, fresh=fresh)
    failed = 0
    for place, run in enumerate(plan.runs, start=1):
        with ItemProgress(f"{place} of {len(plan.runs)}: {run.name}", len(run.items)) as progress:
            done = measure_run(run, out, batch=batch, chunk=chunk, engine=where, fresh=fresh, status=progress)
        failed += done["errors"]
        again = "" if done["measured"] else ", which were measured before"
        note(f"{folder_of(run, out)}: {done['items']} items{again}")
    with steps("making the table", len(plan.runs)) as step:
        measured = {run.key: (step(run.name), read_run(run, out))[1] for run in plan.runs}
    filled = fill_table(plan, measured, confidence=confidence)
    _show_table(filled)
    files = write_files(out, table_files(filled), {})
    for file in files:
        say(str(file))
    record = {"paper_table": table, "files": files, "lines": _line_records(filled), "missing": filled.missing}
    if failed:
        why = f"{failed} items could not be measured; `gamlens report` of a run shows which, and why."
        exit_with_failures(why, record)
    return record


def _sources(
    layout: PaperTable, roots: dict[str, Path | None], model: list[str], weights: list[str], device: str
) -> dict[str, NetworkSource]:
    """Where each network of the table comes from, by the options of the command."""
    wanted = {network.data for network in layout.networks.values()}
    for data, root in roots.items():
        if root is not None and data not in wanted:
            note(f"Table {layout.number} has no line for --{data}, which is not used.")
    with_data = {name: network for name, network in layout.networks.items() if roots[network.data] is not None}
    single = next((one for one in (layout.networks, with_data) if len(one) == 1), {})
    models, files = (
        by_network(option, given, paper_networks(), only=next(iter(single), ""))
        for option, given in (("--model", model), ("--weights", weights))
    )
    for option, given in (("--model", models), ("--weights", files)):
        for name in [name for name in given if name not in layout.networks]:
            note(f"Table {layout.number} has no line for {option} {name}={given[name]}, which is not used.")
    if both := [name for name in files if models.get(name) == LEFT_OUT]:
        raise GamlensError(f"--weights are given for {both[0]}, which --model {both[0]}={LEFT_OUT} leaves out.")
    return {
        name: NetworkSource(
            lens_maker(models.get(name, network.model), files.get(name), None, device),
            root.resolve() if (root := roots[network.data]) else None,
            named=name in models or name in files,
        )
        for name, network in layout.networks.items()
        if models.get(name) != LEFT_OUT
    }


def _show_plan(plan: TablePlan, out: Path, *, chunk: int, batch: int, engine: Engine, fresh: bool) -> dict[str, Any]:
    """Print what would be measured, how long it would take, and what is missing or in the way."""
    lines, total = [], 0.0
    refused: dict[Path, str] = {}
    workers = (engine.workers or 1) if engine.name != Engine().name else 1
    with steps("timing a few items of each run", len(plan.runs)) as step:
        for run in plan.runs:
            step(run.name)
            other = "" if fresh else other_run(run, out, batch=batch, chunk=chunk, engine=engine)
            refused |= {folder_of(run, out): other} if other else {}
            left = len(run.items) - (0 if fresh or other else finished_items(run, out, chunk))
            seconds = seconds_per_item(run, most=batch) if left else 0.0
            total += (took := left * seconds / workers)
            subsets = "/".join(str(len(items)) for items in run.rows.values())
            counts = (f"{len(run.items)} ({subsets})", str(left), str(left * run.forwards))
            lines.append((run.name, *counts, _clock(took)))
    widest = max(len(run.name) for run in plan.runs)
    header = (Column("run", min_width=widest), "items", "left", "forwards", "about")
    title = f"Table {plan.table.number}: what would be measured into {out / RUNS_FOLDER}"
    say_table(header, lines, title=title, padding=(0, 1, 0, 0), **STYLE)
    say(
        f"About {_clock(total)} in all, as estimated from a few items of each run on this machine. Large batches on a "
        "GPU take less."
    )
    for place, other in refused.items():
        say(f"refused: another run is in {place} ({other}). Start over with --fresh, or give another --out.")
    for missing in plan.missing:
        say(f"missing: {missing.what}. {missing.why}")
    names = ("run", "items", "left", "forwards", "duration")
    runs = [dict(zip(names, line, strict=True)) for line in lines]
    return {"runs": runs, "seconds": total, "refused": refused, "missing": plan.missing}


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _line_records(filled: FilledTable) -> list[dict[str, Any]]:
    """The lines of a table with our numbers for JSON."""
    return [
        {
            "task": one.line.section.task,
            "data": one.line.data,
            "metric": one.line.metric,
            "model": one.model,
            "items": one.items,
            "errors": one.errors,
            "numbers": cell_records(list(one.cells.values())),
        }
        for one in filled.lines
    ]


def _show_table(filled: FilledTable) -> None:
    ns = " / ".join(f"n={n}" for n in filled.n)
    say(f"Table {filled.table.number}: {filled.table.title}, {ns} (the paper's in brackets)")
    for title, (header, lines) in printed_sections(filled).items():
        say_table(header, lines, title=title, padding=(0, 1, 0, 0), **STYLE)
    if filled.limit:
        note(limit_note(filled))
    for missing in filled.missing:
        note(f"not measured: {missing.what}. {missing.why}")
