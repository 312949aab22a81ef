"""The command that makes a page of runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gamlens import render
from gamlens.cli import options
from gamlens.cli.common import errors_as_lines, make_lens, say
from gamlens.cli.progress import steps
from gamlens.errors import GamlensError
from gamlens.evaluation import results
from gamlens.report import evaluation as work

app = typer.Typer()


@app.command(epilog="Example:  gamlens report runs/loc runs/adp --model resnet50 --out report.html")
def report(
    runs: options.RunFolders,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page (.html), or its folder.")] = Path("report.html"),
    root: Annotated[Path | None, typer.Option(help="Where the data set lies now, if it moved.")] = None,
    split: options.DatasetSplit = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Draw the maps of cases again with it.")] = None,
    weights: options.WeightsFile = None,
    confidence: options.Confidence = "logit",
    cases: Annotated[int, typer.Option(help="How many best and worst cases.", min=0, max=24)] = 4,
    device: options.DeviceName = None,
) -> None:
    """One self-contained page from runs: tables, curves, paired scatter, object sizes, cases, errors, protocol."""
    with errors_as_lines():
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
