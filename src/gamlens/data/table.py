"""A user's own table, CSV or Parquet, with the columns path and label, and for boxes x0, y0, x1 and y1."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gamlens.data.plausible import read_parquet
from gamlens.data.reading import AnyPath, cut, import_extra, read_as, rows, size_if_readable
from gamlens.data.sample import Box, Dataset, Sample
from gamlens.errors import GamlensError

BOX_COLUMNS = ("x0", "y0", "x1", "y1")
READ_COLUMNS = ("path", "label", "split", *BOX_COLUMNS)  # other columns of a Parquet file are not read
TableRow = Mapping[str, Any]
MOST_CLASS_NAMES = 10**6  # every class index has a name in memory


def table(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """One sample per path, sorted by path; several rows of one path are several boxes or labels.

    Args:
        root: The file of the table. The paths in it are relative to its folder. Labels are class indices, or names,
            which are sorted and numbered from 0. An empty label means no label, and empty corners mean no box.
        split: Only rows with this value in the column `split` are read.
        limit: The largest number of samples: the first ones by path. None for all.
    """
    path = Path(root)
    records = _records(path, ("path", "label") if split is None else ("path", "label", "split"))
    labels, classes = _labels([row.get("label") for row in records], path)
    chosen: dict[str, list[tuple[TableRow, int | None]]] = {}
    for row, label in zip(records, labels, strict=True):
        if split is None or str(row["split"]) == split:
            chosen.setdefault(str(row["path"]), []).append((row, label))
    if not chosen:
        raise GamlensError(
            f"None of the {len(records)} rows of {str(path)!r} is of the split {split!r}: give another split, or none."
        )
    samples = tuple(_sample(path, name, chosen[name]) for name in cut(sorted(chosen), limit))
    return Dataset("table", str(root), classes, samples)


def _records(path: Path, needed: tuple[str, ...]) -> list[TableRow]:
    """The rows as {column: cell}; a missing column and an empty path are errors."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise GamlensError(f"A table is a .csv or .parquet file; found {found} at {str(path)!r}.")
    columns, records = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
    corners = BOX_COLUMNS if any(name in columns for name in BOX_COLUMNS) else ()
    missing = [name for name in (*needed, *corners) if name not in columns]
    if missing:
        raise GamlensError(
            f"{str(path)!r} has no column {', '.join(map(repr, missing))}: expected {', '.join(needed)} and, for "
            f"boxes, x0, y0, x1, y1; found {', '.join(columns) or 'none'}."
        )
    empty = next((number for number, row in enumerate(records, start=1) if _blank(row["path"])), None)
    if empty:
        raise GamlensError(f"Row {empty} of {str(path)!r} has no path: name an image file in it, or take it out.")
    return records


def _csv(path: Path) -> tuple[list[str], list[TableRow]]:
    lines = rows(path)
    columns = [cell.strip() for cell in lines[0]] if lines else []
    odd = next((number for number, line in enumerate(lines, start=1) if len(line) != len(columns)), None)
    if odd:
        raise GamlensError(
            f"Row {odd} of {str(path)!r} has {len(lines[odd - 1])} cells, the header {len(columns)}: put cells that "
            "hold a comma in quotes."
        )
    return columns, [dict(zip(columns, (cell.strip() for cell in line), strict=True)) for line in lines[1:]]


def _parquet(path: Path) -> tuple[list[str], list[TableRow]]:
    reader = import_extra("pyarrow.parquet", "Reading Parquet")
    with read_as("Parquet", path, OSError, ValueError):  # pyarrow's own errors are both
        names, columns = read_parquet(reader, str(path), repr(str(path)), path.stat().st_size, READ_COLUMNS)
        return names, [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _labels(cells: Sequence[Any], path: Path) -> tuple[list[int | None], tuple[str, ...]]:
    """Return the class index of each cell, and the class names.

    If all cells are whole numbers, these are the class indices, and the names are the numbers as text. Otherwise the
    sorted texts of the cells are the class names. The index of an empty cell is None.
    """
    numbers = [_whole(cell) for cell in cells]
    if any(number is None and not _blank(cell) for number, cell in zip(numbers, cells, strict=True)):
        names = sorted({str(cell) for cell in cells if not _blank(cell)})
        index = {name: number for number, name in enumerate(names)}
        return [None if _blank(cell) else index[str(cell)] for cell in cells], tuple(names)
    known = [number for number in numbers if number is not None]
    if (least := min(known, default=0)) < 0:
        raise GamlensError(
            f"{str(path)!r} has the label {least}, and class indices count from 0: leave the cell empty for no label."
        )
    if (largest := max(known, default=-1)) >= MOST_CLASS_NAMES:
        raise GamlensError(
            f"{str(path)!r} has the label {largest}, and class indices go up to {MOST_CLASS_NAMES - 1:,}: give names "
            "of classes, or their indices in the model's output."
        )
    return numbers, tuple(str(number) for number in range(largest + 1))


def _sample(path: Path, name: str, given: Sequence[tuple[TableRow, int | None]]) -> Sample:
    image = path.parent / name
    if not image.is_file():
        raise GamlensError(f"{str(path)!r} names the image {name!r}, which is missing: expected at {str(image)!r}.")
    cells = [([row.get(corner) for corner in BOX_COLUMNS], label) for row, label in given]
    where = f"the box of {name!r} in {str(path)!r}"
    boxes = tuple(_box(corners, label, where) for corners, label in cells if not all(map(_blank, corners)))
    labels = tuple(sorted({label for _, label in given if label is not None}))
    return Sample(name, str(image), labels, boxes, size_if_readable(image) if boxes else None)


def _box(cells: Sequence[Any], label: int | None, what: str) -> Box:
    try:
        x0, y0, x1, y1 = (float(cell) for cell in cells)
    except (TypeError, ValueError):
        x0 = y0 = x1 = y1 = math.nan
    if label is None or not (x0 < x1 and y0 < y1):
        raise GamlensError(
            f"Cannot use {what}: expected a label and numbers with x0 < x1 and y0 < y1; found label {label} and "
            f"{cells}. Correct the row, or leave all four corners empty."
        )
    return Box(label, x0, y0, x1, y1)


def _blank(cell: Any) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _whole(cell: Any) -> int | None:
    """The cell as an integer; None where it is not a whole number."""
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
