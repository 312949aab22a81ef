"""What was measured: a run's description and its rows, as columns by method and n.

On disk a run is a folder: run.json says what it is, parts/ holds Parquet files of one row per item, method, n and side.
"""

import hashlib
import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gamlens.data import Dataset
from gamlens.data.reading import import_extra
from gamlens.engine import ResultRow, RunFolder
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import Protocol
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens

Columns = dict[str, Any]
COLUMN_TYPES: dict[str, str] = {  # by Arrow's names; in brackets: a list of such values per row
    "item": "string", "image": "string", "label": "int32", "method": "string", "n": "int16", "side": "string",
    "held_out": "bool", "map_mean": "float64", "area": "float64", "iou": "[float32]", "boxes": "[int16]",
    "truth": "[float32]", "pointing": "float64", "before_logit": "float64", "after_logit": "float64",
    "before_probability": "float64", "after_probability": "float64", "before_similarity": "float64",
    "after_similarity": "float64", "insertion": "float64", "deletion": "float64", "error": "string",
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
    known: set[tuple[tuple[str, int], str]] = set()  # the columns of which a row has a value
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
                values = [part[name][at] for at in places]
                columns.setdefault(name, []).append(_packed(name, values))
                if any(value is not None for value in values):
                    known.add((key, name))
    made = {
        key: {name: _joined(pieces) for name, pieces in columns.items() if (key, name) in known}
        for key, columns in groups.items()
    }
    return Run(about, made, errors)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _packed(name: str, values: list[Any]) -> list[Any] | np.ndarray[Any, Any]:
    """Some rows of a column: an array (N,) or (N,T), with NaN for numbers that are missing; names and the boxes of an
    item stay a list.
    """
    kind = COLUMN_TYPES[name]
    if name == "truth":
        return [value if value is None else np.asarray(value, dtype=np.float32) for value in values]
    if kind == "string":
        return values
    return np.array(values, dtype=np.float32 if kind.startswith("[") else np.float64 if kind == "float64" else None)


def _joined(pieces: list[Any]) -> Any:
    return np.concatenate(pieces) if isinstance(pieces[0], np.ndarray) else list(chain.from_iterable(pieces))


def _type(arrow: Any, kind: str) -> Any:
    plain = arrow.type_for_alias(kind.strip("[]"))
    return arrow.list_(plain) if kind.startswith("[") else plain


def _command() -> str:
    """What was typed, where this is the command line."""
    program = Path(sys.argv[0])
    ours = program.name.startswith("gamlens") or program.parent.name == "gamlens"
    return shlex.join(["gamlens", *sys.argv[1:]]) if ours else ""


def _arrow() -> Any:
    import_extra("pyarrow.parquet", "A run, whose results are Parquet files,")
    return import_module("pyarrow")
