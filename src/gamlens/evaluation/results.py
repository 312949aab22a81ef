"""A run in memory and on disk: its description, and what was measured as columns per method and n.

On disk a run is a folder: run.json describes it, and parts/ holds Parquet files with one row per item, method, n and
side.
"""

import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gamlens.data import Dataset
from gamlens.data.plausible import read_parquet
from gamlens.engine import ResultRow, RunFolder
from gamlens.errors import GamlensError
from gamlens.evaluation import run_checks
from gamlens.evaluation.explainers.explainer import Explainer
from gamlens.evaluation.map_rows import MapRow
from gamlens.evaluation.metric_columns import metric_column_types, table_columns
from gamlens.evaluation.protocol import Protocol
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.retrieval.gallery import weights_sha256

Columns = dict[str, Any]
ITEM_COLUMNS: dict[str, str] = {  # the columns that describe an item and its map: {column: Arrow's name of the type}
    "item": "string", "image": "string", "label": "int32", "method": "string", "n": "int16", "side": "string",
    "held_out": "bool", "map_mean": "float64", "area": "float64",
}  # fmt: skip

SUFFIX = ".parquet"  # of the files in parts/
ROW_KEYS = ("item", "method", "n", "error")  # columns that `read` needs, whichever others were asked for


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


def column_types() -> dict[str, str]:
    """The columns of a file of results, in their order: {column: type}.

    They are the columns of the item, of every metric (METRICS), and the error. A type is Arrow's name; in brackets it
    is a list of such values per row.
    """
    own = metric_column_types()
    if taken := [name for name in (*ITEM_COLUMNS, "error") if name in own]:
        raise GamlensError(f"A metric declares the column {taken[0]!r}, which every row has already: rename it.")
    return {**ITEM_COLUMNS, **own, "error": "string"}


def part_columns() -> tuple[str, ...]:
    """The columns of a part with their types, as `run_checks` compares them."""
    return run_checks.columns_of(_schema(run_checks.arrow()))


def describe(lens: Lens, dataset: Dataset, protocol: Protocol, items: int) -> dict[str, Any]:
    """What a run is: model, weights, data and its fingerprint, protocol, versions."""
    about = {
        "model": lens.name,
        "weights": lens.weights,
        "weights_sha256": weights_sha256(lens.model),
        "transform": repr(lens.transform) if isinstance(lens.transform, Transform) else "",
        "blocks": list(lens.blocks),
        "embedding": lens.embedding,
        "precision": lens.precision,
        "device": lens.device.type,
        "data": dataset.name,
        "root": dataset.root,
        "fingerprint": dataset.fingerprint(),
        "images_sha256": dataset.contents(),
        "items": items,
        "protocol": protocol.record(),
        **_explainers(protocol),
        "command": _command(),
        "versions": lens.about["versions"],
    }
    return dict(json.loads(json.dumps(about)))


def _explainers(protocol: Protocol) -> dict[str, Any]:
    """What made the maps of explainers that are not ours, so that a run is not continued with another version."""
    rows = [MapRow.parse(method).resolved() for method in protocol.methods]
    found = {row.name: row.explainer.source for row in rows if isinstance(row.explainer, Explainer)}
    return {"explainers": found} if found else {}


def collect(about: dict[str, Any], rows: Iterable[ResultRow]) -> Run:
    """A run from rows in memory."""
    rows = list(rows)
    check_known(rows)
    names = [name for name in column_types() if any(name in row for row in rows)]
    return _gather(about, [{name: [row.get(name) for row in rows] for name in names}])


def check_known(rows: Sequence[ResultRow]) -> None:
    """Raise a GamlensError if rows have a column that no metric declares, because it would not be stored."""
    if unknown := {name for row in rows for name in row} - column_types().keys():
        raise GamlensError(
            f"A row of results has the column {', '.join(sorted(unknown))}, which no metric declares: add it to the "
            "`columns` of its metric in METRICS."
        )


def encode(rows: Sequence[ResultRow]) -> bytes:
    """Rows as a Parquet file."""
    check_known(rows)
    arrow = run_checks.arrow()
    out = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(list(rows), schema=_schema(arrow)), out)
    return out.getvalue()


def read(folder: str | Path, *, only: Sequence[str] | None = None) -> Run:
    """Read a finished run, part by part; with `only` just these columns, which saves memory on a large run.

    A part that is missing, damaged or replaced is an error. Runs of early versions have no records of their parts:
    they are read twice, first to check what can be known without records.
    """
    arrow = run_checks.arrow()
    found = RunFolder.finished(folder, suffix=SUFFIX, make="gamlens evaluate --help")
    run_checks.check_description(found.about, str(folder))
    if not found.has_records:
        run_checks.check_unrecorded(found)
    wanted = None if only is None else [*ROW_KEYS, *only]
    try:
        return _gather(found.about, (_part(arrow, found, part, wanted) for part in found.parts()), only)
    except GamlensError:
        raise
    except run_checks.unreadable() as error:
        raise GamlensError(f"Cannot read the run in {str(folder)!r}: {type(error).__name__}: {error}") from error


