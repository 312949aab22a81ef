"""What was measured: a run's description and its rows, as columns by method and n.

On disk a run is a folder: run.json says what it is, parts/ holds Parquet files of one row per item, method, n and side.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gamlens.data import Dataset
from gamlens.engine import ResultRow, RunFolder
from gamlens.engine.jobs import count_errors
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import Protocol
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens

Columns = dict[str, Any]
COLUMN_TYPES: dict[str, str] = {
    "item": "string", "image": "string", "label": "int32", "method": "string", "n": "int16", "side": "string",
    "held_out": "bool", "map_mean": "float", "area": "float", "iou": "[float]", "boxes": "[int16]",
    "truth": "[float]", "pointing": "float", "before_logit": "float", "after_logit": "float",
    "before_probability": "float", "after_probability": "float", "before_similarity": "float",
    "after_similarity": "float", "insertion": "float", "deletion": "float", "error": "string",
}  # fmt: skip

ROW_KEYS = ("item", "method", "n", "error")


@dataclass(frozen=True)
class Run:
    """A finished run: its description, the columns of every method and n, and the rows of items that failed."""

    about: dict[str, Any]
    groups: dict[tuple[str, int], Columns]
    errors: list[ResultRow] = field(default_factory=list)

    @property
    def rows(self) -> list[ResultRow]:
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
        "versions": lens.about["versions"],
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


def collect(about: dict[str, Any], rows: Iterable[ResultRow]) -> Run:
    """A run from rows in memory."""
    rows = list(rows)
    names = [name for name in COLUMN_TYPES if any(name in row for row in rows)]
    return _gather(about, [{name: [row.get(name) for row in rows] for name in names}])


def encode(rows: Sequence[ResultRow]) -> bytes:
    """Rows as a Parquet file. A column that it has no type for is an error: it would be lost."""
    if unknown := {name for row in rows for name in row} - COLUMN_TYPES.keys():
        raise GamlensError(f"No file of results has a column {', '.join(sorted(unknown))}: give it a type.")
    arrow = _arrow()
    schema = arrow.schema([(name, _type(arrow, kind)) for name, kind in COLUMN_TYPES.items()])
    out = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def write(place: str | Path, about: dict[str, Any], rows: Sequence[ResultRow]) -> None:
    """A finished run of one part."""
    with RunFolder(place, {**about, "chunks": 1}, suffix=".parquet", fresh=True) as folder:
        folder.write(0, encode(rows))
        folder.finish({"items": about["items"], "errors": count_errors(rows), "resumed_at": 0})


def read(folder: str | Path, *, only: Sequence[str] | None = None) -> Run:
    """A finished run, part by part; with `only`, no more than these columns of it, for large runs."""
    arrow = _arrow()
    found = RunFolder.finished(folder, make="gamlens evaluate --help")
    wanted = None if only is None else [*ROW_KEYS, *only]
    try:
        tables = (arrow.parquet.ParquetFile(io.BytesIO(part)).read(columns=wanted) for part in found.parts())
        parts = ({name: t.column(name).to_pylist() for name in t.column_names} for t in tables)
        return _gather(found.about, parts, only)
    except (arrow.ArrowException, KeyError, ValueError) as error:
        raise GamlensError(f"Cannot read the run in {str(folder)!r}: {type(error).__name__}: {error}") from error


def errors_in(folder: RunFolder) -> int:
    """How many items failed, over all parts that are written."""
    arrow = _arrow()
    columns = (arrow.parquet.read_table(io.BytesIO(part), columns=["error"]).column("error") for part in folder.parts())
    return sum(bool(error) for column in columns for error in column.to_pylist())


def _gather(about: dict[str, Any], parts: Iterable[Columns], only: Sequence[str] | None = None) -> Run:
    """Columns by method and n, in the order of measuring; each part is packed before the next one comes."""
    groups: dict[tuple[str, int], dict[str, list[Any]]] = {}
    errors: list[ResultRow] = []
    for part in parts:
        names = [name for name in part if name not in ("method", "n", "error") and (only is None or name in only)]
        where: dict[tuple[str, int], list[int]] = {}
        for at, error in enumerate(part.get("error", ())):
            if error:
                errors.append({name: values[at] for name, values in part.items()})
            else:
                where.setdefault((part["method"][at], part["n"][at]), []).append(at)
        for key, places in where.items():
            columns = groups.setdefault(key, {})
            for name in names:
                columns.setdefault(name, []).append(_packed(name, [part[name][at] for at in places]))
    joined = {key: {name: _joined(name, pieces) for name, pieces in columns.items()} for key, columns in groups.items()}
    made = {key: {name: v for name, v in columns.items() if v is not None} for key, columns in joined.items()}
    return Run(about, made, errors)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _packed(name: str, values: list[Any]) -> Any:
    """Some rows of a column: an array (N,) or (N,T), or just N where none has a value; names and the boxes of an item
    stay a list."""
    kind = COLUMN_TYPES[name]
    if all(value is None for value in values):
        return len(values)
    if kind == "string":
        return values
    if kind.startswith("["):
        lists: list[Any] = [value if value is None else np.asarray(value, dtype=np.float32) for value in values]
        return lists if name == "truth" else np.stack(lists)
    if kind == "float":
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array(values)


def _joined(name: str, pieces: list[Any]) -> Any:
    """A whole column of its pieces; None where no row has a value."""
    if all(isinstance(piece, int) for piece in pieces):
        return None
    blank = np.nan if COLUMN_TYPES[name] == "float" else None
    filled = [[blank] * piece if isinstance(piece, int) else piece for piece in pieces]
    if COLUMN_TYPES[name] == "string" or name == "truth":
        return [value for piece in filled for value in piece]
    return np.concatenate([np.asarray(piece) for piece in filled])


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
