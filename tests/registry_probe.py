"""Puts a made-up entry into every registry, then looks where the entries arrive. Run by test_registries.py.

It is a process of its own, because the help of commands is made from the registries when they are imported. The last
line that it prints is a JSON object: {registry: {place: whether the entry arrived there}}.
"""

import json
import runpy
import sys
import warnings
from pathlib import Path

import nets
import numpy as np
import torch
from PIL import Image

from gamlens import DATASETS, METHODS, METRICS, MODELS, GamlensWarning
from gamlens.data import Box, Dataset, DatasetEntry, Sample
from gamlens.figures import FIGURES, Figure, FigureRequest
from gamlens.figures.panels import photo
from gamlens.methods import Method
from gamlens.metrics import Metric
from gamlens.models import Network
from gamlens.render import Grid
from gamlens.scores import PAIR_SCORES, PairScore

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(sys.argv[1])
SIDE = 64
COMMANDS = ("classify", "compare", "search", "evaluate", "ablate", "figure", "blocks", "studio", "subset")
METHOD, METRIC, SCORE, DATA, MODEL, FIGURE = (
    f"probe_{name}" for name in ["method", "metric", "score", "data", "model", "figure"]
)


def brightest(activation: torch.Tensor) -> torch.Tensor:
    """The largest activation of each position."""
    return activation.amax(dim=1)


def first_pixel(maps: torch.Tensor, truths: list[torch.Tensor]) -> torch.Tensor:
    """The value of the first pixel."""
    return maps[:, 0, 0]


