"""A run on disk: run.json says what was measured, rows.parquet holds one row per item, method, n and side."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gamlens._version import __version__
from gamlens.data import Dataset
from gamlens.errors import GamlensError
from gamlens.experiments.protocol import Protocol
from gamlens.lens import Lens

RUN, ROWS = "run.json", "rows.parquet"
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A finished run: its description and its rows."""

    about: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["error"]]


def describe(lens: Lens, dataset: Dataset, protocol: Protocol, items: int) -> dict[str, Any]:
    """What a run is: model, weights, data and its fingerprint, protocol, versions."""
    return {
        "model": lens.name,
        "weights": lens.weights,
        "blocks": list(lens.blocks),
        "embedding": lens.embedding,
        "precision": lens.precision,
        "data": dataset.name,
        "root": dataset.root,
        "fingerprint": dataset.fingerprint(),
        "items": items,
        "protocol": protocol.record(),
        "command": _command(),
        "versions": {"gamlens": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def write(folder: Path, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, then the description; a folder that has run.json is whole."""
    arrow = _arrow()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{ROWS}.{os.getpid()}.part"
        names = dict.fromkeys(name for row in rows for name in row)
        table = arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        try:
            arrow.parquet.write_table(table, beside)
            os.replace(beside, folder / ROWS)
        finally:
            beside.unlink(missing_ok=True)
        (folder / RUN).write_text(json.dumps(about, indent=2, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise GamlensError(f"Cannot write the run to {str(folder)!r}: {error.strerror or error}.") from error


def read(folder: Path) -> Run:
    """A finished run."""
    arrow = _arrow()
    if not (folder / RUN).is_file():
        raise GamlensError(
            f"{str(folder)!r} is not a finished run: {RUN} is missing. Make one: gamlens evaluate --help."
        )
    try:
        about = json.loads((folder / RUN).read_text(encoding="utf-8"))
        return Run(about, arrow.parquet.read_table(folder / ROWS).to_pylist())
    except Exception as error:
        raise GamlensError(f"Cannot read the run in {str(folder)!r}: {type(error).__name__}: {error}") from error


def groups(run: Run) -> Iterator[tuple[tuple[str, int], list[dict[str, Any]]]]:
    """Rows without error, by method and n, in the order they were measured."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in run.rows:
        if not row["error"]:
            found.setdefault((row["method"], row["n"]), []).append(row)
    yield from found.items()


def _command() -> str:
    """What was typed, where this is the command line."""
    program = Path(sys.argv[0])
    ours = program.name.startswith("gamlens") or program.parent.name == "gamlens"
    return shlex.join(["gamlens", *sys.argv[1:]]) if ours else ""


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise GamlensError("Results are Parquet files, which need pyarrow: pip install 'gamlens[eval]'.") from error
    return pyarrow
