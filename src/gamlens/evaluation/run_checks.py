"""Checks of what a run folder holds: the description of the run, and the parts with its rows.

Parts with a record are checked by its sha256 (`engine.part_files`). What is checked here is also known of runs of early
versions, which have no records: the types in run.json, that a part can be read, that it has the columns of the others,
and that it has rows of as many items as it must have, each with every map that was measured.
"""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gamlens.data.plausible import read_parquet
from gamlens.data.reading import import_extra
from gamlens.engine.json_objects import misfit
from gamlens.engine.run_folder import RunFolder
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import Protocol, kinds_of
from gamlens.metrics import KINDS

RUN_SHAPE = {
    "model": str, "weights": str, "data": str, "items": int, "protocol": {"kind": str, "task": str, "subset": str},
}  # fmt: skip
RUN_OPTIONS = {"manifests": dict, "versions": dict, "root": str, "chunk": int, "chunks": int}
COUNTED = ("item", "method", "n", "side", "error")  # the columns by which the items of a part are counted


def arrow() -> Any:
    """The module pyarrow, with pyarrow.parquet."""
    import_extra("pyarrow.parquet", "A run, whose results are Parquet files,")
    return import_module("pyarrow")


def unreadable() -> tuple[type[Exception], ...]:
    """The exceptions of pyarrow and of ours when a part is damaged."""
    return (arrow().ArrowException, OSError, KeyError, ValueError, TypeError, OverflowError, GamlensError)


def check_description(about: Mapping[str, Any], place: str) -> None:
    """Raise a GamlensError if run.json does not describe a run: something is missing, or has the wrong type."""
    wrong = misfit(about, RUN_SHAPE) or misfit(about, {n: kind for n, kind in RUN_OPTIONS.items() if n in about})
    if not wrong:
        usual, chosen = Protocol().record(), about["protocol"]
        kinds = {name: list if isinstance(value, tuple) else type(value) for name, value in usual.items()}
        wrong = misfit(chosen, {name: kind for name, kind in kinds.items() if name in chosen}, "protocol.")
        lists: dict[str, Any] = {"methods": str, "n": int, "views": (str, int, float)}
        for name, kind in lists.items():
            if not wrong and not all(isinstance(value, kind) for value in chosen.get(name, ())):
                wrong = f"'protocol.{name}' has a value of the wrong type"
        if not wrong and not all(isinstance(value, str) for value in about.get("manifests", {}).values()):
            wrong = "'manifests' has a value that is no text"
        if not wrong and not set(kinds_of(chosen["kind"])) <= set(KINDS):
            wrong = f"'protocol.kind' is {chosen['kind']!r:.40}"
    if wrong:
        raise GamlensError(
            f"'run.json' in {place!r} does not describe a run: {wrong}. Restore the file, or make the run again with "
            "gamlens evaluate --fresh."
        )


@dataclass
class PartCheck:
    """Checks the parts of a run against the items that it measures; `RunFolder.find_damaged` calls it in their order.

    Attributes:
        names: The names of the items of each chunk.
        columns: The columns that every part must have. If empty, those of the first part.
        errors: How many items failed, in the parts that were checked and are whole.
    """

    names: Sequence[Sequence[str]]
    columns: tuple[str, ...] = ()
    errors: int = 0

    def __call__(self, chunk: int, contents: bytes) -> str:
        found = count_items(contents)
        if isinstance(found, str):
            return found
        self.columns = self.columns or found.columns
        if found.columns != self.columns:
            raise other_columns(f"part {chunk}", found.columns, self.columns)
        if problem := found.problem(len(self.names[chunk])):
            return problem
        if found.names != set(self.names[chunk]):
            return "it holds other items than this part of the run"
        self.errors += found.errors
        return ""


@dataclass(frozen=True)
class CountedItems:
    """The items of a part: their names, how many failed, the rows of each map, and the columns of the file."""

    names: set[str]
    errors: int
    maps: Counter[Any]
    columns: tuple[str, ...]

    def problem(self, size: int | None) -> str:
        """What is wrong if the part must have `size` items; None if that is not known."""
        if len(set(self.maps.values())) > 1:
            return "it has more rows of one method than of another"
        items = self.errors + max(self.maps.values(), default=0)
        return f"it has {items} items, and {size} were measured" if size is not None and items != size else ""


def count_items(contents: bytes) -> CountedItems | str:
    """The items of a part, or a few words that say why the part cannot be read."""
    try:
        source = io.BytesIO(contents)
        columns = columns_of(arrow().parquet.ParquetFile(source).schema_arrow)
        _, found = read_parquet(arrow().parquet, source, "it", len(contents), COUNTED)
        item, method, n, side, error = (found[name] for name in COUNTED)
    except unreadable() as problem:
        return _reason(contents, problem)
    keys = zip(method, n, side, strict=True)
    maps = Counter(key for key, failed in zip(keys, error, strict=True) if not failed)
    return CountedItems(set(item), sum(map(bool, error)), maps, columns)


def columns_of(schema: Any) -> tuple[str, ...]:
    """The columns of an Arrow schema with their types, such as "iou (list of float)"."""
    lists = arrow().types.is_list
    kinds = ((one.name, f"list of {one.type.value_type}" if lists(one.type) else one.type) for one in schema)
    return tuple(f"{name} ({kind})" for name, kind in kinds)


def check_unrecorded(folder: RunFolder) -> None:
    """Raise a GamlensError if the parts of a finished run without records cannot be those that were written."""
    items, size = (folder.about.get(name) for name in ("items", "chunk"))
    first: tuple[str, ...] = ()
    seen: dict[frozenset[str], int] = {}
    for chunk, contents in enumerate(folder.parts()):
        found = count_items(contents)
        if isinstance(found, str):
            raise folder.damaged(chunk, found)
        first = first or found.columns
        if found.columns != first:
            raise other_columns(f"part {chunk} of the run in {folder.store.place!r}", found.columns, first)
        due = min(size, items - chunk * size) if isinstance(size, int) and isinstance(items, int) else None
        if problem := found.problem(due):
            raise folder.damaged(chunk, problem)
        same = seen.setdefault(frozenset(found.names), chunk)
        if same != chunk and len(found.names) > 1:
            raise folder.damaged(chunk, f"it holds the items of part {same}")


def other_columns(what: str, found: Sequence[str], expected: Sequence[str]) -> GamlensError:
    """The error about a part with other columns than those that are expected."""
    lacks, more = (sorted(set(a) - set(b))[:3] for a, b in ((expected, found), (found, expected)))
    words = [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"it also has {', '.join(more)}"] * bool(more)
    differing = "; ".join(words) or "they are in another order"
    return GamlensError(
        f"{what[0].upper()}{what[1:]} has other columns than the rest of the run ({differing}): another version of "
        "gamlens or another set of metrics measured it. Continue the run with that version, or start over with --fresh."
    )


def _reason(contents: bytes, problem: Exception) -> str:
    if not contents:
        return "the file is empty"
    said = str(problem).strip().splitlines()
    return f"the file cannot be read ({type(problem).__name__}: {said[0] if said else ''})"
