"""The house is as CONTRIBUTING describes it: the same rooms in the same order, one meaning per name, public calls."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "gamlens", ROOT / "tests"
MOST_ENTRIES = 33
NOT_ROOMS = {"__init__", "__main__", "_version", "py"}
SPINE = {"lens.py", "trace.py", "models/hooked.py", "pairs/pair_trace.py"}


def layers() -> list[set[str]]:
    """The rooms of the import contract, from the top layer down."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    found = [{name.strip().removeprefix("gamlens.") for name in line.split("|")} for line in contract["layers"]]
    return [rooms for layer in found if (rooms := layer - NOT_ROOMS)]


def rooms() -> set[str]:
    return set().union(*layers())


def table() -> list[set[str]]:
    """The rooms of CONTRIBUTING's table, row by row."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", text[text.index("| rooms |") :], flags=re.MULTILINE)
    return [set(re.findall(r"`([^`]+)`", row)) for row in rows]


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_the_table_and_the_contract_are_the_same_list() -> None:
    assert table() == layers()


def test_every_room_is_in_the_contract_and_there_are_not_too_many() -> None:
    entries = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.name != "__pycache__"}
    found = {name for name in entries if name not in NOT_ROOMS and name != "py.typed"}
    assert found == rooms()
    assert len(found) <= MOST_ENTRIES


def names_of(path: Path) -> list[str]:
    """Classes, constants and type aliases that a module defines at its top level."""
    found: list[str] = []
    for node in ast.parse(path.read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found += [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        found += [node.name] if isinstance(node, ast.ClassDef) else []
    return [name.lstrip("_") for name in found]


def test_a_name_has_one_meaning() -> None:
    places = defaultdict(set)
    for path in modules():
        for name in names_of(path):
            if name[:1].isupper() and len(name) > 1:
                places[name].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


def test_a_file_name_stands_once() -> None:
    places = defaultdict(list)
    for path in modules():
        if path.name != "__init__.py":
            places[path.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", [path for path in modules() if str(path.relative_to(SOURCE)) not in SPINE], ids=str)
def test_only_the_spine_looks_inside_a_lens(path: Path) -> None:
    """Everybody else uses the calls that a user has."""
    assert re.findall(r"\blens\._\w+|\blens\.sight\b|\btrace\._\w+", path.read_text()) == []


def quick_tests(file: Path) -> list[str]:
    """Tests of a file that `make check` runs on every machine: marked neither slow nor shared."""
    body = ast.parse(file.read_text()).body
    marks = [ast.unparse(node.value) for node in body if isinstance(node, ast.Assign) and named(node) == "pytestmark"]
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    return [
        test.name
        for test in tests
        if not re.search(r"mark\.(slow|shared)\b", " ".join([*marks, *map(ast.unparse, test.decorator_list)]))
    ]


def named(node: ast.Assign) -> str:
    return ast.unparse(node.targets[0])


@pytest.mark.parametrize("room", sorted(rooms()))
def test_every_room_has_a_quick_test(room: str) -> None:
    """Tests of a room are in the folder, or in the file, that bears its name."""
    files = [*sorted((TESTS / room).rglob("test_*.py")), TESTS / f"test_{room}.py"]
    assert [name for file in files if file.exists() for name in quick_tests(file)]


def test_a_quick_test_is_told_from_a_slow_one(tmp_path: Path) -> None:
    functions = "@pytest.mark.slow\ndef test_a(): ...\n@pytest.mark.shared\ndef test_b(): ...\ndef test_c(): ...\n"
    (tmp_path / "some.py").write_text(functions)
    (tmp_path / "none.py").write_text(f"pytestmark = [pytest.mark.slow]\n{functions}")
    assert quick_tests(tmp_path / "some.py") == ["test_c"]
    assert quick_tests(tmp_path / "none.py") == []


@pytest.mark.slow
def test_every_module_can_be_imported() -> None:
    for path in modules():
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        assert importlib.import_module(name).__file__ == str(path)
