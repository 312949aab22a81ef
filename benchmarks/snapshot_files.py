"""Further cases of `snapshot.py`: the files that results and commands write."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import real
from PIL import Image
from snapshot_cases import Case, subject


def files() -> Iterator[Case]:
    own = subject("efficientnet_lite0")

    def written(result: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            result.save(folder)
            return {**read(Path(folder), pictures=True), "loaded": type(result).load(folder)}

    yield "files/explanation n=2", lambda: written(own.lens.classify(own.files[:2], [[1, 2], None], n=2))
    yield "files/tensor n=1", lambda: written(own.lens.classify(own.inputs(1), n=1))
    yield "files/pair n=2", lambda: written(own.lens.compare(own.files[0], own.files[1], n=2))


def commands() -> Iterator[Case]:
    """Cases of the command line, on the bundled model and a few photos, and the files it writes."""
    own, ilsvrc, voc = subject("efficientnet_lite0"), ("--root", str(real.DATA / "ILSVRC")), real.DATA / "VOCdevkit"
    few = [str(file) for file, _ in real.samples("ILSVRC")[:6]]
    runs = {
        "localization": ("localization", *ilsvrc, "--limit", "10", "--hold-out", "3"),
        "objective": ("objective", *ilsvrc, "--limit", "4", "--methods", "gam,grad_cam", "-n", "2", "--curves", "2"),
        "pairs": (
            "objective",
            *ilsvrc,
            "--limit",
            "5",
            "--task",
            "cosine",
            "--methods",
            "gam,vdsn",
            "--masked",
            "both",
        ),
        "dot": ("objective", *ilsvrc, "--limit", "3", "--task", "dot", "--pairs", "neighbour", "--methods", "gam"),
        "views": (
            "localization",
            *ilsvrc,
            "--limit",
            "4",
            "--views",
            "flip,1.43",
            "--box",
            "largest",
            "--input",
            "crop",
        ),
        "segmentation": (
            "segmentation",
            "--data",
            "voc",
            "--root",
            str(voc),
            "--limit",
            "5",
            "--methods",
            "gam,grad_cam",
        ),
    }
    for name, arguments in runs.items():
        yield f"evaluate/{name}", partial(evaluated, arguments)
    yield (
        "ablate",
        partial(command, "ablate", *ilsvrc, "--limit", "5", "--methods", "gam", "-n", "1,3", out=True),
    )
    for name, more in (("parameters", ()), ("pairs", ("--pairs",))):
        chosen = ("--methods", "gam" if more else "gam,input_gradient", *more)
        yield f"sanity/{name}", partial(command, "sanity", "parameters", *few[:4], *chosen, out=True)
    yield "command/classify", partial(command, "classify", *few[:2], "-t", "3", "-t", "tench", "--json", out=True)
    yield "command/compare", partial(command, "compare", *few[:2], "--score", "dot", "--json", out=True)
    yield (
        "command/search",
        partial(command, "search", few[0], "--in", *own.files[:1], "--in", few[1], "--json", out=True),
    )
    yield "command/blocks", partial(command, "blocks", "densenet201", out=False)


def evaluated(arguments: Sequence[str]) -> dict[str, Any]:
    """The files of an evaluation, and the tables made from it."""
    with tempfile.TemporaryDirectory() as folder:
        said("evaluate", *arguments, "-o", f"{folder}/run")
        said("table", f"{folder}/run", "-o", f"{folder}/table")
        return read(Path(folder))


def command(*arguments: str, out: bool) -> dict[str, Any]:
    """What a command prints (unless it is a drawn table), and the files it writes."""
    with tempfile.TemporaryDirectory() as folder:
        text = said(*arguments, *(("-o", folder) if out else ()))
        found = _without(folder, json.loads(text) if "--json" in arguments else text)
        return {"said": found if "--json" in arguments or not out else ""} | read(Path(folder))


def said(*arguments: str) -> str:
    """Run `gamlens ARGUMENTS` in this process and return its standard output. Raises an error if it fails."""
    from gamlens.__main__ import main

    text = io.StringIO()
    with mock.patch.object(sys, "argv", ["gamlens", *arguments]), contextlib.redirect_stdout(text):
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"gamlens {' '.join(arguments)} ended with {stop.code}: {text.getvalue()}") from stop
    return text.getvalue()


def read(folder: Path, *, pictures: bool = False) -> dict[str, Any]:
    """The contents of the files below a folder: JSON, Parquet, CSV, text and arrays; with `pictures` also pixels."""
    readers: dict[str, Callable[[Path], Any]] = {
        ".json": lambda file: json.loads(file.read_text()),
        ".csv": lambda file: list(csv.DictReader(io.StringIO(file.read_text()))),
        ".md": lambda file: file.read_text(),
        ".tex": lambda file: file.read_text(),
        ".npz": _arrays,
        ".parquet": _rows,
    }
    if pictures:
        readers[".png"] = lambda file: np.array(Image.open(file))
    kept = (file for file in sorted(folder.rglob("*")) if file.suffix in readers)
    return {str(file.relative_to(folder)): _without(str(folder), readers[file.suffix](file)) for file in kept}


def _without(folder: str, value: Any) -> Any:
    """The value with the folder's own name removed from every text."""
    if isinstance(value, str):
        return value.replace(folder, "")
    if isinstance(value, dict):
        return {key: _without(folder, item) for key, item in value.items()}
    return [_without(folder, item) for item in value] if isinstance(value, list) else value


def _arrays(file: Path) -> dict[str, Any]:
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _rows(file: Path) -> dict[str, Any]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(file)
    return {"schema": [f"{field.name}: {field.type}" for field in table.schema], "rows": table.to_pylist()}
