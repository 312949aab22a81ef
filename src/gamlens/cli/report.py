"""The command that makes a page of runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gamlens import render
from gamlens.cli.common import Device, Weights, make_lens, out_console, progress, speaking
from gamlens.errors import GamlensError
from gamlens.evaluation import results
from gamlens.report import evaluation as work

app = typer.Typer()

EXAMPLE = "Example:  gamlens report runs/loc runs/adp --model resnet50 --out report.html"


@app.command(epilog=EXAMPLE)
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs (gamlens evaluate).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page (.html), or its folder.")] = Path("report.html"),
    root: Annotated[Path | None, typer.Option(help="Where the data set lies now, if it moved.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the data set.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Draw the maps of cases again with it.")] = None,
    weights: Weights = None,
    confidence: Annotated[str, typer.Option(help="ADP and PIC of the logit or the probability.")] = "logit",
    cases: Annotated[int, typer.Option(help="How many best and worst cases.", min=0, max=24)] = 4,
    device: Device = None,
) -> None:
    """One self-contained page from runs: tables, curves, paired scatter, object sizes, cases, errors, protocol."""
    with speaking(), progress(False) as bar:
        names = [Path(folder).name or Path(folder).resolve().name for folder in runs]
        if len(set(names)) < len(names):
            names = list(runs)
        found = [(name, results.read(folder)) for name, folder in zip(names, runs, strict=True)]
        lens = make_lens(model, weights, None, device) if model else None
        if weights and not model:
            raise GamlensError("--weights belong to a model: name it with --model.")
        task = bar.add_task("reporting", total=len(found))
        options = work.ReportOptions(root, split, lens, confidence, cases)
        page = work.page(found, options, step=lambda name: bar.update(task, advance=1, description=name))
        bar.stop()
        out = out if out.suffix and not out.is_dir() else out / "report.html"
        with suppress(OSError):  # what is wrong with the place, writing says
            out.parent.mkdir(parents=True, exist_ok=True)
        render.write(page, out)
        size = out.stat().st_size / 1e6
        out_console.print(f"{out}  {size:.1f} MB", highlight=False, soft_wrap=True)
