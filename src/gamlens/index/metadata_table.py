"""A user's table of columns by which images are filtered, such as prices, as CSV."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from gamlens.data.reading import text
from gamlens.errors import GamlensError, readable
from gamlens.index.catalogue import check_column
from gamlens.index.image_listing import absolute

KEYS = ("path", "file", "filename", "image")  # columns that name the image; the first of them that a table has
WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,17})")  # not 007, which is a code
OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
MetadataValue = int | float | str | None
NO_KINDS: Mapping[str, type] = {}


def read_metadata(
    table: str | os.PathLike[str], files: Sequence[str], kinds: Mapping[str, type] = NO_KINDS
) -> tuple[dict[str, dict[str, MetadataValue]], list[str]]:
    """Read a CSV file with one row per image.

    A column `path` (or file, filename, image) names the image: a path that is absolute or relative to the table's
    folder, or the end of a path, such as the file's name. A column whose cells are all numbers holds numbers; an empty
    cell has no value. Whole numbers of more than 18 digits, such as some codes, stay text. A column that the index has
    already holds what it held there.

    Args:
        table: The file.
        files: The images of the index, as absolute paths.
        kinds: Whether a column of the index holds text (str) or numbers (float), as `Catalogue.kinds` says.

    Returns:
        {path: {column: value}}, and the names of those rows that are of no image in `files`.
    """
    name = readable(os.fspath(table))
    lines = _rows(Path(table))
    header = [cell.strip() for cell in lines[0]] if lines else []
    key = next((column for column in KEYS if column in header), None)
    if key is None:
        raise GamlensError(
            f"{name!r} has no column that names images ({', '.join(KEYS)}): found {', '.join(header[:20]) or 'none'}."
        )
    if odd := next((number for number, line in enumerate(lines, start=1) if len(line) != len(header)), None):
        raise GamlensError(
            f"Row {odd} of {name!r} has {len(lines[odd - 1])} cells, and the header {len(header)}: put cells that hold "
            "a comma in quotes."
        )
    if twice := next((column for column in header if header.count(column) > 1), None):
        raise GamlensError(f"{name!r} has two columns {twice!r}: rename one of them.")
    columns = [column for column in header if column != key]
    for column in columns:
        check_column(column, columns)
    body = lines[1:]
    cells = {column: [line[header.index(column)].strip() for line in body] for column in columns}
    known = {column.casefold(): kind for column, kind in kinds.items()}
    values = {column: _as_before(column, cells[column], known.get(column.casefold()), name) for column in columns}
    finder = PathFinder(files, Path(table).parent)
    found: dict[str, dict[str, MetadataValue]] = {}
    unmatched = []
    for number, line in enumerate(body):
        cell = line[header.index(key)].strip()
        path = finder.find(cell, name)
        if path is None:
            unmatched.append(cell)
            continue
        if path in found:
            raise GamlensError(f"{name!r} has two rows of the image {readable(path)!r}: leave one of them out.")
        found[path] = {column: own[number] for column, own in values.items()}
    return found, unmatched


def mixed_columns(table: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Columns that are text although most of their cells are numbers, each with the first cell that is none."""
    lines = _rows(Path(table))
    found = []
    for at, column in enumerate(lines[0] if lines else []):
        cells = [line[at].strip() for line in lines[1:] if at < len(line)]
        odd = [cell for cell in cells if cell and not _is_number(cell)]
        if odd and 2 * len(odd) < sum(bool(cell) for cell in cells) and column.strip() not in KEYS:
            found.append((column.strip(), odd[0]))
    return found


def _rows(table: Path) -> list[list[str]]:
    """The rows of a CSV file, the header among them, without empty lines."""
    contents = text(table)
    first = next((line for line in contents.splitlines() if line.strip()), "")
    if other := next((name for sign, name in OTHER_SEPARATORS.items() if sign in first and "," not in first), ""):
        raise GamlensError(
            f"{readable(str(table))!r} separates its columns by {other}: save the table with commas between them."
        )
    reader = csv.reader(io.StringIO(contents, newline=""), strict=True)
    try:
        return [row for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise GamlensError(
            f"Line {reader.line_num} of {readable(str(table))!r} cannot be read as CSV ({error}): put cells that hold "
            'a comma, a quote or a line break in quotes, close them, and write a quote inside as "".'
        ) from error


def _as_before(column: str, cells: Sequence[str], kind: type | None, table: str) -> list[MetadataValue]:
    """Cells of a column as `typed` reads them, but as text or numbers if the column of the index holds these."""
    if kind is str:
        return [cell or None for cell in cells]
    found = typed(cells)
    if kind is float and (odd := next((cell for cell in cells if cell and not _is_number(cell)), None)):
        raise GamlensError(
            f"{table!r} has {odd!r:.40} in the column {column!r}, which holds numbers in the index: write a number, "
            "leave the cell empty, or rename the column."
        )
    return found


class PathFinder:
    """Finds the image that a cell names, among files (absolute paths)."""

    def __init__(self, files: Sequence[str], folder: Path) -> None:
        self.known, self.folder = set(files), folder
        self.ends: dict[str, list[str]] = defaultdict(list)
        for file in files:
            self.ends[os.path.basename(file)].append(file)

    def find(self, cell: str, table: str) -> str | None:
        """The image; None if there is none. A name that several images have is an error."""
        for path in (self.folder / cell, cell):
            if cell and absolute(path) in self.known:
                return absolute(path)
        end = os.path.normpath(cell) if cell else ""
        several = [file for file in self.ends.get(os.path.basename(end), ()) if file.endswith(f"{os.sep}{end}")]
        if len(several) > 1:
            raise GamlensError(
                f"{table!r} names {cell!r}, which {len(several)} images are called, such as {readable(several[0])!r} "
                f"and {readable(several[1])!r}: write more of the path."
            )
        return several[0] if several else None


def typed(cells: Sequence[str]) -> list[MetadataValue]:
    """Cells of a column as whole numbers or numbers if all of them are, else as text; an empty one has no value.

    >>> typed(["3", "", "-4"]), typed(["3", "0.5"]), typed(["007", "1"]), typed(["nan", "1"])
    ([3, None, -4], [3.0, 0.5], ['007', '1'], ['nan', '1'])
    """
    filled = [cell for cell in cells if cell]
    if filled and all(WHOLE.fullmatch(cell) for cell in filled):
        return [int(cell) if cell else None for cell in cells]
    if filled and all(_is_number(cell) for cell in filled):
        return [float(cell) if cell else None for cell in cells]
    return [cell or None for cell in cells]


def _is_number(cell: str) -> bool:
    digits = cell.lstrip("+-")
    try:
        code = (digits[:1] == "0" and digits[1:2].isdigit()) or (digits.isdigit() and len(digits) > 18)
        return math.isfinite(float(cell)) and "_" not in cell and not code
    except ValueError:
        return False
