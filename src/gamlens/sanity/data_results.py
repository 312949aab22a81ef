"""The files that data randomisation writes: tables, and a sheet of digits with the maps of the three networks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gamlens import render
from gamlens.evaluation.table_files import TextTable, write_files
from gamlens.metrics import SIMILARITIES
from gamlens.sanity.compared_maps import title
from gamlens.sanity.data_randomisation import DIGIT_MEAN, DIGIT_STD, Trial, passes, summary
from gamlens.sanity.parameter_results import in_words

NETWORKS = {"true": "true", "true, another seed": "true, 2nd", "random": "random"}  # {network: short name}
DIGIT_SIDE = 168


def accuracy_table(trials: Sequence[Trial]) -> TextTable:
    """One line per seed: training accuracy, epochs, and accuracy on unseen digits of each network."""
    header = ("seed", *(f"{name} labels" for name in NETWORKS))
    lines = [
        (str(trial.seed), *(f"{100 * trial.accuracy[name]:.1f} % in {trial.epochs[name]} epochs; "
                            f"unseen {100 * trial.unseen[name]:.1f} %" for name in NETWORKS))
        for trial in trials
    ]  # fmt: skip
    return header, lines


def similarity_table(trials: Sequence[Trial]) -> TextTable:
    """One line per method and seed: similarity to the maps of the random-label / of the second true-label network."""
    lines = []
    for method in trials[0].maps["true"]:
        for trial in trials:
            mine = [line for line in trial.lines if line.method == method]
            cells = (
                f"{line.random.mean:.3f} / {line.true.mean:.3f} ({line.difference.low:+.3f} to "
                f"{line.difference.high:+.3f}; other digits {line.others:.3f})"
                for line in mine
            )
            lines.append((title(method), str(trial.seed), *cells, in_words(mine)))
    return ("method", "seed", *(entry.title for entry in SIMILARITIES.values()), "verdict"), lines


def brief_table(trials: Sequence[Trial]) -> TextTable:
    """One line per method, for the terminal: the two similarities of `similarity_table`, averaged over seeds."""
    lines, compared = [], [line for trial in trials for line in trial.lines]
    for method in trials[0].maps["true"]:
        cells = []
        for measure in SIMILARITIES:
            mine = [line for line in compared if (line.method, line.measure) == (method, measure)]
            random, true = (sum(getattr(line, side).mean for line in mine) / len(mine) for side in ("random", "true"))
            cells.append(f"{random:.2f} / {true:.2f}")
        lines.append((title(method), *cells, "passes" if passes(trials, method) else "fails"))
    return ("method", *(entry.title for entry in SIMILARITIES.values()), "verdict"), lines


def sheet(trial: Trial, *, digits: int = 6) -> Image.Image:
    """A picture of the first digits and their maps, one row per method and network."""
    shown = trial.digits[:digits, 0].numpy() * DIGIT_STD + DIGIT_MEAN
    rows = {"digit": tuple(render.Panel(_large(digit, "gray")) for digit in shown)}
    for method in trial.maps["true"]:
        for network, short in NETWORKS.items():
            maps = trial.maps[network][method][:digits].numpy()
            rows[f"{title(method)}: {short}"] = tuple(render.Panel(_large(values, "ember")) for values in maps)
    grid = render.Grid(tuple(rows.values()), labels=tuple(rows), title=f"LeNet-5, seed {trial.seed}")
    return render.draw(grid, cell=DIGIT_SIDE)


def write(trials: Sequence[Trial], folder: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write sanity.json, table.md, accuracy.csv, table.csv and maps.png into `folder`; returns the files."""
    tables = {"accuracy.csv": accuracy_table(trials), "table.csv": similarity_table(trials)}
    texts = {"sanity.json": json.dumps(summary(trials, about), indent=2)}
    return write_files(folder, texts, {"maps.png": sheet(trials[0])}, tables)


def _large(values: np.ndarray[Any, Any], cmap: str) -> Image.Image:
    picture = Image.fromarray(render.colorize(values.clip(0, 1), cmap=cmap))
    return picture.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.NEAREST)