def nearness(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One over one plus the squared distance."""
    return 1 / (1 + (x - y).square().sum(dim=1))


def read_photos(root: object, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """Photos of two classes, with one box each."""
    boxes = [(Box(number % 2, 8, 8, 40, 40),) for number in range(6)]
    samples = [Sample(f"{n}.png", str(FOLDER / f"{n}.png"), (n % 2,), boxes[n]) for n in range(6)]
    return Dataset(DATA, str(root), ("ant", "bee"), tuple(samples[:limit]))


def build(*, weights: object = None) -> Network:
    """A tiny network."""
    labels = ("ant", "bee", *(f"thing {number}" for number in range(nets.CLASSES - 2)))
    return Network(nets.small().float(), MODEL, "given", size=(SIDE, SIDE), labels=labels)


def show_photo(request: FigureRequest) -> Grid:
    """The first photo."""
    return Grid(((photo(request.trace(request.examples[0]).explain()),),))


def enter() -> None:
    METHODS[METHOD] = Method(brightest, "block", "Probe-CAM", needs_gradient=False)
    METRICS[METRIC] = Metric.on_boxes(first_pixel, "Probe metric", "up", column="probe_column")
    PAIR_SCORES[SCORE] = PairScore(nearness, "Probe score", positive=True)
    DATASETS[DATA], MODELS[MODEL] = DatasetEntry(read_photos, "Probe photos", ("boxes",)), build
    FIGURES[FIGURE] = Figure(show_photo, "a probe of figures")


def photos() -> list[str]:
    draw = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(draw.integers(0, 255, (80, 96, 3), dtype=np.uint8)).save(FOLDER / f"{number}.png")
    return [str(FOLDER / f"{number}.png") for number in range(6)]


def look() -> dict[str, dict[str, bool]]:
    import gradio as gr
    from typer.testing import CliRunner

    from gamlens.cli import app
    from gamlens.evaluation import results
    from gamlens.studio import widgets

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        if done.exit_code:
            raise SystemExit(f"{' '.join(words)}: {done.output} {done.exception!r}")
        return done.output

    def described(text: str, *names: str) -> bool:
        return all(name in text for name in names)

    files, out = photos(), {name: str(FOLDER / name) for name in ("why", "loc", "pairs", "tables", "page", "ablation")}
    model = ("--model", MODEL)
    data = ("--data", DATA, "--root", str(FOLDER))
    helps = {name: run(name, "--help") for name in COMMANDS}
    asked = ("--method", METHOD, "-n", "1")
    classified = run("classify", files[0], *model, *asked, "--out", out["why"], "--json")
    compared = run("compare", *files[:2], *model, *asked, "--score", SCORE, "--out", out["why"], "--json")
    found = run("search", files[0], "--in", str(FOLDER), *model, *asked, "--score", SCORE, "--out", out["why"])
    methods = ("--methods", f"gam,{METHOD}", "--n", "1", "--hold-out", "2")
    run("evaluate", "localization", *data, *model, *methods, "--out", out["loc"])
    run("evaluate", "localization", *data, *model, *methods, "--task", SCORE, "--out", out["pairs"])
    rows, pair_rows = results.read(out["loc"]), results.read(out["pairs"])
    printed = run("table", out["loc"], out["pairs"], "--out", out["tables"])
    table = Path(out["tables"], "table.md").read_text()
    run("report", out["loc"], "--out", str(FOLDER / "report.html"))
    report = (FOLDER / "report.html").read_text()
    run("ablate", *data, *model, "--methods", METHOD, "--n", "1", "--fusions", "mean", "--out", out["ablation"])
    ablation = Path(out["ablation"], "table.md").read_text()
    run("figure", FIGURE, files[0], *model, "--out", str(FOLDER / "figure.png"))
    with gr.Blocks():
        menus = widgets.control_widgets("pair")
    docs = runpy.run_path(str(ROOT / "docs" / "reference.py"))["page"]()
    return {
        "METHODS": {
            "help": all(METHOD in helps[name] for name in ("classify", "compare", "search", "evaluate", "ablate")),
            "classify": json.loads(classified)[0]["about"]["method"] == METHOD,
            "compare": json.loads(compared)["about"]["method"] == METHOD,
            "search": "0.png" in found,
            "evaluation": (METHOD, 1) in rows.groups,
            "table": "Probe-CAM" in table,
            "report": "Probe-CAM" in report,
            "ablation": "Probe-CAM" in ablation,
            "studio": ("Probe-CAM", METHOD) in menus["method"].choices,
            "docs": described(docs, METHOD, "Probe-CAM", "The largest activation"),
        },
        "METRICS": {
            "help": "Probe metric" in helps["evaluate"],
            "evaluation": "probe_column" in rows.groups[METHOD, 1],
            "parquet": "probe_column" in parquet_columns(Path(out["loc"])),
            "printed": "Probe metric" in printed,
            "table": "Probe metric" in table,
            "report": "Probe metric" in report,
            "ablation": "Probe metric" in ablation,
            "docs": described(docs, METRIC, "Probe metric", "The value of the first pixel"),
        },
        "PAIR_SCORES": {
            "help": all(SCORE in helps[name] for name in ("compare", "search", "figure")),
            "task": SCORE in helps["evaluate"],
            "compare": json.loads(compared)["about"]["score"] == SCORE,
            "search": SCORE in found,
            "evaluation": pair_rows.about["protocol"]["task"] == SCORE and (METHOD, 1) in pair_rows.groups,
            "table": SCORE in table,
            "studio": ("Probe score", SCORE) in menus["score"].choices,
            "docs": described(docs, SCORE, "Probe score", "One over one plus"),
        },
        "DATASETS": {
            "help": all(DATA in helps[name] for name in ("evaluate", "ablate", "figure", "subset"))
            and "Probe photos" in helps["evaluate"],
            "evaluation": rows.about["data"] == DATA and DATA in table,
            "docs": described(docs, DATA, "Photos of two classes"),
        },
        "MODELS": {
            "help": all(MODEL in helps[name] for name in ("classify", "blocks", "evaluate", "studio")),
            "blocks": "embedding" in run("blocks", MODEL),
            "evaluation": rows.about["model"] == MODEL and MODEL in table,
            "docs": described(docs, MODEL, "A tiny network"),
        },
        "FIGURES": {
            "help": described(helps["figure"], FIGURE, "a probe of figures"),
            "figure": (FOLDER / "figure.png").exists(),
            "docs": described(docs, FIGURE, "a probe of figures"),
        },
    }


def parquet_columns(run: Path) -> list[str]:
    from pyarrow import parquet

    return list(parquet.read_schema(next(run.rglob("*.parquet"))).names)


if __name__ == "__main__":
    warnings.simplefilter("ignore", GamlensWarning)
    enter()
    print(json.dumps(look()))