def errors_in(folder: RunFolder) -> int:
    """How many items failed, over all parts that are written."""
    counted = (run_checks.count_items(part) for part in folder.parts())
    return sum(found.errors for found in counted if not isinstance(found, str))


def _part(arrow: Any, folder: RunFolder, part: bytes, wanted: Sequence[str] | None) -> Columns:
    """The columns of one part of a run as lists."""
    return read_parquet(arrow.parquet, io.BytesIO(part), f"A part of {folder.store.place!r}", len(part), wanted)[1]


def _gather(about: dict[str, Any], parts: Iterable[Columns], only: Sequence[str] | None = None) -> Run:
    """Group the rows of parts by method and n, in the order in which they were measured.

    The lists of a part are packed into arrays before the next part is read, which limits the memory.
    """
    groups: dict[tuple[str, int], list[Columns]] = {}
    sizes: dict[tuple[str, int], list[int]] = {}
    errors: list[ResultRow] = []
    types, read_by_tables = column_types(), table_columns()
    texts: dict[str | None, str | None] = {}  # every text once: the rows of an item repeat its name and its image
    for part in parts:
        names = [name for name in part if name not in ("method", "n", "error") and (only is None or name in only)]
        where: dict[tuple[str, int], list[int]] = {}
        for at, error in enumerate(part.get("error", ())):
            if error:
                errors.append({name: values[at] for name, values in part.items()})
            else:
                where.setdefault((part["method"][at], part["n"][at]), []).append(at)
        for key, places in where.items():
            piece: Columns = {}
            for name in names:
                values, kind = [part[name][at] for at in places], types.get(name, "")
                if kind == "string":
                    values = [texts.setdefault(value, value) for value in values]
                if any(value is not None for value in values):
                    piece[name] = _packed(values, kind, stack=name in read_by_tables)
            groups.setdefault(key, []).append(piece)
            sizes.setdefault(key, []).append(len(places))
    return Run(about, {key: _joined(pieces, sizes[key]) for key, pieces in groups.items()}, errors)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _packed(values: list[Any], kind: str, *, stack: bool) -> list[Any] | np.ndarray[Any, Any]:
    """Convert N values of a column, at least one of them not None, to an array if possible.

    Args:
        values: One value per row; None where it is missing.
        kind: The type of the column, as in `column_types`.
        stack: Whether tables read the column. Lists then have one length and become an array (N,T).

    Returns:
        An array (N,) for numbers or (N,T) for stacked lists, with NaN for None. Lists that are not stacked may differ
        in length and become a list of arrays; texts stay a list.
    """
    if kind.startswith("[") and stack:
        width = len(next(value for value in values if value is not None))
        rows = [[np.nan] * width if value is None else value for value in values]
        return np.array(rows, dtype=np.float64 if "64" in kind else np.float32)
    if kind.startswith("["):
        return [value if value is None else np.asarray(value, dtype=np.float32) for value in values]
    if kind in ("string", ""):  # "": the column of a metric that is not in METRICS now
        return values
    return np.array(values, dtype=np.float64 if stack or kind.startswith("float") else None)


def _joined(pieces: list[Columns], sizes: list[int]) -> Columns:
    """Concatenate the columns of several parts; `sizes` are their numbers of rows.

    Rows of a part that does not have a column get NaN, or None if the column is a list.
    """
    found: Columns = {}
    for name in dict.fromkeys(name for piece in pieces for name in piece):
        known = next(piece[name] for piece in pieces if name in piece)
        if isinstance(known, list):
            lists = (piece.get(name, [None] * size) for piece, size in zip(pieces, sizes, strict=True))
            found[name] = list(chain.from_iterable(lists))
        else:
            row = np.full((1, *known.shape[1:]), np.nan)
            arrays = (piece.get(name, row.repeat(size, axis=0)) for piece, size in zip(pieces, sizes, strict=True))
            found[name] = np.concatenate(list(arrays), dtype=known.dtype, casting="unsafe")
    return found


def _schema(arrow: Any) -> Any:
    return arrow.schema([(name, _type(arrow, kind)) for name, kind in column_types().items()])


def _type(arrow: Any, kind: str) -> Any:
    plain = arrow.type_for_alias(kind.strip("[]"))
    return arrow.list_(plain) if kind.startswith("[") else plain


def _command() -> str:
    """The command that was typed, or nothing if Python code made the run."""
    program = Path(sys.argv[0])
    ours = program.name.startswith("gamlens") or program.parent.name == "gamlens"
    return shlex.join(["gamlens", *sys.argv[1:]]) if ours else ""
