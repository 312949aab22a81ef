"""The commands that show finished runs: table, report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich import box
from typer import Option

from gamlens import METHODS, render
from gamlens.cli import options
from gamlens.cli.common import command, make_lens, out_console, say, say_table
from gamlens.cli.progress import steps
from gamlens.errors import GamlensError
from gamlens.evaluation import results, tables
from gamlens.evaluation.table_files import comma_separated, latex, markdown, write_files
from gamlens.report import evaluation as work


@command("table runs/loc runs/adp --confidence probability --out tables")
def table(
    runs: options.RunFolders,
    confidence: options.Confidence = "logit",
    first: Annotated[str, Option(help="The method held against the others, item by item.")] = "gam",
    out: Annotated[Path | None, Option("--out", "-o", help="Write table and paired .md, .csv, .tex.")] = None,
) -> None:
    """The paper's tables from runs: n=1, n=2, improvement, intervals, controls, and the paper's numbers."""
    tables.check_confidence(confidence)
    title = f"{METHODS[first].title} against the others, item by item"
    read = [results.read(run, only=tables.NEEDED) for run in runs]
    found = [cell for run in read for cell in tables.cells(run, confidence=confidence)]
    pairs = [contest for run in read for contest in tables.contests(run, first=first, confidence=confidence)]
    if found and not any(cell.method == first for cell in found):
        have = ", ".join(dict.fromkeys(cell.method for cell in found if cell.n))
        raise GamlensError(f"No run measured {first!r}: give --first one of {have}.")
    show_cells(found)
    for name in dict.fromkeys(_where(contest) for contest in pairs):
        header, lines = tables.contest_rows([contest for contest in pairs if _where(contest) == name])
        short = [(line[3], line[4], *line[6:]) for line in lines]
        _print(f"{title}: {name}", ("metric", *header[4:5], *header[6:]), short)
    errors = sum(len(run.errors) for run in read)
    say(f"{errors} items with errors are left out.")
    if out is not None:
        made = {"table": tables.rows_of(found), "paired": tables.contest_rows(pairs)}
        kinds = {"md": markdown, "csv": comma_separated, "tex": latex}
        texts = {f"{name}.{kind}": text(*cells) for name, cells in made.items() for kind, text in kinds.items()}
        write_files(out, texts, {})


@command("report runs/loc runs/adp --model resnet50 --out report.html")
def report(
    runs: options.RunFolders,
    out: Annotated[Path, Option("--out", "-o", help="The page (.html), or its folder.")] = Path("report.html"),
    root: Annotated[Path | None, Option(help="Where the data set lies now, if it moved.")] = None,
    split: options.DatasetSplit = None,
    model: Annotated[str | None, Option("--model", "-m", help="Draw the maps of cases again with it.")] = None,
    weights: options.WeightsFile = None,
    confidence: options.Confidence = "logit",
    cases: Annotated[int, Option(help="How many best and worst cases.", min=0, max=24)] = 4,
    device: options.DeviceName = None,
) -> None:
    """One self-contained page from runs: tables, curves, paired scatter, object sizes, cases, errors, protocol."""
    names = [Path(folder).name or Path(folder).resolve().name for folder in runs]
    if len(set(names)) < len(names):
        names = list(runs)
    found = [(name, results.read(folder)) for name, folder in zip(names, runs, strict=True)]
    lens = make_lens(model, weights, None, device) if model else None
    if weights and not model:
        raise GamlensError("--weights belong to a model: name it with --model.")
    with steps("reporting", len(found)) as step:
        page = work.page(found, work.ReportOptions(root, split, lens, confidence, cases), step=step)
    out = out if out.suffix and not out.is_dir() else out / "report.html"
    with suppress(OSError):  # what is wrong with the place, writing says
        out.parent.mkdir(parents=True, exist_ok=True)
    render.write(page, out)
    say(f"{out}  {out.stat().st_size / 1e6:.1f} MB")


def show_cells(found: list[tables.Cell]) -> None:
    """Print the numbers of runs, one table per model, data and task."""
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
