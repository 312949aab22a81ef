"""What was measured: a run's description and its rows, as columns by method and n.

On disk a run is a folder: run.json says what it is, parts/ holds Parquet files of one row per item, method, n and side.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gamlens._version import __version__
from gamlens.data import Dataset
from gamlens.engine import RunFolder
from gamlens.errors import GamlensError
from gamlens.experiments.protocol import Protocol
from gamlens.geometry import Transform
from gamlens.lens import Lens

Row = dict[str, Any]
Columns = dict[str, Any]
KINDS: dict[str, str] = {
    "item": "string", "image": "string", "label": "int32", "method": "string", "n": "int16", "side": "string",
    "held_out": "bool", "map_mean": "float", "area": "float", "iou": "[float]", "boxes": "[int16]",
    "truth": "[float]", "pointing": "float", "before_logit": "float", "after_logit": "float",
    "before_probability": "float", "after_probability": "float", "before_similarity": "float",
    "after_similarity": "float", "insertion": "float", "deletion": "float", "error": "string",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A finished run: its description, the columns of every method and n, and the rows of items that failed."""

    about: dict[str, Any]
    groups: dict[tuple[str, int], Columns]
    errors: list[Row] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """Every row as a dict; for small runs and for looking at single items."""
        return list(self.errors) + [
            {"method": method, "n": n, "error": "", **{name: _plain(values[at]) for name, values in columns.items()}}
            for (method, n), columns in self.groups.items()
            for at in range(len(columns["item"]))
        ]


def describe(lens: Lens, dataset: Dataset, protocol: Protocol, items: int) -> dict[str, Any]:
    """What a run is: model, weights, data and its fingerprint, protocol, versions."""
    about = {
        "model": lens.name,
        "weights": lens.weights,
        "weights_sha256": digest(lens.model),
        "transform": repr(lens.transform) if isinstance(lens.transform, Transform) else "",
        "blocks": list(lens.blocks),
        "embedding": lens.embedding,
        "precision": lens.precision,
        "data": dataset.name,
        "root": dataset.root,
        "fingerprint": dataset.fingerprint(),
        "images_sha256": dataset.contents(),
        "items": items,
        "protocol": protocol.record(),
        "command": _command(),
        "versions": {"gamlens": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    return dict(json.loads(json.dumps(about)))


def digest(module: torch.nn.Module) -> str:
    """sha256 over names and values: a model trained anew is another one, whatever its file is called."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            found.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def collect(about: dict[str, Any], rows: Iterable[Row]) -> Run:
    """A run from rows in memory."""
    rows = list(rows)
    names = [name for name in KINDS if any(name in row for row in rows)]
    return _gather(about, [{name: [row.get(name) for row in rows] for name in names}])


def encode(rows: Sequence[Row]) -> bytes:
    """Rows as a Parquet file."""
    arrow = _arrow()
    schema = arrow.schema([(name, _type(arrow, kind)) for name, kind in KINDS.items()])
    out = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def write(place: str | Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """A finished run of one part."""
    with RunFolder(place, {**about, "chunks": 1}, suffix=".parquet", fresh=True) as folder:
        folder.write(0, encode(rows))
        failed = sum(bool(row["error"]) for row in rows)
        folder.finish({"items": about["items"], "errors": failed, "resumed_at": 0})


def read(folder: str | Path) -> Run:
    """A finished run."""
    arrow = _arrow()
    found = RunFolder.finished(folder, make="gamlens evaluate --help")
    try:
        tables = (arrow.parquet.read_table(io.BytesIO(part)) for part in found.parts())
        return _gather(found.about, ({name: t.column(name).to_pylist() for name in t.column_names} for t in tables))
    except (arrow.ArrowException, KeyError, ValueError) as error:
        raise GamlensError(f"Cannot read the run in {str(folder)!r}: {type(error).__name__}: {error}") from error


def _gather(about: dict[str, Any], parts: Iterable[Columns]) -> Run:
    """Columns by method and n, in the order of measuring."""
    groups: dict[tuple[str, int], dict[str, list[Any]]] = {}
    errors: list[Row] = []
    for part in parts:
        names = [name for name in part if name not in ("method", "n", "error")]
        where: dict[tuple[str, int], list[int]] = {}
        for at, error in enumerate(part.get("error", ())):
            if error:
                errors.append({name: values[at] for name, values in part.items()})
            else:
                where.setdefault((part["method"][at], part["n"][at]), []).append(at)
        for key, places in where.items():
            columns = groups.setdefault(key, {})
            for name in names:
                columns.setdefault(name, []).extend(_packed(part[name][at]) for at in places)
    return Run(about, {key: _arrays(columns) for key, columns in groups.items()}, errors)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _packed(value: Any) -> Any:
    return np.asarray(value, dtype=np.float32) if isinstance(value, list) else value


def _arrays(columns: dict[str, list[Any]]) -> Columns:
    """Arrays (N,) or (N,T) of the columns that have values; names and the boxes of an item stay lists."""
    made: Columns = {}
    for name, values in columns.items():
        if all(value is None for value in values):
            continue
        if KINDS[name] == "string" or name == "truth":
            made[name] = values
        elif KINDS[name].startswith("["):
            made[name] = np.stack(values)
        elif KINDS[name] == "float":
            made[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        else:
            made[name] = np.array(values)
    return made


def _type(arrow: Any, kind: str) -> Any:
    plain = {"float": "float64", "[float]": "float32", "[int16]": "int16", "bool": "bool_"}.get(kind, kind)
    made = getattr(arrow, plain)()
    return arrow.list_(made) if kind.startswith("[") else made


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
